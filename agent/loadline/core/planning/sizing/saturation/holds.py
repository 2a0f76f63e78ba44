"""Load of the pools of a role as the saturation planner measures it, and the reasons why a pool keeps its count."""

from collections.abc import Sequence
from math import floor

from msgspec import Struct

from loadline.core.planning.sizing.headroom import EPSILON, Candidate, RoleCounts
from loadline.core.planning.sizing.saturation.occupancy import Occupancy
from loadline.core.vocabulary.reasons import Reason, ReasonCode


class RoleOccupancy(Struct, frozen=True):
    """Load of the pools of a role, and the capacity of one worker of each pool, in workers or in KV tokens."""

    scale_up_load: float
    """Lower bound of the present load."""
    present_load: float
    """Upper bound of the present load of pools that are not silent."""
    scale_down_load: float
    """Highest such bound of the long window."""
    capacities: dict[str, float]
    windows: Sequence[tuple[Occupancy, float]]
    """Loads of the pools that are not silent, and the units to multiply them by."""
    silent: int
    """Number of silent workers of these pools."""

    @property
    def window_ms(self) -> int:
        """Length of the long window, which is the same for all pools."""
        return self.windows[0][0].long.window_ms

    def peak_ends_ms(self, limit: float, now: int) -> int:
        """Return the time (ms) at which the last load above a limit leaves the long window, if none follows."""
        highest = [one.present_load * unit for one, unit in self.windows]
        queued_load = self.present_load - sum(highest)
        samples = (
            (at, number, value * unit)
            for number, (one, unit) in enumerate(self.windows)
            for at, value in zip(one.long.at_ms, one.long.values, strict=True)
        )
        for at, number, value in sorted(samples, reverse=True):
            if value > highest[number]:
                highest[number] = value
                if queued_load + sum(highest) > limit:
                    return at + self.window_ms + 1
        return now


def hold_reason(candidate: Candidate, found: RoleCounts, occupancy: RoleOccupancy, down: float, now: int) -> Reason:
    """Return the reason why a pool keeps its count, while no other pool of its role changes.

    Args:
        candidate: The pool.
        found: Counts of the pools of its role.
        occupancy: Load of the pools of its role.
        down: Utilisation (0..1) of the remaining workers below which pools shrink.
        now: Time in ms.
    """
    name, count, capacity = candidate.name, candidate.current, candidate.capacity

    def needed(load: float) -> int:
        """Return the workers of the pool that a load of the role needs, at least 0."""
        headroom = max(0.0, found.reported - load / down)
        return max(0, count - floor(headroom / capacity + EPSILON))

    wanted = needed(occupancy.present_load)
    if wanted < count <= candidate.replicas_min:
        return Reason.of(ReasonCode.REPLICAS_MIN, name, wanted=wanted, allowed=candidate.replicas_min)
    if wanted < count and (count == sum(found.counts.values()) == 1 or needed(occupancy.scale_down_load) < count):
        return Reason.of(ReasonCode.LAST_WORKER, name, wanted=0, allowed=1)
    if wanted < count:
        limit = (found.reported - capacity) * down
        return Reason.of(
            ReasonCode.RECENT_PEAK,
            name,
            wanted=max(wanted, candidate.replicas_min),
            allowed=count,
            held=occupancy.present_load / capacity,
            peak=occupancy.scale_down_load / capacity,
            window_ms=occupancy.window_ms,
            left_ms=occupancy.peak_ends_ms(limit, now) - now,
        )
    if needed(occupancy.scale_up_load) < count > candidate.replicas_min:
        return Reason.of(ReasonCode.SILENT_WORKERS, name, silent=occupancy.silent)
    held, workers = occupancy.scale_up_load / capacity, found.expected / capacity
    return Reason.of(ReasonCode.SATURATION_WITHIN, name, held=held, workers=workers)
