"""Rules of the first capacity analyser of llm-d's Workload Variant Autoscaler (0.4.1): one worker more or less.

A worker is saturated at a KV usage or a number of waiting requests. The headroom is the mean distance of the other
workers to these thresholds. A worker is added if the headroom is too low, and one is removed if the remaining workers
keep it. As in the original, saturated workers do not enter the mean; the saturation planner's own rules count them.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct


class SaturationThresholds(Struct, frozen=True):
    """Load at which a worker is saturated, and the headroom to keep below it."""

    kv_cache: float = 0.8
    """KV usage, 0..1."""
    queue_length: float = 5.0
    """Waiting requests."""
    kv_headroom: float = 0.1
    queue_headroom: float = 3.0


class Reading(Struct, frozen=True):
    """Load of one worker: KV usage (0..1) and waiting requests."""

    kv_usage: float
    waiting: float


class SaturationAnalysis(Struct, frozen=True):
    """Headroom of the workers of a model or role, and the directions in which they may scale."""

    workers: int
    unsaturated: int
    kv_headroom: float
    """Mean over the unsaturated workers; 0 without any."""
    queue_headroom: float
    scale_up: bool
    scale_down_safe: bool
    """True if the unsaturated workers keep their headroom with one worker fewer."""


def analyse(readings: Sequence[Reading], thresholds: SaturationThresholds) -> SaturationAnalysis:
    """Compute the headroom of the unsaturated workers; without readings, neither direction is recommended."""
    kv, queue = thresholds.kv_cache, thresholds.queue_length
    unsaturated = [reading for reading in readings if reading.kv_usage < kv and reading.waiting < queue]
    count = len(unsaturated)
    kv_headroom = sum(kv - reading.kv_usage for reading in unsaturated) / count if count else 0.0
    queue_headroom = sum(queue - reading.waiting for reading in unsaturated) / count if count else 0.0
    low = kv_headroom < thresholds.kv_headroom or queue_headroom < thresholds.queue_headroom
    return SaturationAnalysis(
        workers=len(readings),
        unsaturated=count,
        kv_headroom=kv_headroom,
        queue_headroom=queue_headroom,
        scale_up=bool(readings) and low,
        scale_down_safe=_can_remove_one(unsaturated, thresholds),
    )


def _can_remove_one(unsaturated: Sequence[Reading], thresholds: SaturationThresholds) -> bool:
    if len(unsaturated) < 2:  # noqa: PLR2004 - the last worker is never removed
        return False
    remaining = len(unsaturated) - 1
    kv = sum(reading.kv_usage for reading in unsaturated) / remaining
    waiting = sum(reading.waiting for reading in unsaturated) / remaining
    return (
        thresholds.kv_cache - kv >= thresholds.kv_headroom
        and thresholds.queue_length - waiting >= thresholds.queue_headroom
    )


class Variant(Struct, frozen=True):
    """A pool; the original calls it a variant."""

    name: str
    cost: float
    """Cost of one worker."""
    reporting: int
    current: int
    desired: int = 0
    """Count of the last decision; 0 without one."""

    @property
    def in_transition(self) -> bool:
        """True while a decision is not applied; it is then kept."""
        return self.desired not in {0, self.current}


def step(variants: Iterable[Variant], analysis: SaturationAnalysis) -> dict[str, int]:
    """Return counts by variant: the desired count in transition; of the others, one has a worker more or less.

    The cheapest variant gains a worker, or the most expensive one with at least two workers loses one. Of equal costs,
    the first by name gains and the last by name loses.
    """
    ordered = sorted(variants, key=lambda one: one.name)
    counts = {one.name: one.desired if one.in_transition else one.reporting for one in ordered}
    settled = [one for one in ordered if not one.in_transition]
    if analysis.scale_up:
        if settled:
            counts[min(settled, key=lambda one: (one.cost, one.name)).name] += 1
    elif analysis.scale_down_safe:
        reducible = [one for one in settled if one.reporting > 1]
        if reducible:
            counts[max(reducible, key=lambda one: (one.cost, one.name)).name] -= 1
    return counts
