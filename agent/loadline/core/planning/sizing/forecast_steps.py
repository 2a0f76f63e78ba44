"""Limit of the step by which one forecast changes a pool."""

from typing import Final

STEP_MAX: Final = 8
"""Default of the largest step in workers: one absurd forecast must not move hundreds."""


def limit_step(current: int, needed: int, replicas_min: int, step_max: int = STEP_MAX) -> int:
    """Return the needed count, at most ``step_max`` away from the current one; minimum replicas take precedence."""
    return max(min(max(needed, current - step_max), current + step_max), replicas_min)
