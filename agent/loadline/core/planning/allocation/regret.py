"""Greedy allocation of limited supplies by regret.

Models are served by priority, then by regret (the additional cost of their second candidate), then by the cost of their
first candidate, highest first, then by name. A model whose candidate does not fit is queued again with its next one.
This is the order of the Workload Variant Autoscaler (v0.4.1), which leaves ties undefined. Supplies that remain are
distributed by a policy to models that cannot be served in full (``leftovers``).
"""

from collections.abc import Iterable, Sequence
from heapq import heapify, heappop, heappush
from itertools import groupby
from math import inf

from loadline.core.planning.allocation.contenders import (
    Bundle,
    Contender,
    RemainingSupply,
    contenders_of,
    served,
    supply_of,
)
from loadline.core.planning.allocation.leftovers import share_out
from loadline.core.planning.allocation.weighted import by_weight
from loadline.core.vocabulary.allocations import Allocation, AllocationProblem, SaturationPolicy

Counts = dict[str, dict[str, int]]
Chosen = dict[str, Bundle]
"""Bundles that serve requests in full, by request."""


def greedy(problem: AllocationProblem) -> Allocation:
    """Allocate greedily; the result does not depend on the order of models and pools."""
    supply = supply_of(problem)
    contenders = contenders_of(problem, supply)
    counts = grant_workers(contenders, supply, problem.policy, delayed=problem.delayed_best_effort)
    return allocation_of(contenders, counts)


def grant_workers(
    contenders: Sequence[Contender], supply: RemainingSupply, policy: SaturationPolicy, *, delayed: bool
) -> Counts:
    """Return the granted counts by request and pool; take their GPUs from the supply."""
    if policy == "weighted":
        return by_weight(contenders, supply)
    counts: Counts = {}
    for group in groups_of(contenders, policy, delayed=delayed):
        chosen, unserved = serve(group, supply)
        counts |= {name: bundle.counts for name, bundle in chosen.items()}
        counts |= share_out(unserved, supply, policy)
    return counts


def groups_of(contenders: Sequence[Contender], policy: SaturationPolicy, *, delayed: bool) -> list[list[Contender]]:
    """Group requests; leftovers are shared out within a group before the next group is served."""
    if delayed or policy == "none":
        return [list(contenders)]
    return [list(group) for _, group in groupby(sorted(contenders, key=_priority), _priority)]


def allocation_of(contenders: Sequence[Contender], granted: Counts) -> Allocation:
    """Return the allocation with the granted counts, or else minimum replicas, and the unserved demand."""
    counts: Counts = {}
    unserved: dict[str, float] = {}
    for contender in sorted(contenders, key=lambda contender: contender.request.name):
        name, minimums = contender.request.name, contender.minimums()
        counts[name] = {pool: granted.get(name, minimums).get(pool, 0) for pool in sorted(minimums)}
        share = 1.0 - min((served(part, counts[name]) for part in contender.request.roles), default=1.0)
        if share > 0.0:
            unserved[name] = share
    return Allocation(counts, unserved)


def serve(group: Sequence[Contender], supply: RemainingSupply) -> tuple[Chosen, list[Contender]]:
    """Serve requests in full; return the bundles of those served, and the others in the order of their failure."""
    chosen: Chosen = {}
    unserved: list[Contender] = []
    for _, equals in groupby(sorted(group, key=_priority), _priority):
        for contender in _serve(equals, supply, chosen):
            mixed = contender.mixed(supply)
            if mixed is None:
                unserved.append(contender)
            else:
                supply.take(mixed.takes)
                chosen[contender.request.name] = mixed
    return chosen, unserved


def _serve(equals: Iterable[Contender], supply: RemainingSupply, chosen: Chosen) -> list[Contender]:
    """Serve requests of one priority by their candidates; return those of which no candidate fits."""
    queue = [(*_order(contender, 0), 0, contender) for contender in equals]
    heapify(queue)
    unserved: list[Contender] = []
    while queue:
        *_, number, contender = heappop(queue)
        bundle = contender.candidates[number]
        if supply.fits(bundle.takes):
            supply.take(bundle.takes)
            chosen[contender.request.name] = bundle
        elif number + 1 < len(contender.candidates):
            heappush(queue, (*_order(contender, number + 1), number + 1, contender))
        else:
            unserved.append(contender)
    return unserved


def _order(contender: Contender, number: int) -> tuple[float, float, str]:
    """Return the sort key of a candidate: highest regret, then highest cost, then name."""
    candidates = contender.candidates
    regret = candidates[number + 1].value - candidates[number].value if number + 1 < len(candidates) else inf
    return -regret, -candidates[number].value, contender.request.name


def _priority(contender: Contender) -> int:
    return contender.request.priority
