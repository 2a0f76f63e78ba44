"""Sizing of the pools of a role: how much capacity is missing or unused, and which pools grow or shrink for it.

Demand and capacity have the same unit, of any kind. The rules are those of the cost-aware optimiser of llm-d's Workload
Variant Autoscaler (August 2026). Three are added: silent workers count as full, a pool with overdue workers is excluded
from growth, and a load that exceeds the maximum counts of all pools is recommended nevertheless.
"""

from collections.abc import Iterator, Sequence
from math import ceil, floor
from typing import Final

from msgspec import Struct

EPSILON: Final = 1e-9
"""Tolerance of quotients: a capacity of 0.7 times 10 workers needs no more than 7."""


class Balance(Struct, frozen=True):
    """Missing capacity and headroom, in the unit of the demand; at least one of them is 0."""

    required: float
    headroom: float


def balance(demand: float, ready: float, expected: float, up: float, down: float) -> Balance:
    """Compare a demand with the capacity of workers.

    Args:
        demand: Demand in any unit.
        ready: Capacity of ready workers.
        expected: Capacity of ready and pending workers.
        up: Utilisation (0..1) above which capacity is missing.
        down: Utilisation (0..1) below which there is headroom.
    """
    return Balance(max(0.0, demand / up - expected), max(0.0, ready - demand / down))


class Candidate(Struct, frozen=True):
    """A pool that can serve a part of a demand."""

    name: str
    cost: float
    """Cost of one worker."""
    capacity: float
    """Capacity of one worker; a pool whose workers serve nothing neither grows nor shrinks."""
    current: int
    replicas_min: int = 0
    replicas_max: int | None = None


def grow(required: float, candidates: Sequence[Candidate]) -> dict[str, int]:
    """Return counts with ``required`` more capacity, from the pool of the lowest cost per capacity, then the next."""
    counts = {candidate.name: candidate.current for candidate in candidates}
    for candidate in _by_price(candidates):
        added = ceil(required / candidate.capacity - EPSILON)
        if candidate.replicas_max is not None:
            added = min(added, candidate.replicas_max - candidate.current)
        if added > 0:
            counts[candidate.name] += added
            required -= added * candidate.capacity
    return counts


def grow_beyond_maximum(required: float, candidates: Sequence[Candidate]) -> dict[str, int]:
    """Return the counts of ``grow``, and what exceeds the maximum counts of all pools in the pool of the lowest price.

    A guardrail limits that pool to its maximum, so the difference is the capacity that the model lacks.
    """
    counts = grow(required, candidates)
    missing = required - sum((counts[one.name] - one.current) * one.capacity for one in candidates)
    cheapest = next(_by_price(candidates), None)
    if cheapest is not None and missing > 0.0:
        counts[cheapest.name] += max(0, ceil(missing / cheapest.capacity - EPSILON))
    return counts


def shrink(headroom: float, candidates: Sequence[Candidate]) -> dict[str, int]:
    """Return counts with up to ``headroom`` less capacity, from the pool of the highest cost per worker, then the next.

    The cheapest pool keeps one worker if no other pool has any.
    """
    counts = {candidate.name: candidate.current for candidate in candidates}
    by_cost = sorted(_serving(candidates), key=lambda one: (-one.cost, one.name))
    for candidate in by_cost:
        minimum = candidate.replicas_min
        if candidate is by_cost[-1] and not any(counts[other.name] for other in by_cost[:-1]):
            minimum = max(minimum, 1)
        removed = min(floor(headroom / candidate.capacity + EPSILON), candidate.current - minimum)
        if removed > 0:
            counts[candidate.name] -= removed
            headroom -= removed * candidate.capacity
    return counts


def _serving(candidates: Sequence[Candidate]) -> list[Candidate]:
    return [candidate for candidate in candidates if candidate.capacity > 0.0]


def _by_price(candidates: Sequence[Candidate]) -> Iterator[Candidate]:
    """Return an iterator over the pools in order of their cost per capacity."""
    return iter(sorted(_serving(candidates), key=lambda one: (one.cost / one.capacity, one.name)))


class PoolCapacity(Struct, frozen=True):
    """A pool of a role, and the state of its workers."""

    candidate: Candidate
    """Pool to scale; ``current`` counts ready and pending workers."""
    ready: int
    silent: bool = False
    """True if no worker reports its load; the pool then counts as full in a scale-down."""
    overdue: bool = False
    """True if requested workers missed their start deadline; another pool grows if there is one."""


class RoleCounts(Struct, frozen=True):
    """Counts for the pools of a role, and the capacities that led to them."""

    counts: dict[str, int]
    required: float
    headroom: float
    expected: float
    """Capacity of all workers, pending ones included."""
    reported: float
    """Capacity of ready workers that report their load and are not to be removed."""


def resize(
    pools: Sequence[PoolCapacity], scale_up_load: float, scale_down_load: float, up: float, down: float
) -> RoleCounts:
    """Scale up by the lower bound of the load, or else scale down by the upper bound.

    Args:
        pools: Pools of a role, at least one.
        scale_up_load: Lower bound of the load of all pools.
        scale_down_load: Upper bound of the load of the pools that are not silent.
        up: Utilisation (0..1) above which capacity is missing.
        down: Utilisation (0..1) below which there is headroom.
    """
    candidates = [pool.candidate for pool in pools]
    # Pending workers hold no load yet, and workers that are to be removed will hold none.
    reported = sum(
        min(pool.ready, pool.candidate.current) * pool.candidate.capacity for pool in pools if not pool.silent
    )
    expected = sum(candidate.current * candidate.capacity for candidate in candidates)
    required = balance(scale_up_load, reported, expected, up, down).required
    headroom = 0.0 if required > 0.0 else balance(scale_down_load, reported, expected, up, down).headroom
    counts = {candidate.name: candidate.current for candidate in candidates}
    if required > 0.0:
        counts |= grow_beyond_maximum(required, [pool.candidate for pool in pools if not pool.overdue] or candidates)
    elif headroom > 0.0:
        counts |= shrink(headroom, [pool.candidate for pool in pools if not pool.silent])
    return RoleCounts(counts, required, headroom, expected, reported)
