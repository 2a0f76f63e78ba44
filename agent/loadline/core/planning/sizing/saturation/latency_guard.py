"""Requests per worker at which the measured latency of a role reaches its objective.

KV usage says nothing of latency: an engine may decode at twice the ITL objective with a cache that is nearly empty.
While the mean latency of a window is above its objective, and there are requests that more workers would divide, a role
therefore grows in proportion, at most to twice its workers. The loads at which the latency was above and within the
objective remain known, so that no scale-down goes back to the former. If fewer requests per worker do not lower the
latency to its objective, more workers would not either, and the role does not grow for it.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from math import ceil, inf
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.windows import RollingMax, RollingSamples
from loadline.core.vocabulary.scalars import Role

WINDOW_MS: Final = 30_000
_SAMPLE_MS: Final = 1_000
_GROWTH_MAX: Final = 2.0
_REQUESTS_MIN: Final = 2.0
"""Requests per worker up to which a worker has little load that others could take."""
_DRIFT: Final = 1.25
"""Ratio of the loads of the two windows up to which the latencies are those of the present load."""
_LOWER: Final = 0.9
"""Ratio of two loads below which they tell how latency depends on load."""
_QUEUE_MAX: Final = 5.0
"""Waiting requests per worker above which the latency is that of a queue; the queue itself counts as load."""
_STEEP: Final = 2.0
"""Highest ratio used to interpolate: latencies rise faster and faster."""
_RATIO_MAX: Final = 1e6
_MEMORY_MS: Final = 1_800_000
"""Time for which a load is known to be too high, unless latencies of other loads confirm it: requests change."""
_FLAT_MS: Final = 14_400_000
"""The same for an objective that no load meets: each attempt doubles the workers for minutes."""
_CONFIRMED: Final = 0.8
"""Ratio of a latency to the one expected at its load above which it confirms the expectation."""


class LatencyPoint(Struct, frozen=True):
    """Requests per worker, and the mean latency there relative to its objective."""

    requests: float
    ratio: float
    metric: str
    """Latency that is closer to its objective or further above it: TTFT or ITL."""
    at_ms: int


class LatencyGuard(Struct):
    """Measured latencies of the pools of a role."""

    requests: RollingSamples = field(default_factory=lambda: RollingSamples(2 * WINDOW_MS))
    """Requests per worker in the window, and in the one before it, in which some of its requests began."""
    waiting: float = 0.0
    """Waiting requests per worker at the last sample."""
    ttfts: RollingSamples = field(default_factory=lambda: RollingSamples(WINDOW_MS))
    itls: RollingSamples = field(default_factory=lambda: RollingSamples(WINDOW_MS))
    """Means over the workers of the latencies that they report, in ms."""
    peak: RollingMax = field(default_factory=lambda: RollingMax(0))
    """Requests of the role."""
    objectives: ObjectiveKnobs = ObjectiveKnobs()
    ready: int = -1
    changed_ms: int = 0
    """Time of the last change of ``ready``."""
    sampled_ms: int = -_SAMPLE_MS
    now: LatencyPoint | None = None
    """Point of the present load; None while latencies may be those of another load or of other workers."""
    over: LatencyPoint | None = None
    """Lowest load above the objective."""
    before: LatencyPoint | None = None
    """The one before it, of a higher load."""
    within: LatencyPoint | None = None
    """Highest load within the objective."""

    def update(self, model: Model, pools: Sequence[Pool], peak_window_ms: int, now: int) -> None:
        """Record a second of the pools of a role."""
        if now - self.sampled_ms < _SAMPLE_MS:
            return
        self.sampled_ms, self.peak.window_ms = now, peak_window_ms
        if model.objectives != self.objectives:
            self.objectives, self.over, self.before, self.within = model.objectives, None, None, None
        ready, fresh = sum(pool.ready for pool in pools), sum(pool.fresh for pool in pools)
        if ready != self.ready or not fresh:
            self.ready, self.changed_ms = ready, now
            for samples in (self.requests, self.ttfts, self.itls):
                samples.clear()
        if fresh:
            waiting = sum(pool.load.waiting for pool in pools)
            requests = waiting + sum(pool.load.running for pool in pools)
            self.waiting = waiting / fresh
            self.peak.push(now, requests)
            self.requests.push(now, requests / fresh)
            self._record_reports(pools, now)
        if self.over is not None and now - self.over.at_ms > (_FLAT_MS if self.is_flat else _MEMORY_MS):
            self.over = self.before = self.within = None
        self.now = self._point(model, pools[0].knobs.role, now)
        if self.now is not None and all(pool.expected_workers(now) == pool.ready for pool in pools):
            self._learn(self.now)

    @property
    def is_violated(self) -> bool:
        """True if the latency is above its objective, and more workers may lower it."""
        return self.now is not None and self.now.ratio > 1.0 and not self.is_flat

    @property
    def is_flat(self) -> bool:
        """True if the latency is above its objective at any load, by the line through two of them."""
        over, before = self.over, self.before
        if over is None or before is None:
            return False
        return over.ratio - _slope(over, before) * over.requests >= 1.0

    @property
    def limit(self) -> float:
        """Requests per worker at which the latency reaches its objective; infinite if unknown."""
        over, within = self.over, self.within
        if over is None or self.is_flat:
            return inf
        if within is not None:
            share = (1.0 - within.ratio) / (min(over.ratio, _STEEP) - within.ratio)
            found = within.requests + share * (over.requests - within.requests)
        else:
            found = over.requests / over.ratio
            if self.before is not None and _slope(over, self.before) > 0.0:
                found = min(found, over.requests - (over.ratio - 1.0) / _slope(over, self.before))
        return max(found, over.requests / _GROWTH_MAX)

    def numbers(self, point: LatencyPoint) -> dict[str, float]:
        """Return the numbers of a point for a reason, with its objective, which may be a default."""
        objective_ms = self.objectives.ttft_ms if point.metric == "TTFT" else self.objectives.itl_ms
        return {"ratio": point.ratio, "requests": point.requests, "objective_ms": float(objective_ms)}

    def needed(self, count: int) -> int:
        """Return the workers that lower the latency to its objective, of ``count`` now; 0 if it needs no more."""
        if self.now is None or not self.is_violated or count != self.ready:
            return 0
        requests = self.now.requests * count
        wanted = max(count + 1, ceil(requests / self.limit))
        return min(wanted, int(_GROWTH_MAX * count), int(requests))

    def kept(self, count: int, now: int) -> int:
        """Return the workers, at most ``count``, below which the latency would be above its objective again."""
        if self.is_violated:
            return count
        return min(count, ceil((self.peak.max(now) or 0) / self.limit))

    def _point(self, model: Model, role: Role, now: int) -> LatencyPoint | None:
        """Return the point of the present load; None while latencies may be those of another one.

        A latency that is too high may be of a lower load, and one within the objective of a higher one.
        """
        traffic = model.traffic.recent_latencies(WINDOW_MS, now)
        ttft_ms = traffic.ttft_ms or _mean(self.ttfts.values)
        itl_ms = traffic.itl_ms or _mean(self.itls.values)
        request_ms = ttft_ms + itl_ms * (traffic.osl_tokens or 0.0)
        if self.waiting > _QUEUE_MAX or now - self.changed_ms < WINDOW_MS + max(WINDOW_MS, request_ms):
            return None
        ratios = {
            "TTFT": 0.0 if role in {"decode", "encode"} else ttft_ms / model.objectives.ttft_ms,
            "ITL": 0.0 if role in {"prefill", "encode"} else itl_ms / model.objectives.itl_ms,
        }
        metric = max(ratios, key=lambda one: ratios[one])
        ratio, half = min(ratios[metric], _RATIO_MAX), bisect_left(self.requests.at_ms, now - WINDOW_MS)
        before, requests = _mean(self.requests.values[:half]), _mean(self.requests.values[half:])
        known = before < _DRIFT * requests if ratio > 1.0 else requests < _DRIFT * before
        enough = requests >= (_REQUESTS_MIN if ratio > 1.0 else 0.0)
        return LatencyPoint(requests, ratio, metric, now) if ratio and known and enough else None

    def _learn(self, point: LatencyPoint) -> None:
        """Record a point; it replaces those that contradict it, as requests and engines change."""
        over, before = self.over, self.before
        if point.ratio <= 1.0:
            self._learn_within(point)
            return
        if self.within is not None and point.requests <= self.within.requests:
            self.within = None
        if over is None or point.requests <= over.requests:
            self.over = point
            if over is not None and point.requests < _LOWER * over.requests:
                self.before = over
        elif point.requests > over.requests / _LOWER and (before is None or point.requests > before.requests):
            self.before = point

    def _learn_within(self, point: LatencyPoint) -> None:
        over, within = self.over, self.within
        if over is not None and (point.requests >= over.requests or self.is_flat):
            self.over = over = self.before = None
        if within is None or point.requests * _LOWER > within.requests:
            self.within = point
        elif over is not None:
            expected = within.ratio + _slope(over, within) * (point.requests - within.requests)
            if point.ratio > _CONFIRMED * expected > 0.0:
                self.over = replace(over, at_ms=point.at_ms)

    def _record_reports(self, pools: Sequence[Pool], now: int) -> None:
        reports = [one for pool in pools for one in _reports(pool)]
        for samples, latencies in (
            (self.ttfts, [ttft_ms for ttft_ms, _ in reports if ttft_ms]),
            (self.itls, [itl_ms for _, itl_ms in reports if itl_ms]),
        ):
            if latencies:
                samples.push(now, sum(latencies) / len(latencies))
            samples.prune(now)


def _reports(pool: Pool) -> Iterator[tuple[float | None, float | None]]:
    """Yield TTFT and ITL of the ranks of a pool that have requests."""
    for worker in pool.workers.values():
        for sample in worker.latest if worker.counted else ():
            if sample is not None and sample.running_requests:
                yield sample.ttft_ms, sample.itl_ms


def _slope(one: LatencyPoint, other: LatencyPoint) -> float:
    """Return the change of the latency with the load between two points."""
    return (one.ratio - other.ratio) / (one.requests - other.requests)


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0
