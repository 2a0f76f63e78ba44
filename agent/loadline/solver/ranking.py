"""Ranking of allocations of one problem."""

from collections.abc import Mapping

from msgspec import Struct

from loadline.core.planning.allocation.contenders import RemainingSupply, bundles_of, served
from loadline.core.vocabulary.allocations import Allocation, AllocationProblem, RoleRequest


class AllocationRank(Struct, frozen=True, order=True):
    """Lexicographic rank of an allocation; lower is better."""

    unserved: list[int]
    """Number of unserved models by priority."""
    cost: float
    """Cost of the served models, with switching costs."""
    missing: list[float]
    """Unserved fractions (0..1) of the demands of the other models, by priority."""


def rank_allocation(problem: AllocationProblem, allocated: Allocation) -> AllocationRank:
    """Rank an allocation; a model at maximum replicas counts as served."""
    priorities = sorted({model.priority for model in problem.models})
    unserved, missing, cost = [0] * len(priorities), [0.0] * len(priorities), 0.0
    for model in problem.models:
        counts, at = allocated.counts[model.name], priorities.index(model.priority)
        if all(_has_all(request, counts) for request in model.roles):
            bundles = [
                bundles_of(request, [counts], RemainingSupply({}), problem.switching_cost_hours)
                for request in model.roles
            ]
            cost += sum(bundle.value for (bundle,) in bundles)
        else:
            unserved[at] += 1
            missing[at] += allocated.unserved[model.name]
    return AllocationRank(unserved, cost, missing)


def _has_all(request: RoleRequest, counts: Mapping[str, int]) -> bool:
    return served(request, counts) == 1.0 or all(
        counts[option.pool] == option.replicas_max for option in request.options
    )
