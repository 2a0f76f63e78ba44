"""Bounds of what a report may hold."""

from typing import Any

import msgspec

from loadline.core.vocabulary.scalars import LENGTH_MIN, Ratio


def within(value: float, kind: Any) -> Any:
    """Return the value if agents accept it as one of this kind, else None."""
    # Agents refuse a length or latency that is almost 0.
    if 0 < value < LENGTH_MIN and kind is not Ratio:
        return None
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return None
