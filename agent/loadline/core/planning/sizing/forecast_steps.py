"""From the counts that a forecast needs to the counts that one observation may ask for."""

from typing import Final

STEP_MAX: Final = 8
"""Most workers that one observation moves a pool by: one absurd forecast must not move hundreds."""


def bounded(current: int, needed: int, least: int, step_max: int = STEP_MAX) -> int:
    """The needed count, at most ``step_max`` away from what stands, and at least ``least``, which is stronger."""
    return max(min(max(needed, current - step_max), current + step_max), least)
