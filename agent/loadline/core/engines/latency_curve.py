"""Latency of a worker by the work that it serves, learned from what a fleet reports.

A batching engine takes a fixed time per iteration and a time per unit of work. Over the work rate ``x`` its latency is
therefore ``base / (1 - x / full)``: the reciprocal of the latency falls linearly with the rate, from ``1 / base``
without load to 0 at saturation. Real engines are nearly so; the curve is linear between the observed points.
"""

from math import floor, hypot, inf, log2, sqrt
from typing import Final

from msgspec import Struct, field

_UNBOUNDED_MS: Final = 1e9
"""A latency above all others: an infinite one cannot be encoded."""
_UTILISATION_MAX: Final = 0.92
"""Largest extrapolated share of the saturated rate: close to saturation, a small error of the rate is a long queue."""
_BINS_PER_OCTAVE: Final = 2.0
_POINTS: Final = 8
"""Points of a bin after which new ones replace old ones: the mix of requests changes."""
_STALE_MS: Final = 1_800_000
_BASE_SHARE: Final = 0.35
"""Part of the limit that the base is assumed to be while only latencies above the limit are known."""
_SPREAD: Final = 1.5
"""Ratio of rates from which on two bins determine the base."""
_OVERLOAD_MIN: Final = 0.6
"""Smallest factor by which the latest point alone lowers the rate within the limit."""
_PRIOR_SPREAD: Final = 0.2
"""Relative deviation of a latency from its mean before points show it."""
_FULL_MAX: Final = 1.3
"""Largest ratio of the extrapolated saturated rate to the highest observed rate."""


class RateBin(Struct):
    """Means of the points of similar rates."""

    rate: float
    inverse: float
    """Reciprocal of the latency in ms."""
    at_ms: int
    points: int = 1
    spread: float = 0.0
    """Mean squared deviation of the points, relative to their mean."""

    def add(self, rate: float, inverse: float, now: int) -> None:
        """Add a point."""
        self.points, self.at_ms = self.points + 1, now
        weight = 1.0 / min(self.points, _POINTS)
        self.spread += ((inverse / self.inverse - 1.0) ** 2 - self.spread) * weight
        self.rate += (rate - self.rate) * weight
        self.inverse += (inverse - self.inverse) * weight


