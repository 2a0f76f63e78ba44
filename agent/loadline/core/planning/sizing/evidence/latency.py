"""Latencies of a pool by the work that each of its workers serves, from reports of workers and frontends.

A point of a curve is a window in which the pool was settled: its workers did not change, none had a backlog that the
others had not, and the requests that complete now were served under the present load. Work is counted in tokens, an
output token as several prompt tokens, so that a rate stays comparable while the mix of requests changes.
"""

from math import inf, sqrt
from typing import Final

from msgspec import Struct, field

from loadline.core.engines.latency_curve import LatencyCurve
from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.engines.regression import Line
from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.worker import MICRO
from loadline.core.planning.sizing.evidence.delays import RequestDelays
from loadline.core.planning.sizing.evidence.first_outputs import COMPLETED_MIN
from loadline.core.planning.sizing.evidence.lifetime_load import LifetimeLoad
from loadline.core.planning.sizing.evidence.pool_second import PoolSecond
from loadline.core.planning.sizing.evidence.prompt_speed import PromptSpeed
from loadline.core.planning.sizing.evidence.request_shares import PoolTraffic
from loadline.core.planning.sizing.evidence.saturation import SaturationEvidence
from loadline.core.planning.sizing.evidence.window import EvidenceWindow
from loadline.core.planning.sizing.late_requests import deviations, itl_share
from loadline.core.planning.sizing.request_lengths import Lengths
from loadline.core.vocabulary.scalars import Role

KV_FULL: Final = 0.85
"""KV usage at which a cache is full: above, an engine preempts requests."""
_ITL_SHARE_MAX: Final = 0.9
"""Largest mean ITL of an aggregated pool, as a part of the objective: with long outputs it hardly varies, but the load
of a minute does."""
_TTFT_SHARE_MAX: Final = 0.8
"""Part of the TTFT objective up to which a limit above that of the deviations, near the TTFT without load, holds."""
_ITERATIONS: Final = 3
"""Steps to the limit of the ITL, which depends on the batch at that limit: the third one changes it by a percent."""
_ABOVE_BASE: Final = 1.15
"""Ratio of the lowest limit of a latency to that without load."""
_NEAR_SHARE: Final = 0.95
"""Part of the ITL objective up to which that holds: beyond, half of the requests would be late with any count."""
_ABOVE_FLOOR: Final = 2.0
"""Ratio of the objective that is kept to, if none below the ITL without load can be met, to that ITL."""
_BATCH_MIN: Final = 0.01
"""Smallest batch that counts for the variation of the ITL."""
_WINDOW_MS: Final = 5_000
_FIRST_WINDOW_MS: Final = 2_000
"""Window before the first point: a fleet may be overloaded from the first second on."""
_UNBALANCED_MS: Final = 10_000
"""Window while some workers have a backlog: their batches began together, so that most of one completes at once."""
_WINDOW_MAX_MS: Final = 30_000
_COMPLETED_MIN: Final = 20
"""Completed requests that end a window."""
_SETTLE_MS: Final = 3_000
_SETTLE_REQUESTS: Final = 1.2
"""Durations of a request that pass before a window begins."""
_EARLY_REQUESTS: Final = 4.0
"""Durations of a request since the first second in which an aggregated pool serves at most the arrivals: the requests
that complete first are short, so Little's law with their length gives too high a rate, twice that of the Azure traces.
For decode it gives the tokens/s whatever the length is."""
_DRIFT: Final = 0.35
_DRIFT_MIN: Final = 3.0
"""Change of the running requests in a window, relative and absolute, above which it is no steady state."""
_BATCH_HALF: Final = 32.0
"""Batch at which the work is assumed to take as long as the fixed part of an iteration, before points show it."""
_CHANCE: Final = 2.0
"""Standard deviations of a count of arrivals up to which it differs from the mean by chance."""
_VARIATION_WEIGHT: Final = 0.15
_VARIATION_MAX: Final = 1.5
_TTFT_TOKENS: Final = 1_000.0
"""Prompt length to which the TTFT of prefill workers is scaled: it grows with the length."""
_UTILISATION_MIN: Final = 1.0 / 3.0
"""Utilisation by the other limits below which requests hardly wait: a late TTFT is then not due to the load."""
_ALONE_SHARE: Final = 0.7
"""Part of the TTFT objective from which on prompts are late without load: errors of their mean length and time decide
whether a window is within the limit then, so a pool alternated between 7 and 32 workers at 0.8."""
_REPORT_INTERVAL_MS: Final = 1_000.0
"""Interval in which workers report, as they do by default."""
_BEHIND_RATIO_MIN: Final = 2.0
"""Ratio of all requests to those of workers with a backlog from which on the difference is known: they vary by 15 %."""
_KV_WEIGHT: Final = 0.2
_SATURATED_WEIGHT: Final = 0.2


