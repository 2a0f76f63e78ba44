"""Workers that a load has needed lately, and those that a pool keeps although it has not.

A margin for errors, a hold after a peak and the wait for a proven load cost little while GPUs are free. When GPUs are
short, they withhold from other pools what these need now. A worker is unneeded once the load has not needed it for some
seconds, or in two lulls if these are too short for an exchange of workers (``LoadLulls``): loads that alternate fast
would exchange workers that each of them lacks by the time the other has them.
"""

from typing import Final

from msgspec import Struct, field

from loadline.core.fleet.windows import RollingMax

UNNEEDED_MS: Final = 15_000
"""Time without need after which a worker is unneeded. With a start-up time of 40 s instead, two waves of 10 min on 12
GPUs had 87.1 instead of 91.5 % of the requests in time."""
_LULLS: Final = 2
"""Short lulls for which a worker without need is needed: a period of the load, with the time between two lulls."""
_GAP_MS: Final = 5_000
"""Time without an update after which the needs in between are unknown: pools are updated each second, unless traffic
is incomplete or no worker reports."""


class UnneededWorkers(Struct):
    """Highest counts that the load of a pool needed lately."""

    needed: RollingMax = field(default_factory=lambda: RollingMax(UNNEEDED_MS))
    lasting: RollingMax = field(default_factory=lambda: RollingMax(UNNEEDED_MS))
    """The same without workers for a backlog and for growth."""
    updated_ms: int = -1
    """Unix ms of the last update; -1: none."""

    def update(self, needed: int, lasting: int, current: int, lull_ms: int, now: int) -> None:
        """Record what the load needs.

        Args:
            needed: Workers that the load needs now, without margin and holds.
            lasting: The same without workers for a backlog and for growth.
            current: Count in force. The first one, and the first after a gap, counts as needed, as what was needed
                before is unknown.
            lull_ms: Length of the last lull if it was short, else 0.
            now: Unix time in ms.
        """
        if now - self.updated_ms > _GAP_MS:
            self.needed, self.lasting = RollingMax(UNNEEDED_MS), RollingMax(UNNEEDED_MS)
        is_first, self.updated_ms = not self.needed.values, now
        for counts, count in ((self.needed, needed), (self.lasting, lasting)):
            counts.window_ms = max(UNNEEDED_MS, _LULLS * lull_ms)
            counts.push(now, max(count, current) if is_first else count)

    def among(self, workers: int, now: int) -> int:
        """Return how many of some workers the load has not needed; ``now`` in ms."""
        return max(0, workers - (self.needed.max(now) or workers))
