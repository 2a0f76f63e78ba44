"""Load at which a pool grew again soon after a shrink, so that the shrink is not repeated."""

from math import ceil, sqrt
from typing import Final

from msgspec import Struct

SOON_MS: Final = 600_000
"""Time after a shrink within which a growth reverses it."""
_LASTS_MS: Final = 1_800_000
"""Time for which the load counts, as for the points of a latency curve."""
_STEADY: Final = 0.1
"""Part by which the expected load may exceed the lasting one, or the load fall below the one at the growth, at least:
then it was the shrink, and no rise, that made the pool grow."""
_CHANCE: Final = 3.0
"""Standard errors of the arrivals by which it may: at 18 requests/s, the mean of 15 s varies by 6 %."""


class ReversedShrink(Struct):
    """Load of each worker at the last growth that reversed a shrink.

    Windows of a steady load vary. Near the limit of the latency, one of them requests the worker that the others, with
    that worker, say is one too many: without a memory the pool changes every two minutes.
    """

    shrunk_at_ms: int = -1
    """Time of the last shrink; -1: none."""
    per_worker: float = 0.0
    """Requests/s of each worker at the growth; 0: none."""
    at_ms: int = 0

    def record_shrink(self, now: int) -> None:
        """Record that the pool has shrunk."""
        self.shrunk_at_ms = now

    def record_growth(self, growing_per_s: float, lasting_per_s: float, workers: int, error: float, now: int) -> None:
        """Record that the demand has made the pool grow.

        Args:
            growing_per_s: Expected requests/s, for growth.
            lasting_per_s: Requests/s of the last minute.
            workers: Count before the growth.
            error: Standard error of the expected requests/s, relative to them.
            now: Unix time in ms.
        """
        is_soon = 0 <= self.shrunk_at_ms <= now <= self.shrunk_at_ms + SOON_MS
        self.shrunk_at_ms = -1
        if is_soon and workers and growing_per_s <= (1.0 + _margin(error)) * lasting_per_s:
            self.per_worker, self.at_ms = lasting_per_s / workers, now

    def left_ms(self, now: int) -> int:
        """Return the time for which the load still counts; negative if it does not."""
        return self.at_ms + _LASTS_MS - now

    def replicas_min(self, requests_per_s: float, error: float, now: int) -> int:
        """Return the smallest count to shrink to, for requests/s of the last minute and their relative error."""
        if not self.per_worker or self.left_ms(now) < 0:
            return 0
        return ceil(requests_per_s / ((1.0 - _margin(sqrt(2.0) * error)) * self.per_worker))  # two means differ


def _margin(error: float) -> float:
    return min(0.5, max(_STEADY, _CHANCE * error))
