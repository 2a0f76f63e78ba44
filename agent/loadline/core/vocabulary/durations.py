"""Formatting of durations."""

from typing import Final

_UNITS: Final = ((3_600_000, "h"), (60_000, "min"), (1_000, "s"))


def duration(ms: float) -> str:
    """Format a duration in the largest unit that keeps it short, such as ``30 s``."""
    for unit_ms, unit in _UNITS:
        if ms >= unit_ms and ms % (unit_ms / 10) == 0:
            return f"{ms / unit_ms:g} {unit}"
    return f"{ms:g} ms"
