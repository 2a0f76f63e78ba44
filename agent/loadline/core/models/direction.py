"""A proposal within a band of GPUs that never says the opposite of what a planner said.

A bound may suppress a step, never turn it around: no pool is shrunk that was to be held, so that another may grow. Two
opposite steps happen both or neither, for one that only gives and feeds nobody is a loss. Only a fleet that is outside
of its band already is brought back whatever was proposed, and so is a pool below its least count.
"""

from typing import Final, Literal

from msgspec import Struct

from loadline.core.models.budget import Band, Share, ceil_div, fit_pair, fit_single

HELD: Final = "gpu_budget_guard_hold"
RECONCILED: Final = "gpu_budget_reconcile"
Why = Literal["gpu_budget_guard_hold", "gpu_budget_reconcile"] | None


class Leg(Struct, frozen=True):
    """A pool: the count that stands, and the one that is proposed."""

    current: int
    proposed: int
    gpus: int
    """Of one worker."""
    least: int = 1

    @property
    def step(self) -> int:
        """1: it is to grow; -1: to shrink; 0: neither."""
        return (self.proposed > self.current) - (self.proposed < self.current)

    def between(self, count: int) -> bool:
        """Whether a count lies between the two."""
        return min(self.current, self.proposed) <= count <= max(self.current, self.proposed)

    def standing(self) -> Share:
        """Its claim as it is."""
        return Share(self.current, self.gpus, self.least)

    def wanted(self) -> Share:
        """Its claim as proposed."""
        return Share(self.proposed, self.gpus, self.least)


class Guarded(Struct, frozen=True):
    """The counts of both pools, and why they are others than the proposed, where they are."""

    prefill: int
    decode: int
    why: Why = None


def guard_pair(prefill: Leg, decode: Leg, band: Band) -> Guarded:
    """Both counts within the band, each between what stands and what is proposed."""
    if prefill.gpus <= 0 or decode.gpus <= 0:
        return Guarded(prefill.proposed, decode.proposed)
    tolerance = band.tolerance(prefill.gpus, decode.gpus)
    standing = prefill.standing().total + decode.standing().total
    if not band.holds(standing, tolerance):
        return Guarded(*fit_pair(prefill.standing(), decode.standing(), band), RECONCILED)
    steps = (prefill.step, decode.step)
    opposite = prefill.step * decode.step < 0
    held = Guarded(prefill.current, decode.current, HELD)
    if not opposite and ((band.spent(standing) and -1 in steps) or (band.full(standing) and 1 in steps)):
        return held
    if opposite and (band.spent(standing) or band.full(standing)):
        fitted = fit_direction(prefill, decode, band)
        return held if fitted == (prefill.current, decode.current) else Guarded(*fitted)
    first, second = fit_pair(prefill.wanted(), decode.wanted(), band)
    within = band.holds(first * prefill.gpus + second * decode.gpus, tolerance)
    return Guarded(first, second) if within and prefill.between(first) and decode.between(second) else held


def guard_single(pool: Leg, band: Band) -> tuple[int, Why]:
    """The count of the only pool; see ``guard_pair``."""
    if pool.gpus <= 0:
        return pool.proposed, None
    standing = pool.standing().total
    if not band.holds(standing, band.tolerance(pool.gpus)):
        return fit_single(pool.standing(), band), RECONCILED
    if (band.spent(standing) and pool.step < 0) or (band.full(standing) and pool.step > 0):
        return pool.current, HELD
    count = fit_single(pool.wanted(), band)
    return (count, None) if pool.between(count) else (pool.current, HELD)


def settle_pair(prefill: Leg, decode: Leg, band: Band) -> Guarded:
    """What a planner's proposal may become: ``guard_pair``, unless a pool is below its least count.

    That one is brought up, if need be at the other's expense: a least count is the operator's word.
    """
    if prefill.gpus <= 0 or decode.gpus <= 0 or (prefill.current >= prefill.least and decode.current >= decode.least):
        return guard_pair(prefill, decode, band)
    first = Share(max(prefill.proposed, prefill.least), prefill.gpus, prefill.least)
    second = Share(max(decode.proposed, decode.least), decode.gpus, decode.least)
    return Guarded(*fit_pair(first, second, band), RECONCILED)


def fit_direction(prefill: Leg, decode: Leg, band: Band) -> tuple[int, int]:
    """The counts nearest to the proposal that the band holds, each between what stands and what is proposed.

    Of equally near ones: that which moves both in proportion, then that which moves most. Opposite steps move both or
    none. What stands, where the band holds nothing. Callers bound the steps first: it tries each count of prefill.
    """
    tolerance = band.tolerance(prefill.gpus, decode.gpus)
    wanted = prefill.wanted().total + decode.wanted().total
    allowed = prefill.proposed >= prefill.least and decode.proposed >= decode.least
    if prefill.gpus <= 0 or decode.gpus <= 0 or (allowed and band.holds(wanted, tolerance)):
        return prefill.proposed, decode.proposed
    best = min(_candidates(prefill, decode, band, tolerance), default=None)
    return (prefill.current, decode.current) if best is None else best[-2:]


def _candidates(prefill: Leg, decode: Leg, band: Band, tolerance: int) -> list[tuple[int, int, int, int, int]]:
    """For each count of prefill the nearest of decode, as (distance, skew, -moved, prefill, decode)."""
    found = []
    opposite = prefill.step * decode.step < 0
    asked = (abs(prefill.proposed - prefill.current), abs(decode.proposed - decode.current))
    lowest = max(min(prefill.current, prefill.proposed), prefill.least)
    for first in range(lowest, max(prefill.current, prefill.proposed) + 1):
        moved = abs(first - prefill.current)
        low = max(min(decode.current, decode.proposed), decode.least)
        high = max(decode.current, decode.proposed)
        if opposite and moved == 0:
            low, high = max(low, decode.current), min(high, decode.current)
        elif opposite and decode.step > 0:
            low = max(low, decode.current + 1)
        elif opposite:
            high = min(high, decode.current - 1)
        cost = first * prefill.gpus
        if band.floor is not None:
            low = max(low, ceil_div(band.floor - tolerance - cost, decode.gpus))
        if band.ceiling is not None:
            high = min(high, (band.ceiling - cost) // decode.gpus)
        if low > high:
            continue
        second = min(max(decode.proposed, low), high)
        other = abs(second - decode.current)
        distance = abs(prefill.proposed - first) + abs(decode.proposed - second)
        found.append((distance, abs(moved * asked[1] - other * asked[0]), -(moved + other), first, second))
    return found
