"""Requests per second that a worker serves within the objectives, by the profile of its engine or its prompt times."""

from collections.abc import Callable, Mapping
from typing import Final
from zlib import crc32

from msgspec import Struct, field

from loadline.core.engines.lengths import (
    LengthDistribution,
    constant_length,
    exponential_length,
    lengths_from_histogram,
)
from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.engines.regression import Line
from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.traffic_totals import RunningMean, TrafficTotals
from loadline.core.planning.sizing.late_requests import attainment_of
from loadline.core.planning.sizing.profile.counts import Demand, Size, Sizer, pool_sizer, profile_problem
from loadline.core.planning.sizing.profile.prefill_capacity import PrefillSizing, Prompts
from loadline.core.planning.sizing.request_lengths import Lengths, request_work
from loadline.core.vocabulary.samples import Bins

_INTERVAL_MS: Final = 30_000
_INTERVALS: Final = 5
_INTERVALS_MAX: Final = 20
"""Intervals of the window of the lengths: 150 s, more than most changes by chance last, and 10 min at most."""
_REQUESTS: Final = 1_000
"""Requests that the window has if 10 min have as many: the mean length of reasoning requests, whose coefficient of
variation is 1 to 2, is then known to 5 %. With 300, the rate of a worker doubled and halved within minutes."""
_FIRST_MS: Final = 5_000
_LONGER: Final = 0.9
"""Part of the recent work of a request that is no chance: the mean of 300 requests, whose lengths have a coefficient of
variation of 1, errs by 6 %. Mean outputs of a chat that rose by half in a minute left five of seven decode workers."""
_STEPS: Final = 8
"""Bisections: a rate is exact to 0.4 %."""


class CountRates(Struct, frozen=True):
    """Rates that a count of workers of a pool, and one worker fewer, serve within the objectives."""

    workers: int
    fewer_per_s: float
    max_per_s: float
    isl_tokens: float
    """Mean lengths of the requests that they are computed for."""
    osl_tokens: float

    def covers(self, requests_per_s: float) -> bool:
        """Return True if a rate needs this count, and not one less."""
        return self.fewer_per_s < requests_per_s <= self.max_per_s or (
            self.workers == 1 and requests_per_s <= self.max_per_s
        )

    def each(self, requests_per_s: float) -> float:
        """Return a rate divided by the workers that it needs, between whole counts by interpolation."""
        beyond = max(0.0, min(requests_per_s, self.max_per_s) - self.fewer_per_s)
        share = beyond / (self.max_per_s - self.fewer_per_s) if self.max_per_s > self.fewer_per_s else 1.0
        needed = self.workers - 1 + share
        return (self.fewer_per_s + beyond) / needed if needed else self.max_per_s