class LatencyCurve(Struct):
    """Observed latency over the work rate of one worker, in any unit of work per second."""

    bins: dict[int, RateBin] = field(default_factory=dict)
    """Bins by half octave of the rate."""
    base_min_ms: float = _UNBOUNDED_MS
    """Lowest latency without load that any point alone suggests: the line through the points goes no lower."""
    latest_rate: float = 0.0
    latest_ms: float = 0.0

    def add(self, rate: float, latency_ms: float, base_min_ms: float, now: int) -> None:
        """Add a point.

        Args:
            rate: Work per second of one worker.
            latency_ms: Mean latency at this rate.
            base_min_ms: Latency without load that this point alone suggests.
            now: Unix time in ms.
        """
        self.base_min_ms = min(self.base_min_ms, base_min_ms)
        self.latest_rate, self.latest_ms = rate, latency_ms
        if rate <= 0.0:
            return
        for stale in [key for key, one in self.bins.items() if now - one.at_ms > _STALE_MS]:
            del self.bins[stale]
        key = floor(_BINS_PER_OCTAVE * log2(rate))
        known = self.bins.get(key)
        if known is None:
            self.bins[key] = RateBin(rate, 1.0 / latency_ms, now)
        else:
            known.add(rate, 1.0 / latency_ms, now)

    def base_ms(self, limit_ms: float) -> float:
        """Return the latency without load: the intercept of the line through the lowest and the highest rate."""
        bins, keys = self.bins, sorted(self.bins)
        within = next((bins[key] for key in keys if bins[key].inverse * limit_ms > 1.0), None)
        if within is None:
            return min(self.base_min_ms, _BASE_SHARE * limit_ms)
        highest, bound = bins[keys[-1]], max(1.0 / self.base_min_ms, within.inverse)
        if highest.rate <= _SPREAD * within.rate:
            return 1.0 / bound
        fall = max(0.0, within.inverse - highest.inverse) / (highest.rate - within.rate)
        return 1.0 / min(within.inverse + fall * within.rate, bound)

    def rate_within(self, limit_ms: float, *, extrapolate: bool = True, most: float = inf) -> float:
        """Return the work rate at which the mean latency is the limit; infinite if no observed rate reaches it.

        Args:
            limit_ms: The limit.
            extrapolate: Also estimate a rate above the observed ones, along the line through them.
            most: Bound of such an estimate, which also holds where the latency does not rise.
        """
        if not self.bins:
            return inf
        bound, base_ms = 1.0 / limit_ms, self.base_ms(limit_ms)
        rate, inverse = 0.0, max(1.0 / base_ms, 1.02 * bound)
        found = inf
        for key in sorted(self.bins):
            one = self.bins[key]
            lower = min(one.inverse, inverse)
            if lower <= bound:
                found = rate + (one.rate - rate) * (inverse - bound) / max(inverse - lower, 1e-12)
                break
            rate, inverse = one.rate, lower
        fall = (1.0 / base_ms - inverse) / rate if rate else 0.0
        if found == inf and extrapolate:
            line = min(1.0 / base_ms - bound, _UTILISATION_MAX / base_ms) / fall if fall > 0.0 else inf
            found = max(rate, min(line, most))
        return self._within_latest(found, limit_ms, base_ms)

    def _within_latest(self, found: float, limit_ms: float, base_ms: float) -> float:
        """Lower a rate at once if the latest point exceeds the limit: the bins follow slowly."""
        if self.latest_ms <= limit_ms or not self.latest_rate or base_ms >= limit_ms:
            return found
        here = self.latest_rate * (1.0 - base_ms / limit_ms) / (1.0 - base_ms / self.latest_ms)
        return min(found, max(here, _OVERLOAD_MIN * found if found < inf else here))

    def full_rate(self, limit_ms: float) -> float:
        """Return the work rate at which the line through the points has no bound; infinite if latency does not rise."""
        if not self.bins:
            return inf
        top, base = self.bins[max(self.bins)], 1.0 / self.base_ms(limit_ms)
        fall = (base - top.inverse) / top.rate
        return base / fall if fall > 0.0 else inf

    def saturated_rate(self, limit_ms: float) -> float:
        """Return the full rate, at most a little above the observed rates; 0 if unknown."""
        if not self.bins:
            return 0.0
        full, top = self.full_rate(limit_ms), self.bins[max(self.bins)].rate
        return top if full == inf else min(full, _FULL_MAX * top)

    def error(self, rate: float) -> float:
        """Return the relative standard error of a rate that the curve gives; infinite without points.

        It is that of the mean of all points, and the part of the rate that lies beyond the observed ones. One point
        says nothing of the spread, so it counts with that of ``_PRIOR_SPREAD``.
        """
        points = sum(one.points for one in self.bins.values())
        if not points or rate <= 0.0:
            return inf
        squares = _PRIOR_SPREAD**2 + sum(one.spread * one.points for one in self.bins.values())
        beyond = max(0.0, 1.0 - self.bins[max(self.bins)].rate / rate)
        return hypot(sqrt(squares / (1.0 + points) / points), beyond)

    def rises(self, limit_ms: float) -> bool:
        """Return False if an observed rate is within the limit although a lower one is not: the load is not why."""
        late = min((one.rate for one in self.bins.values() if one.inverse * limit_ms <= 1.0), default=inf)
        return late >= self.highest_rate_within(limit_ms)

    def highest_rate_within(self, limit_ms: float) -> float:
        """Return the highest observed rate within the limit; 0 if there is none."""
        return max((one.rate for one in self.bins.values() if one.inverse * limit_ms > 1.0), default=0.0)
