"""The machine's clock as ``ports.Clock``."""

import time

_NS_PER_MS = 1_000_000


class SystemClock:
    """Unix time at the start plus the time since by CLOCK_BOOTTIME.

    CLOCK_BOOTTIME includes suspend and does not follow changes of the wall clock.
    """

    def __init__(self) -> None:
        self._offset_ns = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def now_ms(self) -> int:
        """Return Unix time in ms; never goes back."""
        return (self._offset_ns + time.clock_gettime_ns(time.CLOCK_BOOTTIME)) // _NS_PER_MS