class PoolEvidence(Struct):
    """Curves of ITL and TTFT of a pool, its rate at saturation, and its queues."""

    itl: LatencyCurve = field(default_factory=LatencyCurve)
    ttft: LatencyCurve = field(default_factory=LatencyCurve)
    saturated_rate: float = 0.0
    """Work/s of a worker while requests wait for it and its batch does not grow; 0: not seen."""
    kv_per_work_ms: float = 0.0
    """Part of a KV cache that a unit of work/s occupies per ms of ITL; 0: unknown."""
    ttft_variation: float = 0.5
    """Coefficient of variation of the TTFT."""
    outputs_per_work: float = 0.0
    """Output tokens after the first of recent requests, by the work of a request, for the variation of the ITL; 0:
    unknown."""
    shares_role: bool = False
    """True if other pools have the role."""
    ttft_unit: float = 1.0
    """Factor from the TTFT of recent requests to that of ``_TTFT_TOKENS`` tokens, for prefill."""
    speed: PromptSpeed = field(default_factory=PromptSpeed)
    """Speed of prefill workers."""
    window: EvidenceWindow = field(default_factory=EvidenceWindow)
    lifetime: LifetimeLoad = field(default_factory=LifetimeLoad)
    unsettled_ms: int = -1
    """Last time at which the pool was not settled."""
    delays: RequestDelays = field(default_factory=RequestDelays)
    """Times at which latencies were not due to the load."""
    settled: bool = False
    """True once the pool was settled."""
    first_ms: int = -1
    """Time of the first arrivals; -1: none came yet, or a predecessor learned from them."""
    queues: SaturationEvidence = field(default_factory=SaturationEvidence)

    def add(self, model: Model, pool: Pool, traffic: PoolTraffic, lengths: Lengths, now: int) -> None:
        """Record a second."""
        interval = traffic.totals
        self.queues.add(model, pool, interval, now)
        self._learn_units(model, pool, lengths)
        if self.first_ms < 0 and interval.arrivals and not self.itl.bins:
            self.first_ms = now
        self.delays.add(model, pool, self.queues, lengths, now, has_points=bool(self.itl.bins))
        known = interval
        if not self.queues.is_unbalanced:
            known = self.delays.without_delayed(interval, self.queues, lengths, now)
        second = PoolSecond.of(pool, self.queues, known) if self._is_known(pool, now) else None
        if second is None or not self.window.is_of(second):
            self.unsettled_ms = now
            if second is not None:
                self.lifetime.begin(second)
            self._begin(pool, second, now)
            return
        if pool.knobs.role != "prefill" and second.free_workers == pool.ready:
            second = self.lifetime.add(second, lengths.osl_tokens * self.queues.itl_ms)
        request_ms = _SETTLE_REQUESTS * lengths.osl_tokens * self.itl.latest_ms
        if self.settled and now - self.unsettled_ms < max(_SETTLE_MS, request_ms):
            self._begin(pool, second, now)
            return
        self.settled = True
        self._learn_saturation(model, pool, lengths, now)
        if pool.knobs.role == "decode" and known.itl_ms.count < interval.itl_ms.count:
            self._begin(pool, second, now)  # the batch of these seconds has no ITL
            return
        self.window.add(second, traffic.share)
        curve = self.ttft if pool.knobs.role == "prefill" else self.itl
        done = (self.window.ttft_ms if curve is self.ttft else self.window.itl_ms).count
        span_ms, min_ms = now - self.window.since_ms, _WINDOW_MS if curve.bins else _FIRST_WINDOW_MS
        if self.queues.is_unbalanced:
            done, min_ms = int(self.window.arrivals), _UNBALANCED_MS
        if span_ms >= min_ms and (done >= _COMPLETED_MIN or span_ms >= _WINDOW_MAX_MS):
            self._learn(model, pool, lengths, second, now)
            self._begin(pool, second, now)

    def capacity(self, role: Role, objectives: ObjectiveKnobs) -> float:
        """Return the work/s of a worker within the objectives; 0 if unknown."""
        rates = [self.saturated_rate] if self.saturated_rate else []
        if role != "prefill":
            limit_ms = self.itl_limit_ms(role, objectives)
            rates = [max(rate, self.itl.highest_rate_within(limit_ms)) for rate in rates]
            rates += self._itl_rate(limit_ms), self._kv_rate(limit_ms)
        if role != "decode":
            limit_ms = self.ttft_limit_ms(objectives)
            alone = self.ttft.service_rate(_TTFT_TOKENS, limit_ms)  # of a worker that computes without a pause
            rate_max = alone - 1_000.0 * _TTFT_TOKENS / limit_ms
            rate = self.ttft.rate_within(limit_ms, extrapolate=role == "prefill", rate_max=rate_max)
            others = min((other for other in rates if 0.0 < other < inf), default=0.0)
            if role == "prefill" and self.ttft.highest_rate_within(limit_ms):
                others = alone
            rates.append(max(rate, _UTILISATION_MIN * others))
        known = [rate for rate in rates if 0.0 < rate < inf]
        return min(known, default=0.0)

    def _itl_rate(self, limit_ms: float) -> float:
        """Return the work/s of a worker within a mean ITL; infinite if unknown.

        Beyond its capacity an engine computes fewer prompts in each iteration, so the ITL grows more slowly than the
        line through the points at lower rates, and falls more slowly: every request is late until it is within. So the
        rate is the geometric mean of that of the line and of one in proportion to the ITL.
        """
        rate, latest_rate, latest_ms = self.itl.rate_within(limit_ms), self.itl.latest_rate, self.itl.latest_ms
        if latest_ms <= limit_ms or not latest_rate:  # of the last requests before a lull, none runs any more
            return rate
        return min(rate, sqrt(rate * latest_rate * limit_ms / latest_ms))

    def _kv_rate(self, limit_ms: float) -> float:
        """Return the work/s that fills the KV cache of a worker; infinite if unknown.

        At the rate ``x``, requests are in the cache for the ITL ``base / (1 - x / full)``.
        """
        if not self.kv_per_work_ms:
            return inf
        full = self.itl.full_rate(limit_ms)
        return KV_FULL / (self.kv_per_work_ms * self.itl.base_ms(limit_ms) + KV_FULL / full)

    def throughput(self, role: Role, objectives: ObjectiveKnobs) -> float:
        """Return the work/s of a worker that has a backlog; 0 if unknown."""
        rates = [self.saturated_rate] if self.saturated_rate else []
        curve, limit_ms = (
            (self.ttft, objectives.ttft_ms * self.ttft_unit)
            if role == "prefill"
            else (self.itl, self.itl_objective_ms(objectives))
        )
        if curve.bins:
            rates.append(curve.saturated_rate(limit_ms))
        return min(rates, default=0.0)

    def proven_rate(self, role: Role, objectives: ObjectiveKnobs) -> float:
        """Return the highest work/s of a worker that was seen within the objective; 0 if none."""
        if role == "prefill":
            return self.ttft.highest_rate_within(self.ttft_limit_ms(objectives))
        return self.itl.highest_rate_within(self.itl_objective_ms(objectives))

    def extrapolated_rate(self, role: Role, objectives: ObjectiveKnobs) -> float:
        """Return the work/s of a worker within the ITL by the points within it alone; infinite if unknown."""
        if role == "prefill":
            return inf
        return self.itl.rate_without_late(self.itl_limit_ms(role, objectives))

    def itl_limit_ms(self, role: Role, objectives: ObjectiveKnobs) -> float:
        """Return the mean ITL at which enough requests meet the objective: two standard deviations below it for 95 %.

        In an aggregated pool, each request that begins while another decodes delays it by its prompt. There are as
        many of them as run in a batch, by Little's law, and by the Poisson distribution their number varies by its
        square root. An ITL little above that without load is within the limit in any case: no count attains less.
        Where pools share a role, another one may; and what frontends report is the mean of a slow and a fast one.
        """
        objective_ms, share = self.itl_objective_ms(objectives), itl_share(objectives)
        if self.shares_role:
            min_ms, max_ms = 0.0, share * objective_ms
        else:
            min_ms = min(_ABOVE_BASE * self.itl.base_ms(objective_ms), _NEAR_SHARE * objective_ms)
            max_ms = max(_ITL_SHARE_MAX, share) * objective_ms
        limit_ms = max(min_ms, share * objective_ms)
        if role != "aggregated" or not self.outputs_per_work:
            return limit_ms
        for _ in range(_ITERATIONS):
            rate = self.itl.rate_within(limit_ms)
            if not 0.0 < rate < inf:
                return limit_ms
            batch = rate * self.outputs_per_work * limit_ms / 1_000.0
            variation = max(0.0, 1.0 - self.itl.base_ms(limit_ms) / limit_ms) / sqrt(max(batch, _BATCH_MIN))
            limit_ms = max(min_ms, min(max_ms, objective_ms / (1.0 + deviations(objectives) * variation)))
        return limit_ms

    def itl_objective_ms(self, objectives: ObjectiveKnobs) -> float:
        """Return the objective of the ITL, or a multiple of the ITL without load if no count of workers meets it."""
        return _ABOVE_FLOOR * self.itl.floor_ms if self.is_itl_infeasible(objectives) else objectives.itl_ms

    def is_itl_infeasible(self, objectives: ObjectiveKnobs) -> bool:
        """Return True if the ITL without load is above the objective. Where pools share a role, another may meet it."""
        return self.itl.floor_ms > objectives.itl_ms and not self.shares_role

    def ttft_limit_ms(self, objectives: ObjectiveKnobs) -> float:
        """Return the mean TTFT at which enough requests meet the objective: two standard deviations below for 95 %."""
        objective = objectives.ttft_ms * self.ttft_unit
        limit_ms = objective / (1.0 + deviations(objectives) * self.ttft_variation)
        return max(limit_ms, min(_ABOVE_BASE * self.ttft.base_ms(objective), _TTFT_SHARE_MAX * objective))

    def prompt_line(self, objectives: ObjectiveKnobs) -> Line | None:
        """Return the time of a prefill worker in ms against prompt tokens, if the TTFT is late without load.

        The mean TTFT of prompts that wait for nothing is then about the limit, or the TTFT was within the limit at a
        higher rate than one at which it was not: long prompts, or chance, made it late. The curve has no rate for
        that, but how long prompts wait for each other follows from their lengths. None if the curve has one, or the
        time is unknown.
        """
        limit_ms, alone_ms = self.ttft_limit_ms(objectives), self.speed.ms_per_token * _TTFT_TOKENS
        is_late = alone_ms >= min(limit_ms, _ALONE_SHARE * objectives.ttft_ms * self.ttft_unit)
        if not self.speed.tokens or (not is_late and self.ttft.rises(limit_ms)):
            return None
        return Line(self.speed.ms_per_token, 0.0)

    def curve(self, role: Role) -> LatencyCurve:
        """Return the curve that bounds a role first: TTFT for prefill, ITL for the others."""
        return self.ttft if role == "prefill" else self.itl

    def kv_workers(self, pool: Pool) -> float:
        """Return the number of full KV caches that are in use."""
        return pool.load.kv_micro / MICRO

    def _learn_units(self, model: Model, pool: Pool, lengths: Lengths) -> None:
        """Record the units of its latencies and of its work."""
        self.shares_role = sum(one.knobs.role == pool.knobs.role for one in model.pools.values()) > 1
        if pool.knobs.role == "prefill" and lengths.isl_tokens:
            self.ttft_unit = _TTFT_TOKENS / lengths.isl_tokens
        if pool.knobs.role == "aggregated" and lengths.osl_tokens:
            self.outputs_per_work = max(1.0, lengths.osl_tokens - 1.0) / lengths.work("aggregated")

    def _is_known(self, pool: Pool, now: int) -> bool:
        """Return True if all workers report, and their latencies are not those of waits for others."""
        if pool.knobs.role == "prefill" and (self.queues.is_unbalanced or self.queues.drains_backlog):
            return False
        return 0 < pool.fresh == pool.ready and now != self.delays.decode_wait_ms

    def _begin(self, pool: Pool, second: PoolSecond | None, now: int) -> None:
        workers, running = (pool.ready, 0.0) if second is None else (second.free_workers, second.running)
        self.window = EvidenceWindow(now, pool.ready, workers, running, waiting=pool.load.waiting)

    def _learn_saturation(self, model: Model, pool: Pool, lengths: Lengths, now: int) -> None:
        role = pool.knobs.role
        served = self.queues.served(model, pool, lengths, now)
        is_early = role == "decode" and lengths.osl_requests < COMPLETED_MIN
        if served and not is_early and role != "prefill" and self.queues.is_saturated(pool):
            rate = served * lengths.work(role) / pool.ready
            weight = _SATURATED_WEIGHT if self.saturated_rate else 1.0
            self.saturated_rate += (rate - self.saturated_rate) * weight

    def _learn(self, model: Model, pool: Pool, lengths: Lengths, second: PoolSecond, now: int) -> None:
        """Add the window to the curves."""
        window, role = self.window, pool.knobs.role
        if window.ttft_seconds > 3 and pool.load.waiting <= 3 * pool.ready:  # noqa: PLR2004
            variation = min(_VARIATION_MAX, sqrt(window.ttft_spread / (window.ttft_seconds - 1)))
            self.ttft_variation += (variation - self.ttft_variation) * _VARIATION_WEIGHT
        if role == "prefill":
            self._learn_prompts(pool, now)
        elif lengths.osl_tokens:
            self._learn_outputs(model, pool, lengths, second, now)

    def _learn_prompts(self, pool: Pool, now: int) -> None:
        window = self.window
        isl_tokens, ttft_ms = window.isl_tokens.value, window.ttft_ms.value
        if isl_tokens is None or not ttft_ms:
            return
        rate = window.admitted_per_s(pool, now) * isl_tokens / pool.ready
        ttft_ms *= _TTFT_TOKENS / isl_tokens
        self.ttft.add(rate, ttft_ms, ttft_ms / (1.0 + ttft_ms * rate / 1_000.0 / _TTFT_TOKENS), now)
        self.speed.add(window.ttft_ms.count, isl_tokens, ttft_ms / _TTFT_TOKENS, rate, pool.ready)

    def _learn_outputs(self, model: Model, pool: Pool, lengths: Lengths, second: PoolSecond, now: int) -> None:
        window, role = self.window, pool.knobs.role
        batch = window.running / window.samples
        drifts = abs(second.running - window.first_running) > max(_DRIFT_MIN, _DRIFT * batch)
        rate, itl_ms = self._rate_and_itl(pool, lengths, now)
        if drifts or not itl_ms:
            return
        is_full = second.is_queued and bool(self.itl.bins)
        # A full batch keeps its ITL in an overload, so only one within the limit tells what a worker serves.
        if not is_full or (self.saturated_rate and itl_ms <= self.itl_limit_ms(role, model.objectives)):
            seen = min(rate, self.saturated_rate) if is_full else rate
            self.itl.add(seen, itl_ms, itl_ms / (1.0 + batch / _BATCH_HALF), now)
            self.itl.learn_floor(model.objectives.itl_ms)
        if rate:
            kv = window.kv / window.samples / (rate * itl_ms)
            self.kv_per_work_ms += (kv - self.kv_per_work_ms) * (_KV_WEIGHT if self.kv_per_work_ms else 1.0)
        if role == "aggregated":
            self._add_ttft(pool, model.objectives, rate, now)

    def _rate_and_itl(self, pool: Pool, lengths: Lengths, now: int) -> tuple[float, float]:
        """Return the work/s of a worker without a backlog, and its ITL; 0 if unknown.

        By Little's law, as many requests run as come in the time that one takes, which gives the rate. Of requests that
        take less than the interval of the reports, those tell little: as many are served as complete, also while others
        wait for prefill workers or at a frontend. Not so for the first ones, and where several pools complete them.
        """
        window, work, itl_ms = self.window, lengths.work(pool.knobs.role), self.window.itl_ms.value
        if window.free_workers < pool.ready:
            requests_per_s, itl_ms = self._free_rate_and_itl(pool, lengths, now)
        elif not itl_ms:
            return 0.0, 0.0
        elif lengths.osl_tokens * itl_ms < _REPORT_INTERVAL_MS and not (self.shares_role or lengths.are_early):
            requests_per_s = window.completed_per_s / pool.ready
        else:
            requests_per_s = self._rate_by_batch(pool, lengths.osl_tokens * itl_ms, now)
        return requests_per_s * work, itl_ms

    def _rate_by_batch(self, pool: Pool, request_ms: float, now: int) -> float:
        """Return the requests/s of a worker by Little's law; of an aggregated one at first, no more than arrive."""
        window, is_early = self.window, self.first_ms >= 0 and now - self.first_ms < _EARLY_REQUESTS * request_ms
        requests_per_s = 1_000.0 * window.running / window.samples / request_ms
        if not is_early or pool.knobs.role == "decode" or not window.arrivals or not window.observed_ms:
            return requests_per_s
        most_per_s = window.arrivals * 1_000.0 / window.observed_ms * (1.0 + _CHANCE / sqrt(window.arrivals))
        return min(requests_per_s, most_per_s / pool.ready)

    def _free_rate_and_itl(self, pool: Pool, lengths: Lengths, now: int) -> tuple[float, float]:
        """Return the requests/s of a worker without a backlog while others have one, and its ITL; 0 if unknown.

        Frontends report the ITL of all. The free workers serve what those with a backlog, at their saturated rate, do
        not; their ITL follows by Little's law.
        """
        window, behind = self.window, pool.ready - self.window.free_workers
        admitted_per_s = window.admitted_per_s(pool, now)
        behind_per_s = behind * self.saturated_rate / lengths.work(pool.knobs.role)
        if not behind_per_s or admitted_per_s < _BEHIND_RATIO_MIN * behind_per_s:
            return 0.0, 0.0
        requests_per_s = (admitted_per_s - behind_per_s) / window.free_workers
        request_ms = 1_000.0 * window.running / window.samples / requests_per_s
        return requests_per_s, request_ms / lengths.osl_tokens if request_ms >= _REPORT_INTERVAL_MS else 0.0

    def _add_ttft(self, pool: Pool, objectives: ObjectiveKnobs, rate: float, now: int) -> None:
        ttft_ms = self.window.ttft_ms.value
        if ttft_ms:
            base_ms = 0.9 * ttft_ms
            if pool.load.waiting > pool.ready:
                base_ms = min(base_ms, 0.1 * objectives.ttft_ms)
            self.ttft.add(rate, ttft_ms, base_ms, now)
