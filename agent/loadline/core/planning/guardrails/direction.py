"""A proposal within a band of GPUs that never says the opposite of what a planner said.

A bound may suppress a step, never turn it around: no pool is shrunk that was to be held, so that another may grow.
Where nothing is free opposite steps happen both or neither, for one that only gives and feeds nobody is a loss. Only a
fleet that is outside of its band already is brought back whatever was proposed, and so is a pool outside of its own
bounds.
"""

from collections.abc import Iterator, Sequence
from itertools import product

from msgspec import Struct

from loadline.core.planning.guardrails.gpu_band import GpuBand, PoolGpus, fit, total_of
from loadline.core.vocabulary.reasons import ReasonCode


class PoolChange(Struct, frozen=True):
    """A pool: the count that stands, and the one that is proposed."""

    current: int
    proposed: int
    gpus: int
    """GPUs of one worker; at least 1."""
    least: int = 1
    most: int | None = None
    """None: no such bound."""

    @property
    def step(self) -> int:
        """1: it is to grow; -1: to shrink; 0: neither."""
        return (self.proposed > self.current) - (self.proposed < self.current)

    def between(self, count: int) -> bool:
        """Return True if a count lies between the current and the proposed one."""
        return min(self.current, self.proposed) <= count <= max(self.current, self.proposed)

    def staying(self) -> "PoolChange":
        """The same pool, if nothing were proposed."""
        return PoolChange(self.current, self.current, self.gpus, self.least, self.most)

    def standing(self) -> PoolGpus:
        """Its claim as it is."""
        return PoolGpus(self.current, self.gpus, self.least, self.most)

    def wanted(self) -> PoolGpus:
        """Its claim as proposed, within its bounds."""
        share = PoolGpus(max(self.proposed, self.least), self.gpus, self.least, self.most)
        return PoolGpus(share.capped(share.replicas), self.gpus, self.least, self.most)

    def outside(self) -> bool:
        """True if the current count is outside the replica bounds."""
        return self.current < self.least or (self.most is not None and self.current > self.most)


class Settled(Struct, frozen=True):
    """The counts of all pools, and why they are not what was proposed; None: they are, or as near as they can be."""

    counts: tuple[int, ...]
    why: ReasonCode | None = None


def settle(legs: Sequence[PoolChange], band: GpuBand) -> Settled:
    """Fit changes into a band: each count lies between the current and the proposed one."""
    if any(leg.outside() for leg in legs):
        # Its bounds are the operator's word: it is brought in, if need be at the others' expense.
        return Settled(tuple(fit([leg.wanted() for leg in legs], band)), ReasonCode.GPU_BUDGET_RECONCILE)
    shares = [leg.standing() for leg in legs]
    tolerance = band.tolerance(*(leg.gpus for leg in legs))
    standing = sum(share.total for share in shares)
    if not band.holds(standing, tolerance):
        return Settled(tuple(fit(shares, band)), ReasonCode.GPU_BUDGET_RECONCILE)
    held = Settled(tuple(leg.current for leg in legs), ReasonCode.GPU_BUDGET_GUARD_HOLD)
    steps = {leg.step for leg in legs}
    opposite, full, spent = {1, -1} <= steps, band.full(standing), band.spent(standing)
    if not opposite and ((spent and -1 in steps) or (full and 1 in steps)):
        return held
    proposed = total_of(shares, [leg.proposed for leg in legs])
    if band.above(proposed) or (opposite and (spent or full)):
        nearest = fit_direction(legs, band)
        if nearest == held.counts and opposite:
            # In steps of one a narrow worker never pays for a wide one at once. Who needs nobody else's GPUs must not
            # wait for that for ever, nor who has too many.
            nearest = _one_way(legs, band, spent=spent)
        return held if nearest == held.counts else Settled(nearest)
    counts = tuple(fit([PoolGpus(leg.proposed, leg.gpus, leg.least, leg.most) for leg in legs], band))
    within = band.holds(total_of(shares, counts), tolerance)
    kept = within and all(leg.between(count) for leg, count in zip(legs, counts, strict=True))
    return Settled(counts) if kept else held


def _one_way(legs: Sequence[PoolChange], band: GpuBand, *, spent: bool) -> tuple[int, ...]:
    """The growths alone where there is room, or else the shrinks alone where the floor allows some."""
    standing = tuple(leg.current for leg in legs)
    for step in (1,) if spent else (1, -1):
        counts = fit_direction([leg if leg.step == step else leg.staying() for leg in legs], band)
        if counts != standing:
            return counts
    return standing


def fit_direction(legs: Sequence[PoolChange], band: GpuBand) -> tuple[int, ...]:
    """The counts nearest to the proposal that the band holds, each between what stands and what is proposed.

    One worker after the other moves, as long as the band holds: the narrowest first, of equally wide ones that of the
    pool that has moved by the smallest share. Where none can move alone a shrink and a growth move together. Opposite
    steps move pools both ways or none.

    Args:
        legs: What stands in the band, each pool within its bounds.
        band: GPUs of all together.
    """
    tolerance = band.tolerance(*(leg.gpus for leg in legs))
    counts = [leg.wanted().replicas for leg in legs]
    if not band.holds(sum(count * leg.gpus for leg, count in zip(legs, counts, strict=True)), tolerance):
        counts = [leg.current for leg in legs]
        gpus = sum(leg.current * leg.gpus for leg in legs)
        while move := _next_move(legs, counts, gpus, band, tolerance):
            for at in move:
                counts[at] += legs[at].step
                gpus += legs[at].step * legs[at].gpus
    moved = {leg.step for leg, count in zip(legs, counts, strict=True) if count != leg.current}
    alone = {leg.step for leg in legs} >= {1, -1} and not moved >= {1, -1}
    return tuple(leg.current for leg in legs) if alone else tuple(counts)


def _next_move(
    legs: Sequence[PoolChange], counts: Sequence[int], gpus: int, band: GpuBand, tolerance: int
) -> tuple[int, ...] | None:
    """The pools of which one worker each moves next; None where none can."""

    def effort(move: tuple[int, ...]) -> tuple[int, float, tuple[int, ...]]:
        moved = (abs(counts[at] - legs[at].current) / abs(legs[at].proposed - legs[at].current) for at in move)
        return sum(legs[at].gpus for at in move), sum(moved), move

    def possible(moves: Iterator[tuple[int, ...]]) -> list[tuple[int, ...]]:
        return [
            move for move in moves if band.holds(gpus + sum(legs[at].step * legs[at].gpus for at in move), tolerance)
        ]

    left = [at for at, leg in enumerate(legs) if (leg.wanted().replicas - counts[at]) * leg.step > 0]
    down, up = ([at for at in left if legs[at].step == step] for step in (-1, 1))
    moves = possible((at,) for at in left) or possible(product(down, up))
    return min(moves, key=effort, default=None)
