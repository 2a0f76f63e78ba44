"""From the counts that a forecast needs to the counts that one observation may ask for."""

from typing import Final

from loadline.core.models.budget import Band, Share, fit_pair, fit_single
from loadline.core.models.direction import Leg, fit_direction, guard_single

STEP_MAX: Final = 8
"""Most workers that one observation moves a pool by: one absurd forecast must not move hundreds."""


def bounded(current: int, needed: int | None, least: int, step_max: int = STEP_MAX) -> int:
    """The needed count, at most ``step_max`` away from what stands, and at least ``least``, which is stronger.

    None where the need is unknown: what stands, and the least count all the same.
    """
    wanted = current if needed is None else min(max(needed, current - step_max), current + step_max)
    return max(wanted, least)


def lower_bounds(prefill: Leg, decode: Leg, ceiling: int | None) -> tuple[int, int]:
    """Counts below which load planning must not go: the bounded needs, as far as the ceiling has GPUs for them.

    The floor of the budget is no demand, so it raises none of them.
    """
    band = Band(ceiling=ceiling)
    if prefill.current >= prefill.least and decode.current >= decode.least:
        return fit_direction(prefill, decode, band)
    first = Share(max(prefill.proposed, prefill.least), prefill.gpus, prefill.least)
    second = Share(max(decode.proposed, decode.least), decode.gpus, decode.least)
    return fit_pair(first, second, band)


def lower_bound(pool: Leg, ceiling: int | None) -> int:
    """The same for the only pool."""
    band = Band(ceiling=ceiling)
    if pool.current >= pool.least:
        return guard_single(pool, band)[0]
    return fit_single(Share(max(pool.proposed, pool.least), pool.gpus, pool.least), band)
