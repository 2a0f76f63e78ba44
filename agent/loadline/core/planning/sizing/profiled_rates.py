"""Requests per second that a worker serves within the objectives, by the profile of its engine."""

from typing import Final
from zlib import crc32

from msgspec import Struct, field

from loadline.core.engines.lengths import LengthDistribution, constant_length, lengths_from_histogram
from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.traffic_totals import RunningMean, TrafficTotals
from loadline.core.planning.sizing.sizing_by_profile import Demand, Sizer, pool_sizer, profile_problem
from loadline.core.vocabulary.samples import Bins

_ATTAINMENT: Final = 0.95
_INTERVAL_MS: Final = 30_000
_INTERVALS: Final = 5
"""Intervals of the window of the lengths: 150 s, more than most changes by chance last."""
_FIRST_MS: Final = 5_000
_STEPS: Final = 8
"""Bisections: a rate is exact to 0.4 %."""


class ProfiledRates(Struct):
    """Rates of the pools that have a profile, at the lengths of the requests of some minutes."""

    starts: list[TrafficTotals] = []
    """Totals at the starts of the last intervals."""
    due_ms: int = 0
    rates: dict[str, tuple[int, float]] = field(default_factory=dict)
    """Workers of a pool, and requests per second that each of so many serves."""

    def update(self, model: Model, now: int) -> None:
        """Compute the rates anew if workers have changed, or every 30 s for new lengths; more often at first."""
        profiled = [pool for pool in model.pools.values() if profile_problem(pool) is None]
        if not profiled:
            return
        totals = model.traffic.totals
        if now >= self.due_ms:
            self.due_ms = now + _FIRST_MS
            if self.rates:  # at another time for each model: the rates of one take 1 ms
                self.due_ms = now + _INTERVAL_MS - (now + crc32(model.name.encode())) % _INTERVAL_MS
            if self.rates or not self.starts:
                self.starts = [*self.starts[1 - _INTERVALS :], totals]
            self.rates = {}
        counts = {pool.name: max(1, pool.effective_target(now)) for pool in profiled}
        changed = [pool for pool in profiled if self.rates.get(pool.name, (0, 0.0))[0] != counts[pool.name]]
        demand = _demand(totals.since(self.starts[0])) if changed else None
        if demand is not None:
            for pool in changed:
                rate = _rate(pool, model.objectives, demand, counts[pool.name])
                self.rates[pool.name] = counts[pool.name], rate

    def forget_pool(self, pool: str) -> None:
        """Drop the rate of a pool."""
        self.rates.pop(pool, None)

    def serves(self, pool: Pool) -> float:
        """Return the requests per second that a worker of a pool serves; 0 if unknown."""
        return self.rates.get(pool.name, (0, 0.0))[1]


def _demand(interval: TrafficTotals) -> Demand | None:
    """Return one request per second with the lengths of an interval; None if none has completed."""
    isl = _lengths(interval.isl_bins, interval.isl_tokens)
    osl = _lengths(interval.osl_bins, interval.osl_tokens)
    if isl is None or osl is None:
        return None
    return Demand(1.0, isl, osl, _ATTAINMENT, kv_hit_rate=interval.kv_hit_rate)


def _lengths(bins: Bins, mean: RunningMean) -> LengthDistribution | None:
    if not mean.value:
        return None
    return lengths_from_histogram(bins, mean.value) or constant_length(mean.value)


def _rate(pool: Pool, objectives: ObjectiveKnobs, demand: Demand, workers: int) -> float:
    """Return the largest rate that needs no more workers, divided by them."""
    sizer: Sizer = pool_sizer(pool, objectives, demand)
    busy = sizer(1.0).busy
    if not busy:
        return 0.0
    low, high = 0.0, workers / busy
    for _ in range(_STEPS):
        middle = (low + high) / 2.0
        low, high = (middle, high) if sizer(middle).replicas <= workers else (low, middle)
    return low / workers
