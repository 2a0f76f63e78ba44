"""Load at which a pool grew again soon after a shrink, so that the shrink is not repeated."""

from math import ceil
from typing import Final

from msgspec import Struct

SOON_MS: Final = 600_000
"""Time after a shrink within which a growth reverses it."""
_LASTS_MS: Final = 1_800_000
"""Time for which the load counts, as for the points of a latency curve."""
_STEADY: Final = 1.1
"""Ratio of the expected to the lasting load up to which it was the shrink, and no rise, that made the pool grow."""
_BELOW: Final = 0.9
"""Part of the load which the remaining workers may have: the mean of a minute varies by some percent."""


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

    def record_growth(self, growing_per_s: float, lasting_per_s: float, workers: int, now: int) -> None:
        """Record that the demand has made the pool grow.

        Args:
            growing_per_s: Expected requests/s, for growth.
            lasting_per_s: Requests/s of the last minute.
            workers: Count before the growth.
            now: Unix time in ms.
        """
        is_soon = 0 <= self.shrunk_at_ms <= now <= self.shrunk_at_ms + SOON_MS
        self.shrunk_at_ms = -1
        if is_soon and workers and growing_per_s <= _STEADY * lasting_per_s:
            self.per_worker, self.at_ms = lasting_per_s / workers, now

    def left_ms(self, now: int) -> int:
        """Return the time for which the load still counts; negative if it does not."""
        return self.at_ms + _LASTS_MS - now

    def replicas_min(self, requests_per_s: float, now: int) -> int:
        """Return the smallest count to shrink to."""
        if not self.per_worker or self.left_ms(now) < 0:
            return 0
        return ceil(requests_per_s / (_BELOW * self.per_worker))
