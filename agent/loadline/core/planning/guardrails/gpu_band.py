"""Counts of pools within a band of GPUs.

The arithmetic is that of Dynamo's planners, for any number of pools. The ceiling is hard. The floor, if there is also a
ceiling, may be missed by up to the GPUs of the widest worker, as workers of unequal width cannot meet every total.
Counts are shrunk and grown in proportion.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

INFEASIBLE: Final = 0
"""Count of every pool if the minimum counts exceed the ceiling."""


class PoolGpus(Struct, frozen=True):
    """GPU demand of a pool: its count and the GPUs of a worker."""

    replicas: int
    gpus: int
    """GPUs of one worker; at least 1."""
    replicas_min: int = 1
    """Minimum count, which is always reserved."""
    replicas_max: int | None = None
    """Maximum count; None: unlimited."""

    @property
    def total(self) -> int:
        """GPUs of all workers."""
        return self.replicas * self.gpus

    def capped(self, count: int) -> int:
        """Return a count, limited to the maximum."""
        return count if self.replicas_max is None else min(count, self.replicas_max)


class GpuBand(Struct, frozen=True):
    """Range for the GPUs of all pools together; None: no such bound."""

    floor: int | None = None
    ceiling: int | None = None
    exact: bool = False
    """True if the floor must be met although there is a ceiling, since they belong to different budgets."""

    def tolerance(self, *widths: int) -> int:
        """Return the GPUs by which the floor may be missed: those of the widest worker if there is a ceiling too."""
        relaxed = self.floor is not None and self.ceiling is not None and not self.exact
        return widest(*widths) if relaxed else 0

    def is_exceeded_by(self, gpus: int) -> bool:
        """Return True if a number of GPUs exceeds the ceiling."""
        return self.ceiling is not None and gpus > self.ceiling

    def contains(self, gpus: int, tolerance: int = 0) -> bool:
        """Return True if a number of GPUs is within the band."""
        return not self.is_exceeded_by(gpus) and (self.floor is None or gpus >= self.floor - tolerance)

    def is_at_ceiling(self, gpus: int) -> bool:
        """Return True if one more GPU would exceed the ceiling."""
        return self.ceiling is not None and gpus >= self.ceiling

    def is_at_floor(self, gpus: int) -> bool:
        """Return True if one GPU less would fall below the floor."""
        return self.floor is not None and gpus <= self.floor


def widest(*widths: int) -> int:
    """Return the GPUs of the widest worker; widths that are not above 0 are unknown."""
    return max((width for width in widths if width > 0), default=0)


def ceil_div(numerator: int, denominator: int) -> int:
    """Divide and round up."""
    return -(-numerator // denominator)


def total_of(pools: Sequence[PoolGpus], counts: Sequence[int]) -> int:
    """Return the GPUs of all pools with these counts."""
    return sum(count * pool.gpus for pool, count in zip(pools, counts, strict=True))


def fit(pools: Sequence[PoolGpus], band: GpuBand) -> list[int]:
    """Shrink counts below the ceiling or grow them to the floor, in proportion.

    Returns:
        The counts; unchanged if they are in the band, or if the floor cannot be met below the ceiling. ``INFEASIBLE``
        for all pools if the minimum counts exceed the ceiling.
    """
    counts = [pool.replicas for pool in pools]
    gpus = sum(pool.total for pool in pools)
    if band.ceiling is not None and gpus > band.ceiling:
        return _shrunk(pools, gpus, band.ceiling)
    if band.floor is None or band.contains(gpus, band.tolerance(*(pool.gpus for pool in pools))):
        return counts
    grown = _grown(pools, gpus, band.floor, band.ceiling)
    return counts if band.is_exceeded_by(total_of(pools, grown)) else grown


def _shrunk(pools: Sequence[PoolGpus], gpus: int, ceiling: int) -> list[int]:
    """Shrink counts: each pool gets its share of what earlier pools leave, minus the minimums of later pools."""
    reserved = sum(pool.replicas_min * pool.gpus for pool in pools)
    if reserved > ceiling:
        return [INFEASIBLE] * len(pools)
    counts: list[int] = []
    for pool in pools:
        reserved -= pool.replicas_min * pool.gpus
        share = pool.replicas * ceiling // gpus if gpus else 0
        counts.append(max(pool.replicas_min, min(pool.replicas, share, (ceiling - reserved) // pool.gpus)))
        ceiling -= counts[-1] * pool.gpus
        gpus -= pool.total
    return counts


def _grown(pools: Sequence[PoolGpus], gpus: int, floor: int, ceiling: int | None) -> list[int]:
    """Grow counts: each pool adds its share of the GPUs that are still missing, rounded up; no pool shrinks."""
    shares: list[int] = []
    missing = floor
    for number, pool in enumerate(pools):
        evenly = ceil_div(missing, (len(pools) - number) * pool.gpus)
        share = ceil_div(pool.replicas * missing, gpus) if gpus > 0 else evenly
        shares.append(pool.capped(max(pool.replicas_min, share)))
        missing = max(0, missing - shares[-1] * pool.gpus)
        gpus -= pool.total
    counts = [max(share, pool.replicas) for share, pool in zip(shares, pools, strict=True)]
    for number, pool in enumerate(pools):  # pools at their maximum leave GPUs to the others
        missing = floor - total_of(pools, counts)
        counts[number] = max(counts[number], pool.capped(counts[number] + max(0, ceil_div(missing, pool.gpus))))
    # Rounding up wide workers of the first pools may exceed the ceiling. As the later pools must not shrink for that,
    # the first ones release the excess. If rounding alone exceeds the ceiling, the floor is missed instead.
    if ceiling is not None and (len(pools) == 1 or counts != shares):
        for number, pool in enumerate(pools):
            excess = max(0, total_of(pools, counts) - ceiling)
            counts[number] = max(pool.replicas_min, pool.replicas, counts[number] - ceil_div(excess, pool.gpus))
    return counts
