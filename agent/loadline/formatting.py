"""Formatting of numbers for people."""

from typing import Final

_WHOLE_FROM_MS: Final = 100.0
_SECONDS_FROM_MS: Final = 10_000.0


def percent(ratio: float) -> str:
    """Format a ratio in percent; never round up to 100%, since one miss in a thousand requests matters."""
    text = f"{ratio:.1%}"
    return "99.9%" if text == "100.0%" and ratio < 1.0 else text


def usage(ratio: float | None) -> str:
    """Format a usage in whole percent; a dash if it is unknown."""
    return "-" if ratio is None else f"{ratio:.0%}"


def ms(value: float | None) -> str:
    """Format a latency: three digits below 100 ms, whole ms up to 10 s, seconds above."""
    if value is None:
        return "-"
    if value >= _SECONDS_FROM_MS:
        return f"{value / 1_000.0:.1f} s"
    return f"{value:.3g} ms" if value < _WHOLE_FROM_MS else f"{value:.0f} ms"


def hours(value: float) -> str:
    """Format GPU-hours."""
    return f"{value:.2f}"


def duration(seconds: float) -> str:
    """Format a duration in its natural unit."""
    for unit_s, unit in ((86_400.0, "d"), (3_600.0, "h"), (60.0, "min")):
        if seconds >= 2.0 * unit_s:
            return f"{seconds / unit_s:.3g} {unit}"
    return f"{seconds:.3g} s"


def clock(seconds: float) -> str:
    """Format a time since the start of the trace, such as ``1:02:03``."""
    whole = int(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def plural(count: int, noun: str) -> str:
    """Format a count with its noun, such as ``2 workers``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"
