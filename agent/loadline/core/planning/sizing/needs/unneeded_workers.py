"""Workers that a pool keeps until a shrink is safe, although its load has not needed them for a while.

A margin for errors, a hold after a peak and the wait for a proven load cost little while GPUs are free. When GPUs are
short, they withhold from other pools what these need now. A worker is unneeded once the load has not needed it for some
seconds, or for as long as lulls have taught ``ShrinkHold``: loads that alternate each two start-up times would
otherwise exchange workers that each of them lacks by the time the other has them.
"""

from typing import Final

from msgspec import Struct, field

from loadline.core.fleet.windows import RollingMax

_UNNEEDED_MS: Final = 15_000
"""Time without need after which a worker is unneeded. With a start-up time of 40 s instead, two waves of 10 min on 12
GPUs had 82.8 instead of 89.5 % of the requests in time."""

_GAP_MS: Final = 5_000
"""Time without an update after which the needs in between are unknown: pools are updated each second, unless traffic
is incomplete or no worker reports."""


class UnneededWorkers(Struct):
    """Highest count that the load of a pool needed lately."""

    needed: RollingMax = field(default_factory=lambda: RollingMax(_UNNEEDED_MS))
    updated_ms: int = -1
    """Unix ms of the last update; -1: none."""

    def update(self, needed: int, current: int, hold_ms: int, now: int) -> None:
        """Record what the load needs.

        Args:
            needed: Workers that the load needs now, without margin and holds.
            current: Count in force. The first one, and the first after a gap, counts as needed, as what was needed
                before is unknown.
            hold_ms: Time for which lulls have taught to keep workers.
            now: Unix time in ms.
        """
        if now - self.updated_ms > _GAP_MS:
            self.needed = RollingMax(_UNNEEDED_MS)
        first, self.updated_ms = not self.needed.values, now
        self.needed.window_ms = max(_UNNEEDED_MS, hold_ms)
        self.needed.push(now, max(needed, current) if first else needed)

    def among(self, workers: int, now: int) -> int:
        """Return how many of some workers the load has not needed; ``now`` in ms."""
        return max(0, workers - (self.needed.max(now) or workers))
