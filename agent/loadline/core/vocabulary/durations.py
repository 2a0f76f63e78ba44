"""Formatting of durations."""

from typing import Final

_UNITS: Final = ((3_600_000, "h"), (60_000, "min"), (1_000, "s"))
_TIMES_UNIT: Final = 2
"""Number of hours or minutes from which a rounded duration is in these: 90 s is easier to read than 1.5 min."""
_WHOLE_FROM: Final = 10


def duration(ms: float) -> str:
    """Format a duration in the largest unit that keeps it short, such as ``30 s``."""
    for unit_ms, unit in _UNITS:
        if ms >= unit_ms and ms % (unit_ms / 10) == 0:
            return f"{ms / unit_ms:g} {unit}"
    return f"{ms:g} ms"


def rounded_duration(ms: float) -> str:
    """Format a duration in the unit that people would say it in, such as ``2.5 min``."""
    for unit_ms, unit in _UNITS:
        if abs(ms) >= _TIMES_UNIT * unit_ms or (unit == "s" and abs(ms) >= unit_ms):
            return f"{round(ms / unit_ms, 0 if abs(ms) >= _WHOLE_FROM * unit_ms else 1):g} {unit}"
    return f"{ms:.0f} ms"
