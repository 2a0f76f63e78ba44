"""Levels of the workers of a pool: the part of what its load needs that the workers before one serve.

While GPUs are short, the models of a priority, and the roles of each, are served up to the same level, as more of one
role serves no request that waits for the other. A pool that lately needed four workers has its third at half of its
need, before the fourth of another that needed four. Workers that a backlog takes beyond that come after all of them.
Current workers come before additional ones of their level and of the one before it, so that models which are served
alike exchange none when a need changes by a worker.
"""

from collections.abc import Iterator
from typing import Final

LEVELS: Final = 8
"""Levels of a need; workers of large pools share one, in which each model gets all of its workers or takes turns."""
HELD_LEVELS: Final = 1
"""Levels by which current workers come before additional ones. Two models of 40 requests/s on three quarters of the
GPUs that they need started or ended 12 workers in 9 min without it, and none with it. With 2, a model that has all it
needs gives nothing to one that has half."""
LEVEL_RANKS: Final = 2 * (LEVELS + HELD_LEVELS + 1)
"""Ranks of all levels and of the backlog: current workers, and additional ones."""
UNDIVIDED: Final = LEVELS
"""Rank of what has no levels: that of current workers in the middle of them."""


def ranked_workers(first: int, count: int, current: int, need: int | None) -> Iterator[tuple[int, int]]:
    """Yield the rank and the number of some workers of a pool, for each rank that has any.

    Args:
        first: Workers before them, which rank elsewhere.
        count: All workers that the pool asks for.
        current: Count in force.
        need: Workers that the arrivals need, beyond which they are for a backlog. None if the planner does not tell:
            then current workers rank in the middle of the levels, and additional ones after them.
    """
    if need is None:
        existing, additional = min(current, count) - first, count - max(first, current)
        yield from _with_workers((UNDIVIDED, existing), (LEVEL_RANKS - 1, additional))
        return
    for level in range(LEVELS):
        end = min(count, -(-(level + 1) * need // LEVELS))
        existing = min(end, max(first, current))
        yield from _with_workers((2 * level, existing - first), (2 * (level + HELD_LEVELS) + 1, end - existing))
        first = max(first, end)
    existing = min(count, max(first, current))
    yield from _with_workers((LEVEL_RANKS - 2, existing - first), (LEVEL_RANKS - 1, count - existing))


def _with_workers(*ranked: tuple[int, int]) -> Iterator[tuple[int, int]]:
    """Yield the ranks that have workers."""
    return ((rank, workers) for rank, workers in ranked if workers > 0)
