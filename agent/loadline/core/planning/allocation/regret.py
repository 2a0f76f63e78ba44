"""Greedy allocation of limited supplies by regret: models with most to lose come first.

Models are served by priority; of equal ones the model first to which its second choice is worst, then the one whose
choice is dearest, then by name. A model whose choice does not fit comes again with its next one. This is the order of
the Workload Variant Autoscaler (v0.4.1), in which equals came in any order. What is left goes to models that cannot be
served, by a policy (``leftovers``).
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
    """Allocate without search. The result does not depend on the order of the models or pools."""
    supply = supply_of(problem)
    contenders = contenders_of(problem, supply)
    return allocation(contenders, grant(contenders, supply, problem.policy, delayed=problem.delayed_best_effort))


def grant(
    contenders: Sequence[Contender], supply: RemainingSupply, policy: SaturationPolicy, *, delayed: bool
) -> Counts:
    """Return the workers by request and pool, and take their GPUs from the supply."""
    if policy == "weighted":
        return by_weight(contenders, supply)
    counts: Counts = {}
    for group in groups_of(contenders, policy, delayed=delayed):
        chosen, unserved = serve(group, supply)
        counts |= {name: choice.counts for name, choice in chosen.items()}
        counts |= share_out(unserved, supply, policy)
    return counts


def groups_of(contenders: Sequence[Contender], policy: SaturationPolicy, *, delayed: bool) -> list[list[Contender]]:
    """Group requests that are served before leftovers are shared; later groups get what remains."""
    if delayed or policy == "none":
        return [list(contenders)]
    return [list(group) for _, group in groupby(sorted(contenders, key=_priority), _priority)]


def allocation(contenders: Sequence[Contender], counts: Counts) -> Allocation:
    """The counts of all pools, and what they do not serve."""
    every: Counts = {}
    unserved: dict[str, float] = {}
    for contender in sorted(contenders, key=lambda contender: contender.want.name):
        name, least = contender.want.name, contender.least()
        every[name] = {pool: counts.get(name, least).get(pool, 0) for pool in sorted(least)}
        share = 1.0 - min((served(part, every[name]) for part in contender.want.roles), default=1.0)
        if share > 0.0:
            unserved[name] = share
    return Allocation(every, unserved)


def serve(group: Sequence[Contender], supply: RemainingSupply) -> tuple[Chosen, list[Contender]]:
    """Serve those that can be; the others, in the order in which they turned out not to be."""
    chosen: Chosen = {}
    unserved: list[Contender] = []
    for _, equals in groupby(sorted(group, key=_priority), _priority):
        for contender in _serve(equals, supply, chosen):
            mixed = contender.mixed(supply)
            if mixed is None:
                unserved.append(contender)
            else:
                supply.take(mixed.takes)
                chosen[contender.want.name] = mixed
    return chosen, unserved


def _serve(equals: Iterable[Contender], supply: RemainingSupply, chosen: Chosen) -> list[Contender]:
    """Serve those of one priority of which a candidate fits."""
    queue = [(*_order(contender, 0), 0, contender) for contender in equals]
    heapify(queue)
    unserved: list[Contender] = []
    while queue:
        *_, number, contender = heappop(queue)
        choice = contender.candidates[number]
        if supply.fits(choice.takes):
            supply.take(choice.takes)
            chosen[contender.want.name] = choice
        elif number + 1 < len(contender.candidates):
            heappush(queue, (*_order(contender, number + 1), number + 1, contender))
        else:
            unserved.append(contender)
    return unserved


def _order(contender: Contender, number: int) -> tuple[float, float, str]:
    """By what the next choice costs more, by what this one costs, by name."""
    choices = contender.candidates
    regret = choices[number + 1].value - choices[number].value if number + 1 < len(choices) else inf
    return -regret, -choices[number].value, contender.want.name


def _priority(contender: Contender) -> int:
    return contender.want.priority
