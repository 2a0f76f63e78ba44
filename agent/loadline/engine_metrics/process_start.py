"""Read the start time of the process that wrote a page of metrics, which tells a restart and another replica apart."""

import re
from typing import Final

START_METRIC: Final = "process_start_time_seconds"
# Python programs of one process tell when they started; it differs by some ms between two pages of one process.
# A page that is made of what Prometheus has has labels, may begin with this line, and may have one of each container.
_STARTED: Final = re.compile(rb"\n%b(?:\{.*\})? (\S+)" % START_METRIC.encode())
_TOLERANCE_MS: Final = 1_000
_SECONDS_MAX: Final = 1e11


def read_start_ms(page: bytes) -> int | None:
    """Return the time at which the process of a page started; None: it does not tell, or tells several."""
    found = set(_STARTED.findall(b"\n" + page))
    try:
        seconds = float(found.pop()) if len(found) == 1 else -1.0  # of several, which is the program's is unknown
    except ValueError:
        return None
    return round(seconds * 1_000) if 0 < seconds < _SECONDS_MAX else None


def is_another_start(one_ms: int | None, other_ms: int | None) -> bool:
    """Return True if both are known and not of one process."""
    return one_ms is not None and other_ms is not None and abs(one_ms - other_ms) > _TOLERANCE_MS
