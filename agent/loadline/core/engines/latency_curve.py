"""Latency of a worker by the work that it serves, learned from what a fleet reports.

A batching engine takes a fixed time per iteration and a time per unit of work. Over the work rate ``x`` its latency is
therefore ``base / (1 - x / full)``: the reciprocal of the latency falls linearly with the rate, from ``1 / base``
without load to 0 at saturation. Real engines are nearly so; the curve is linear between the observed points.
"""

from functools import cached_property
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
_CHANCE: Final = 2.0
"""Standard deviations of the points of a rate up to which a late one may be chance."""
_CHANCE_RATIO_MAX: Final = 4.0
"""Ratio to the limit from which on a latency is no chance."""
_WIDE: Final = 2.0
"""Ratio of two rates from which on the line through them tells the latency without load, though both are late."""
_UNLOADED: Final = 1.25
"""Ratio of the latency at the lower one to that without load up to which the line is straight enough to end there."""
_FLOOR_MARGIN: Final = 0.1
"""Part of the objective by which the latency without load must be above it, or below it again: less may be chance."""
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
    """Mean squared deviation of the points, relative to their mean; that of a point is 1 at most."""

    def add(self, rate: float, inverse: float, now: int) -> None:
        """Add a point."""
        self.points, self.at_ms = self.points + 1, now
        weight = 1.0 / min(self.points, _POINTS)
        self.spread += (min(1.0, (inverse / self.inverse - 1.0) ** 2) - self.spread) * weight
        self.rate += (rate - self.rate) * weight
        self.inverse += (inverse - self.inverse) * weight


