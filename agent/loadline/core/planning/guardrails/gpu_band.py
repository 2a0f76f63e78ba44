"""Counts of pools within a band of GPUs.

The arithmetic is that of Dynamo's planners, for any number of pools. The ceiling is hard. The floor is relaxed by the
widest worker where there is a ceiling too: steps of unequal width cannot meet every total. Shares stay in proportion
both ways.
"""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

INFEASIBLE: Final = 0
"""The count of every pool when not even the least counts fit below the ceiling."""


class PoolGpus(Struct, frozen=True):
    """A pool's claim on the GPUs."""

    replicas: int
    gpus: int
    """GPUs of one worker; at least 1."""
    least: int = 1
    """Replicas that it always gets."""
    most: int | None = None
    """Replicas that it never exceeds; None: no such bound."""

    @property
    def total(self) -> int:
        """GPUs in all."""
        return self.replicas * self.gpus

    def capped(self, count: int) -> int:
        """A count, but no more than the most."""
        return count if self.most is None else min(count, self.most)


class GpuBand(Struct, frozen=True):
    """The GPUs that all pools together may have; None: no such bound."""

    floor: int | None = None
    ceiling: int | None = None
    exact: bool = False
    """True if the floor is exact although there is a ceiling: they belong to different budgets."""

    def tolerance(self, *widths: int) -> int:
        """GPUs by which the floor may be missed: the width of the widest worker, where there is a ceiling too."""
        relaxed = self.floor is not None and self.ceiling is not None and not self.exact
        return widest(*widths) if relaxed else 0

    def above(self, gpus: int) -> bool:
        """Return True if so many GPUs exceed the ceiling."""
        return self.ceiling is not None and gpus > self.ceiling

    def holds(self, gpus: int, tolerance: int = 0) -> bool:
        """Return True if so many GPUs are within the band."""
        return not self.above(gpus) and (self.floor is None or gpus >= self.floor - tolerance)

    def full(self, gpus: int) -> bool:
        """Return True if one more GPU would exceed the ceiling."""
        return self.ceiling is not None and gpus >= self.ceiling

    def spent(self, gpus: int) -> bool:
        """Return True if one GPU less would fall below the floor."""
        return self.floor is not None and gpus <= self.floor


def widest(*widths: int) -> int:
    """The widest worker; widths that are not above 0 are unknown."""
    return max((width for width in widths if width > 0), default=0)


def ceil_div(numerator: int, denominator: int) -> int:
    """Quotient, rounded up."""
    return -(-numerator // denominator)


def total_of(pools: Sequence[PoolGpus], counts: Sequence[int]) -> int:
    """GPUs of so many workers of each pool."""
    return sum(count * pool.gpus for pool, count in zip(pools, counts, strict=True))


def fit(pools: Sequence[PoolGpus], band: GpuBand) -> list[int]:
    """The counts, shrunk below the ceiling or grown to the floor in proportion.

    Returns:
        The counts as they are where the band holds them, or the floor cannot be met below the ceiling; ``INFEASIBLE``
        for all where not even the least counts fit below the ceiling.
    """
    asked = [pool.replicas for pool in pools]
    gpus = sum(pool.total for pool in pools)
    if band.ceiling is not None and gpus > band.ceiling:
        return _shrunk(pools, gpus, band.ceiling)
    if band.floor is None or band.holds(gpus, band.tolerance(*(pool.gpus for pool in pools))):
        return asked
    grown = _grown(pools, gpus, band.floor, band.ceiling)
    return asked if band.above(total_of(pools, grown)) else grown


def _shrunk(pools: Sequence[PoolGpus], gpus: int, ceiling: int) -> list[int]:
    """Each pool gets its share of what those before it have left, less what those behind it need at least."""
    least = sum(pool.least * pool.gpus for pool in pools)
    if least > ceiling:
        return [INFEASIBLE] * len(pools)
    counts: list[int] = []
    for pool in pools:
        least -= pool.least * pool.gpus
        share = pool.replicas * ceiling // gpus if gpus else 0
        counts.append(max(pool.least, min(pool.replicas, share, (ceiling - least) // pool.gpus)))
        ceiling -= counts[-1] * pool.gpus
        gpus -= pool.total
    return counts


def _grown(pools: Sequence[PoolGpus], gpus: int, floor: int, ceiling: int | None) -> list[int]:
    """Each pool gets its share of what those before it lack, rounded up; no pool is shrunk by that."""
    shares: list[int] = []
    lacking = floor
    for number, pool in enumerate(pools):
        evenly = ceil_div(lacking, (len(pools) - number) * pool.gpus)
        share = ceil_div(pool.replicas * lacking, gpus) if gpus > 0 else evenly
        shares.append(pool.capped(max(pool.least, share)))
        lacking = max(0, lacking - shares[-1] * pool.gpus)
        gpus -= pool.total
    counts = [max(share, pool.replicas) for share, pool in zip(shares, pools, strict=True)]
    for number, pool in enumerate(pools):  # what a pool could not take because of its most
        lacking = floor - total_of(pools, counts)
        counts[number] = max(counts[number], pool.capped(counts[number] + max(0, ceil_div(lacking, pool.gpus))))
    # Wide steps of the first pools may reach the floor alone. That is no reason to take from the others, so the first
    # give back what is too much. Where the rounding alone goes too far the floor is missed instead.
    if ceiling is not None and (len(pools) == 1 or counts != shares):
        for number, pool in enumerate(pools):
            over = max(0, total_of(pools, counts) - ceiling)
            counts[number] = max(pool.least, pool.replicas, counts[number] - ceil_div(over, pool.gpus))
    return counts
