"""Whether pools that serve together hold too much or too little, and who grows or shrinks for it.

Demand and capacity are in the same unit, whatever it is. The rules are those of llm-d's Workload Variant Autoscaler of
2026-08; that silent workers are full and that who does not deliver is passed over is ours.
"""

from collections.abc import Sequence
from math import ceil, floor
from typing import Final

from msgspec import Struct

_EPSILON: Final = 1e-9
"""Quotients are rounded as if exact: 0.7 times 10 workers is no more than 7."""


class Balance(Struct, frozen=True):
    """What is missing and what could go, in the unit of the demand; one of them is 0."""

    required: float
    spare: float


def balance(demand: float, supply: float, anticipated: float, up: float, down: float) -> Balance:
    """A demand against a supply.

    Args:
        demand: In any unit.
        supply: What workers that are ready can hold.
        anticipated: The same with those that are on their way.
        up: Share of the supply above which it is too little, 0..1.
        down: Share below which it is too much.
    """
    return Balance(max(0.0, demand / up - anticipated), max(0.0, supply - demand / down))


class Candidate(Struct, frozen=True):
    """A pool whose workers serve of a demand."""

    name: str
    cost: float
    """Of one worker."""
    capacity: float
    """Of one worker, above 0."""
    current: int
    least: int = 0
    most: int | None = None


def grow(required: float, choices: Sequence[Candidate]) -> dict[str, int]:
    """Counts that serve so much more: of the pool that does so for the least cost, then of the next."""
    counts = {one.name: one.current for one in choices}
    for one in sorted(choices, key=lambda one: (one.cost / one.capacity, one.name)):
        more = ceil(required / one.capacity - _EPSILON)
        if one.most is not None:
            more = min(more, one.most - one.current)
        if more > 0:
            counts[one.name] += more
            required -= more * one.capacity
    return counts


def shrink(spare: float, choices: Sequence[Candidate]) -> dict[str, int]:
    """Counts without what is spare: of the dearest pool first. The cheapest keeps one if no other has any."""
    counts = {one.name: one.current for one in choices}
    dearest_first = sorted(choices, key=lambda one: (-one.cost, one.name))
    for one in dearest_first:
        least = one.least
        if one is dearest_first[-1] and not any(counts[other.name] for other in dearest_first[:-1]):
            least = max(least, 1)
        fewer = min(floor(spare / one.capacity + _EPSILON), one.current - least)
        if fewer > 0:
            counts[one.name] -= fewer
            spare -= fewer * one.capacity
    return counts


class PoolCapacity(Struct, frozen=True):
    """A pool of a role: its workers, and what is known of them."""

    choice: Candidate
    """``current`` is what there is and what is on its way."""
    ready: int
    silent: bool = False
    """No worker says what it holds: it is full when it comes to a shrink."""
    late: bool = False
    """Workers that it was to have did not come: so will no others, if another pool can grow."""


class Resized(Struct, frozen=True):
    """Counts for the pools of a role, and what led to them."""

    counts: dict[str, int]
    required: float
    spare: float
    anticipated: float
    """What all can hold, with those on their way."""
    ready: float
    """What those can hold that are there to stay and say what they hold."""


def resize(crews: Sequence[PoolCapacity], rising: float, falling: float, up: float, down: float) -> Resized:
    """Grow by what is surely held, or else shrink by the most that may be.

    Args:
        crews: The pools of a role, at least one.
        rising: What is held at least, of all of them.
        falling: What is held at most, of those that are not silent.
        up: See ``balance``.
        down: See ``balance``.
    """
    choices = [crew.choice for crew in crews]
    giving = [crew.choice for crew in crews if not crew.silent]
    # Workers on their way hold nothing yet, and those that are to leave will hold nothing any more.
    ready = sum(min(crew.ready, crew.choice.current) * crew.choice.capacity for crew in crews if not crew.silent)
    anticipated = sum(one.current * one.capacity for one in choices)
    required = balance(rising, ready, anticipated, up, down).required
    spare = 0.0 if required > 0.0 else balance(falling, ready, anticipated, up, down).spare
    counts = {one.name: one.current for one in choices}
    if required > 0.0:
        counts |= grow(required, [crew.choice for crew in crews if not crew.late] or choices)
    elif spare > 0.0:
        counts |= shrink(spare, giving)
    return Resized(counts, required, spare, anticipated, ready)