class LatencyCurve(Struct, dict=True):
    """Observed latency over the work rate of one worker, in any unit of work per second.

    Points come every few seconds, or never in an overload, while plans look rates up ten times a second. So what
    follows from the bins alone is kept until the next point. It is no field: a snapshot does not have it.
    """

    bins: dict[int, RateBin] = field(default_factory=dict)
    """Bins by half octave of the rate."""
    base_min_ms: float = _UNBOUNDED_MS
    """Lowest latency without load that any point alone suggests: the line through the points goes no lower."""
    latest_rate: float = 0.0
    latest_ms: float = 0.0
    latest_is_chance: bool = False
    """True if it differs no more from the points before of its rate than these may by chance."""
    floor_ms: float = 0.0
    """Latency without load, while the points show that it is above the objective; 0 otherwise."""

    def add(self, rate: float, latency_ms: float, base_min_ms: float, now: int) -> None:
        """Add a point.

        Args:
            rate: Work per second of one worker.
            latency_ms: Mean latency at this rate.
            base_min_ms: Latency without load that this point alone suggests.
            now: Unix time in ms.
        """
        self.base_min_ms = min(self.base_min_ms, base_min_ms)
        self.latest_rate, self.latest_ms, self.latest_is_chance = rate, latency_ms, False
        if rate <= 0.0:
            return
        self.__dict__.clear()
        for stale in [key for key, one in self.bins.items() if now - one.at_ms > _STALE_MS]:
            del self.bins[stale]
        key = floor(_BINS_PER_OCTAVE * log2(rate))
        known = self.bins.get(key)
        if known is None:
            self.bins[key] = RateBin(rate, 1.0 / latency_ms, now)
        else:
            lower = 1.0 - 1.0 / (latency_ms * known.inverse)
            self.latest_is_chance = known.points >= _POINTS and lower < _CHANCE * sqrt(known.spread)
            known.add(rate, 1.0 / latency_ms, now)

    def learn_floor(self, objective_ms: float) -> None:
        """Record the latency without load if it is above the objective, which no rate meets then.

        It is the intercept of the line through the lowest and the highest rate, if the lowest is sure and nearly
        without load. A rate within the objective refutes it. So does its age: engines may have become faster since.
        """
        if not self.bins:
            return
        lowest, highest = self.rising[0], self.rising[-1]
        if self.highest_rate_within(objective_ms) or highest.rate < _WIDE * lowest.rate:
            self.floor_ms = 0.0
            return
        fall = max(0.0, lowest.inverse - highest.inverse) / (highest.rate - lowest.rate)
        found_ms = 1.0 / (lowest.inverse + fall * lowest.rate)
        is_sure = lowest.points >= _POINTS and found_ms * lowest.inverse * _UNLOADED >= 1.0
        if found_ms < (1.0 - _FLOOR_MARGIN) * objective_ms:
            self.floor_ms = 0.0
        elif is_sure and found_ms > (1.0 + _FLOOR_MARGIN) * objective_ms:
            self.floor_ms = found_ms

    @cached_property
    def keys(self) -> list[int]:
        """Keys of the bins by rising rate."""
        return sorted(self.bins)

    @cached_property
    def newest_ms(self) -> int:
        """Time of the latest point in the bins; 0 without any."""
        return max((one.at_ms for one in self.bins.values()), default=0)

    @cached_property
    def rising(self) -> list[RateBin]:
        """Bins by rising rate."""
        return [self.bins[key] for key in self.keys]

    def base_ms(self, limit_ms: float) -> float:
        """Return the latency without load: the intercept of the line through the lowest and the highest rate."""
        bins = self.rising
        within = next((one for one in bins if one.inverse * limit_ms > 1.0), None)
        if within is None:
            return min(self.base_min_ms, _BASE_SHARE * limit_ms)
        highest, bound = bins[-1], max(1.0 / self.base_min_ms, within.inverse)
        if highest.rate <= _SPREAD * within.rate:
            return 1.0 / bound
        fall = max(0.0, within.inverse - highest.inverse) / (highest.rate - within.rate)
        return 1.0 / min(within.inverse + fall * within.rate, bound)

    def rate_within(self, limit_ms: float, *, extrapolate: bool = True, rate_max: float = inf) -> float:
        """Return the work rate at which the mean latency is the limit; infinite if no observed rate reaches it.

        Args:
            limit_ms: The limit.
            extrapolate: Also estimate a rate above the observed ones, along the line through them. Otherwise a latest
                point above the limit that may be chance does not count.
            rate_max: Bound of such an estimate, which also holds where the latency does not rise.
        """
        if not self.bins:
            return inf
        bound, base_ms = 1.0 / limit_ms, self.base_ms(limit_ms)
        rate, inverse = 0.0, max(1.0 / base_ms, 1.02 * bound)
        found = inf
        for one_rate, one_inverse in self._falling:
            lower = min(one_inverse, inverse)
            if lower <= bound:
                found = rate + (one_rate - rate) * (inverse - bound) / max(inverse - lower, 1e-12)
                break
            rate, inverse = one_rate, lower
        fall = (1.0 / base_ms - inverse) / rate if rate else 0.0
        if found == inf and extrapolate:
            line = min(1.0 / base_ms - bound, _UTILISATION_MAX / base_ms) / fall if fall > 0.0 else inf
            found = max(rate, min(line, rate_max))
        if not extrapolate and self.latest_ms < _CHANCE_RATIO_MAX * limit_ms and self.latest_is_chance:
            return found
        return self._within_latest(found, limit_ms, base_ms)

    def rate_without_late(self, limit_ms: float) -> float:
        """Return the work rate at which the line through the highest rate within the limit reaches it.

        The line begins with the latency without load. A full batch takes no more requests, so the latency of an
        overloaded worker stays; late points therefore flatten the curve, and a rate between them and those within the
        limit seems to be within it too. Infinite if no rate is within the limit, or the latency does not rise.
        """
        within = [one for one in self._falling if one[1] * limit_ms > 1.0]
        if not within:
            return inf
        (rate, inverse), base = within[-1], 1.0 / self.base_ms(limit_ms)
        return rate * (base - 1.0 / limit_ms) / (base - inverse) if base > inverse else inf

    @cached_property
    def _falling(self) -> list[tuple[float, float]]:
        """Rates with reciprocals of the latency that never rise with the rate: the least squares by points.

        A latency that is higher than those at higher rates is that of chance, so the points of all these rates tell it
        together: isotonic regression by pooled adjacent violators (Barlow et al., Statistical Inference under Order
        Restrictions, 1972). ``_POINTS`` that are later than those of the higher rates are no chance: the mix of
        requests or the engine has changed, so they count alone.
        """
        pooled: list[tuple[float, float, int, list[float]]] = []
        for one in self.rising:
            weight, inverse, at_ms, rates = float(min(one.points, _POINTS)), one.inverse, one.at_ms, [one.rate]
            while pooled and pooled[-1][1] < inverse:
                before_weight, before_inverse, before_ms, before_rates = pooled.pop()
                is_chance = before_weight < _POINTS or before_ms <= at_ms
                total = weight + before_weight
                inverse = (inverse * weight + before_inverse * before_weight) / total if is_chance else before_inverse
                weight, at_ms, rates = total, max(at_ms, before_ms), before_rates + rates
            pooled.append((weight, inverse, at_ms, rates))
        return [(rate, inverse) for _, inverse, _, rates in pooled for rate in rates]

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
        top, base = self.rising[-1], 1.0 / self.base_ms(limit_ms)
        fall = (base - top.inverse) / top.rate
        return base / fall if fall > 0.0 else inf

    def saturated_rate(self, limit_ms: float) -> float:
        """Return the full rate, at most a little above the observed rates; 0 if unknown."""
        if not self.bins:
            return 0.0
        full, top = self.full_rate(limit_ms), self.rising[-1].rate
        return top if full == inf else min(full, _FULL_MAX * top)

    def service_rate(self, work: float, limit_ms: float) -> float:
        """Return the highest work rate that the points show of a worker that serves one request after the other.

        With equal requests that arrive at random (M/D/1), the mean wait at the rate ``x`` is ``x / (2 u (u - x))`` for
        the service rate ``u`` (Pollaczek and Khinchine). So ``u`` is ``(x + y + sqrt(x^2 + y^2)) / 2`` where ``1 / y``
        is the latency. The highest of single points would be chance, so a bin counts once it has ``_POINTS``. Of late
        bins, the rate may be that of requests which wait where nobody reports it.

        Args:
            work: Work of a request.
            limit_ms: Latency up to which a bin counts. The latency without load always does.
        """
        found = 1_000.0 * work / self.base_ms(limit_ms)
        for one in self.bins.values():
            if one.points >= _POINTS and one.inverse * limit_ms > 1.0:
                alone = 1_000.0 * work * one.inverse
                found = max(found, (one.rate + alone + hypot(one.rate, alone)) / 2.0)
        return found

    def error(self, rate: float) -> float:
        """Return the relative standard error of a rate that the curve gives; infinite without points.

        It is that of the mean of all points, and the part of the rate that lies beyond the observed ones. One point
        says nothing of the spread, so it counts with that of ``_PRIOR_SPREAD``.
        """
        points = sum(one.points for one in self.bins.values())
        if not points or rate <= 0.0:
            return inf
        squares = _PRIOR_SPREAD**2 + sum(one.spread * one.points for one in self.bins.values())
        beyond = max(0.0, 1.0 - self.rising[-1].rate / rate)
        return hypot(sqrt(squares / (1.0 + points) / points), beyond)

    def rises(self, limit_ms: float) -> bool:
        """Return False if an observed rate is within the limit although a lower one is not: the load is not why."""
        late = min((one.rate for one in self.bins.values() if one.inverse * limit_ms <= 1.0), default=inf)
        return late >= self.highest_rate_within(limit_ms)

    def highest_rate_within(self, limit_ms: float) -> float:
        """Return the highest observed rate within the limit; 0 if there is none."""
        return max((one.rate for one in self.bins.values() if one.inverse * limit_ms > 1.0), default=0.0)
