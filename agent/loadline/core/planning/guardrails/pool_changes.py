"""Fitting of pool changes into a band of GPUs without reversing their direction.

A held pool is never shrunk so that another can grow. When no GPU is free, a scale-down and the scale-up that it makes
possible are applied together or not at all. Only a fleet outside its band, or a pool outside its replica bounds, is
corrected regardless of the proposal.
"""

from collections.abc import Iterator, Sequence
from itertools import product

from msgspec import Struct

from loadline.core.planning.guardrails.gpu_band import GpuBand, PoolGpus, fit, total_of
from loadline.core.vocabulary.reasons import ReasonCode


class PoolChange(Struct, frozen=True):
    """Current and proposed count of a pool."""

    current: int
    proposed: int
    gpus: int
    """GPUs of one worker; at least 1."""
    replicas_min: int = 1
    replicas_max: int | None = None
    """Maximum count; None: unlimited."""

    @property
    def step(self) -> int:
        """Direction of the change: 1 for growth, -1 for shrink, 0 for none."""
        return (self.proposed > self.current) - (self.proposed < self.current)

    def between(self, count: int) -> bool:
        """Return True if a count lies between the current and the proposed one."""
        return min(self.current, self.proposed) <= count <= max(self.current, self.proposed)

    def unchanged(self) -> "PoolChange":
        """Return the pool without a proposed change."""
        return PoolChange(self.current, self.current, self.gpus, self.replicas_min, self.replicas_max)

    def current_gpus(self) -> PoolGpus:
        """Return the GPUs of the current count."""
        return PoolGpus(self.current, self.gpus, self.replicas_min, self.replicas_max)

    def bounded_gpus(self) -> PoolGpus:
        """Return the GPUs of the proposed count within the replica bounds."""
        share = PoolGpus(max(self.proposed, self.replicas_min), self.gpus, self.replicas_min, self.replicas_max)
        return PoolGpus(share.capped(share.replicas), self.gpus, self.replicas_min, self.replicas_max)

    def is_out_of_bounds(self) -> bool:
        """Return True if the current count is outside the replica bounds."""
        return self.current < self.replicas_min or (self.replicas_max is not None and self.current > self.replicas_max)


class FittedCounts(Struct, frozen=True):
    """Counts of all pools within a band."""

    counts: tuple[int, ...]
    code: ReasonCode | None = None
    """Reason for counts other than proposed; None if they are as near to the proposal as the band allows."""


def fit_changes(changes: Sequence[PoolChange], band: GpuBand) -> FittedCounts:
    """Fit changes into a band, so that each count lies between the current and the proposed one."""
    if any(change.is_out_of_bounds() for change in changes):
        # Configured bounds take precedence: the other pools change too if the band requires it.
        bounded = fit([change.bounded_gpus() for change in changes], band)
        return FittedCounts(tuple(bounded), ReasonCode.GPU_BUDGET_RECONCILE)
    shares = [change.current_gpus() for change in changes]
    tolerance = band.tolerance(*(change.gpus for change in changes))
    current = sum(share.total for share in shares)
    if not band.contains(current, tolerance):
        return FittedCounts(tuple(fit(shares, band)), ReasonCode.GPU_BUDGET_RECONCILE)
    unchanged = tuple(change.current for change in changes)
    held = FittedCounts(unchanged, ReasonCode.GPU_BUDGET_HOLD)
    steps = {change.step for change in changes}
    if steps == {0}:
        return FittedCounts(unchanged)  # as nearly always
    opposite, at_ceiling, at_floor = {1, -1} <= steps, band.is_at_ceiling(current), band.is_at_floor(current)
    if not opposite and ((at_floor and -1 in steps) or (at_ceiling and 1 in steps)):
        return held
    proposed = total_of(shares, [change.proposed for change in changes])
    if band.is_exceeded_by(proposed) or (opposite and (at_floor or at_ceiling)):
        nearest = fit_direction(changes, band)
        if nearest == held.counts and opposite:
            # One narrow worker never frees enough GPUs for a wide one. Growth into free GPUs, and shrinks that the
            # floor allows, must not wait for such an exchange forever.
            nearest = _fit_one_direction(changes, band, at_floor=at_floor)
        return held if nearest == held.counts else FittedCounts(nearest)
    pools = [PoolGpus(change.proposed, change.gpus, change.replicas_min, change.replicas_max) for change in changes]
    counts = tuple(fit(pools, band))
    is_valid = band.contains(total_of(shares, counts), tolerance) and all(
        change.between(count) for change, count in zip(changes, counts, strict=True)
    )
    return FittedCounts(counts) if is_valid else held


def _fit_one_direction(changes: Sequence[PoolChange], band: GpuBand, *, at_floor: bool) -> tuple[int, ...]:
    """Fit growths alone if the ceiling allows any, otherwise shrinks alone if the floor does."""
    current = tuple(change.current for change in changes)
    for step in (1,) if at_floor else (1, -1):
        counts = fit_direction([one if one.step == step else one.unchanged() for one in changes], band)
        if counts != current:
            return counts
    return current


def fit_direction(changes: Sequence[PoolChange], band: GpuBand) -> tuple[int, ...]:
    """Return the counts nearest to the proposal within a band, each between the current and the proposed one.

    Counts change one worker at a time while the band allows it: workers with the fewest GPUs first, among equal ones
    those of the pool with the smallest completed fraction of its change. If no single worker can, a shrink and a growth
    by one each are applied together. Changes in both directions are applied in both, or not at all.

    Args:
        changes: Pools whose current counts are in the band and within their bounds.
        band: Band of the GPUs of all pools together.
    """
    tolerance = band.tolerance(*(change.gpus for change in changes))
    counts = [change.bounded_gpus().replicas for change in changes]
    if not band.contains(sum(count * one.gpus for one, count in zip(changes, counts, strict=True)), tolerance):
        counts = [change.current for change in changes]
        gpus = sum(change.current * change.gpus for change in changes)
        while indices := _next_step(changes, counts, gpus, band, tolerance):
            for at in indices:
                counts[at] += changes[at].step
                gpus += changes[at].step * changes[at].gpus
    applied = {change.step for change, count in zip(changes, counts, strict=True) if count != change.current}
    is_partial = {change.step for change in changes} >= {1, -1} and not applied >= {1, -1}
    return tuple(change.current for change in changes) if is_partial else tuple(counts)


def _next_step(
    changes: Sequence[PoolChange], counts: Sequence[int], gpus: int, band: GpuBand, tolerance: int
) -> tuple[int, ...] | None:
    """Return the indices of the pools that change by one worker next; None if none can."""

    def order(indices: tuple[int, ...]) -> tuple[int, float, tuple[int, ...]]:
        completed = (
            abs(counts[at] - changes[at].current) / abs(changes[at].proposed - changes[at].current) for at in indices
        )
        return sum(changes[at].gpus for at in indices), sum(completed), indices

    def allowed(candidates: Iterator[tuple[int, ...]]) -> list[tuple[int, ...]]:
        return [
            indices
            for indices in candidates
            if band.contains(gpus + sum(changes[at].step * changes[at].gpus for at in indices), tolerance)
        ]

    left = [at for at, one in enumerate(changes) if (one.bounded_gpus().replicas - counts[at]) * one.step > 0]
    down, up = ([at for at in left if changes[at].step == step] for step in (-1, 1))
    candidates = allowed((at,) for at in left) or allowed(product(down, up))
    return min(candidates, key=order, default=None)
