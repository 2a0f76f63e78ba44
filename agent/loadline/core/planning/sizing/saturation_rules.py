"""How near a fleet is to saturation, and one worker more or less for it: the rules of llm-d's first capacity analyser.

A worker is saturated at a KV usage or a number of waiting requests. What the others have left below that, on average,
is the spare: more workers where it is short, fewer where one less would still have it. Saturated workers count for
nothing in it, as in the original (Workload Variant Autoscaler 0.4.1); the saturation planner's own way counts them.
"""

from collections.abc import Iterable, Sequence

from msgspec import Struct


class Thresholds(Struct, frozen=True):
    """When a worker is saturated, and what is to be spare below that."""

    kv_cache: float = 0.8
    """KV usage, 0..1."""
    queue_length: float = 5.0
    """Waiting requests."""
    kv_spare: float = 0.1
    queue_spare: float = 3.0


class Reading(Struct, frozen=True):
    """What one worker says."""

    kv_usage: float
    waiting: float


class SaturationAnalysis(Struct, frozen=True):
    """Of all workers of a model or of a role."""

    workers: int
    unsaturated: int
    spare_kv: float
    """Mean of the unsaturated workers; 0 without any."""
    spare_waiting: float
    up: bool
    down_safe: bool
    """Whether the unsaturated workers would have their spare with one less of them."""


def analyse(readings: Sequence[Reading], thresholds: Thresholds) -> SaturationAnalysis:
    """Weigh the spare of the workers that are not saturated; without any reading nothing is to be done."""
    kv, queue = thresholds.kv_cache, thresholds.queue_length
    healthy = [one for one in readings if one.kv_usage < kv and one.waiting < queue]
    count = len(healthy)
    spare_kv = sum(kv - one.kv_usage for one in healthy) / count if count else 0.0
    spare_waiting = sum(queue - one.waiting for one in healthy) / count if count else 0.0
    return SaturationAnalysis(
        workers=len(readings),
        unsaturated=count,
        spare_kv=spare_kv,
        spare_waiting=spare_waiting,
        up=bool(readings) and (spare_kv < thresholds.kv_spare or spare_waiting < thresholds.queue_spare),
        down_safe=_down_safe(healthy, thresholds),
    )


def _down_safe(healthy: Sequence[Reading], thresholds: Thresholds) -> bool:
    if len(healthy) < 2:  # noqa: PLR2004 - the last worker stays
        return False
    left = len(healthy) - 1
    kv, waiting = sum(one.kv_usage for one in healthy) / left, sum(one.waiting for one in healthy) / left
    return (
        thresholds.kv_cache - kv >= thresholds.kv_spare and thresholds.queue_length - waiting >= thresholds.queue_spare
    )


class Variant(Struct, frozen=True):
    """A pool, in the words of the original."""

    name: str
    cost: float
    """Of one worker."""
    reporting: int
    current: int
    desired: int = 0
    """What was last decided; 0: nothing yet."""

    @property
    def in_transition(self) -> bool:
        """Whether a decision is still to be carried out: then it stands."""
        return self.desired not in {0, self.current}


def step(variants: Iterable[Variant], analysis: SaturationAnalysis) -> dict[str, int]:
    """Counts by variant: what is in transition stays desired, of the others one has a worker more or less.

    The cheapest gains one, or else the dearest that has two gives one; of equally dear ones the first by name gains and
    the last gives.
    """
    known = sorted(variants, key=lambda one: one.name)
    counts = {one.name: one.desired if one.in_transition else one.reporting for one in known}
    free = [one for one in known if not one.in_transition]
    if analysis.up:
        if free:
            counts[min(free, key=lambda one: (one.cost, one.name)).name] += 1
    elif analysis.down_safe:
        giving = [one for one in free if one.reporting > 1]
        if giving:
            counts[max(giving, key=lambda one: (one.cost, one.name)).name] -= 1
    return counts
