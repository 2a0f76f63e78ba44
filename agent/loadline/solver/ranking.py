"""Which of two allocations of a problem is better."""

from collections.abc import Mapping

from msgspec import Struct

from loadline.core.planning.allocation.contenders import RemainingSupply, bundles_of, served
from loadline.core.vocabulary.allocations import Allocation, AllocationProblem, RoleRequest


class AllocationRank(Struct, frozen=True, order=True):
    """Less is better, of what comes first before all that comes after it."""

    unserved: list[int]
    """Models, by priority."""
    cost: float
    """Of those that are served, with what changing to it costs."""
    missing: list[float]
    """Shares (0..1) of their demands that the others are not served, by priority."""


def rank_allocation(problem: AllocationProblem, found: Allocation) -> AllocationRank:
    """How good an allocation is. A model that has all there may be counts as served."""
    priorities = sorted({want.priority for want in problem.models})
    unserved, missing, cost = [0] * len(priorities), [0.0] * len(priorities), 0.0
    for want in problem.models:
        counts, at = found.counts[want.name], priorities.index(want.priority)
        if all(_has_all(part, counts) for part in want.roles):
            bundles = [
                bundles_of(part, [counts], RemainingSupply({}), problem.switching_cost_hours) for part in want.roles
            ]
            cost += sum(bundle.value for (bundle,) in bundles)
        else:
            unserved[at] += 1
            missing[at] += found.unserved[want.name]
    return AllocationRank(unserved, cost, missing)


def _has_all(part: RoleRequest, counts: Mapping[str, int]) -> bool:
    return served(part, counts) == 1.0 or all(counts[option.pool] == option.replicas_max for option in part.options)