class ProfiledRates(Struct):
    """Rates of the pools that have a profile or known prompt times, at the lengths of the requests of some minutes.

    The more workers share a queue, the more each of them serves: one that must not let a twentieth of the prompts wait
    is idle for most of the time. So the rate of each is that of the count which the demand needs, not of the present
    one: 8 prefill workers served 30 requests/s of a reasoning model, and one served 0.4.
    """

    starts: list[TrafficTotals] = []
    """Totals at the starts of the last intervals."""
    due_ms: int = 0
    counts: dict[str, CountRates] = field(default_factory=dict)
    """Rates of the count that each pool needs."""
    rates: dict[str, float] = field(default_factory=dict)
    """Requests per second that each worker of a pool serves then."""
    lines: Mapping[str, Line] = field(default_factory=dict)
    """Times of the prompts of the prefill pools that have no profile, as of the last update."""

    def update(
        self, model: Model, requests_per_s: Callable[[Pool], float], lines: Mapping[str, Line], now: int
    ) -> None:
        """Compute the rates for the requests that each pool has to serve.

        The lengths of requests count anew every 30 s, more often at first, and if the demand needs another count.

        Args:
            model: The model.
            requests_per_s: Function from a pool to the requests that it has to serve.
            lines: Time in ms of a prompt against its tokens, by prefill pool, for those without a profile.
            now: Unix time in ms.
        """
        self.lines = lines
        profiled = [pool for pool in model.pools.values() if pool.name in lines or profile_problem(pool) is None]
        for former in self.rates.keys() - {pool.name for pool in profiled}:
            self.forget_pool(former)
        totals = model.traffic.totals
        if now >= self.due_ms:
            self.due_ms = now + _FIRST_MS
            is_first = bool(profiled) and not self.rates
            if not is_first:  # at another time for each model: the rates of one take 1 ms
                self.due_ms = now + _INTERVAL_MS - (now + crc32(model.name.encode())) % _INTERVAL_MS
            if not is_first or not self.starts:
                self.starts = [*self.starts[1 - _INTERVALS_MAX :], totals]
            self.counts = {}
        for pool in profiled:
            rate, known = requests_per_s(pool), self.counts.get(pool.name)
            if known is None or not known.covers(rate):
                line = lines.get(pool.name)
                assumed = constant_length if line is None else exponential_length
                demand = _demand(self._window(totals), assumed, attainment_of(model.objectives))
                if demand is None:
                    continue
                sizer = (
                    pool_sizer(pool, model.objectives, demand)
                    if line is None
                    else _prompt_sizer(line, model.objectives, demand)
                )
                if not sizer(1.0).busy:
                    self.forget_pool(pool.name)
                    continue
                known = self.counts[pool.name] = _count_rates(sizer, rate, demand)
            self.rates[pool.name] = known.each(rate)

    def _window(self, totals: TrafficTotals) -> TrafficTotals:
        """Return the traffic of the last intervals, of more of them while these have few requests."""
        found = totals.since(self.starts[max(0, len(self.starts) - _INTERVALS)])
        for start in reversed(self.starts[:-_INTERVALS]):
            if found.osl_tokens.count >= _REQUESTS:
                break
            found = totals.since(start)
        return found

    def forget_pool(self, pool: str) -> None:
        """Drop the rate of a pool."""
        self.counts.pop(pool, None)
        self.rates.pop(pool, None)

    def serves(self, pool: Pool, lengths: Lengths) -> float:
        """Return the requests per second that a worker of a pool serves by its profile; 0 if unknown.

        Requests that have become longer than those of some minutes count at once, beyond chance.
        """
        if pool.name in self.lines:
            return 0.0
        rate, known = self.rates.get(pool.name, 0.0), self.counts.get(pool.name)
        recent = _LONGER * lengths.work(pool.knobs.role)
        if known is None or not recent:
            return rate
        return rate * min(1.0, request_work(pool.knobs.role, known.isl_tokens, known.osl_tokens) / recent)

    def serves_by_line(self, pool: Pool) -> float:
        """Return the requests per second that a prefill worker serves by the time of its prompts; 0 if unknown."""
        return self.rates.get(pool.name, 0.0) if pool.name in self.lines else 0.0


def _demand(
    interval: TrafficTotals, assumed: Callable[[float], LengthDistribution], attainment: float
) -> Demand | None:
    """Return one request per second with the lengths of an interval; None if none has completed.

    Args:
        interval: The traffic.
        assumed: Function from a mean length to the distribution where no histogram is reported.
        attainment: Fraction (0..1) of the requests that are to meet the objectives.
    """
    isl = _lengths(interval.isl_bins, interval.isl_tokens, assumed)
    osl = _lengths(interval.osl_bins, interval.osl_tokens, assumed)
    if isl is None or osl is None:
        return None
    return Demand(1.0, isl, osl, attainment, kv_hit_rate=interval.kv_hit_rate)


def _lengths(
    bins: Bins, mean: RunningMean, assumed: Callable[[float], LengthDistribution]
) -> LengthDistribution | None:
    if not mean.value:
        return None
    return lengths_from_histogram(bins, mean.value) or assumed(mean.value)


def _prompt_sizer(line: Line, objectives: ObjectiveKnobs, demand: Demand) -> Sizer:
    """Return the sizing of a prefill pool by the time that its prompts take, cached tokens included."""
    times_ms = tuple(zip(map(line.at, demand.isl.tokens), demand.isl.shares, strict=True))
    prompts = Prompts(line, max(demand.isl.mean, 1.0), demand.isl.variability, times_ms)
    sizing = PrefillSizing(prompts, objectives.ttft_ms, demand.attainment)

    def size(factor: float) -> Size:
        engines = sizing.engines(demand.requests_per_s * factor)
        return Size(engines.busy, engines.workers)

    return size


def _count_rates(sizer: Sizer, requests_per_s: float, demand: Demand) -> CountRates:
    """Return the rates of the count of workers that a rate needs, for requests of the demand's lengths."""
    workers = max(1, sizer(requests_per_s).replicas)
    fewer_per_s, max_per_s = _max_rate(sizer, workers - 1), max(requests_per_s, _max_rate(sizer, workers))
    return CountRates(workers, fewer_per_s, max_per_s, demand.isl.mean, demand.osl.mean)


def _max_rate(sizer: Sizer, workers: int) -> float:
    """Return the largest rate that needs no more workers."""
    low, high = 0.0, workers / sizer(1.0).busy
    for _ in range(_STEPS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if sizer(middle).replicas <= workers else (low, middle)
    return low
