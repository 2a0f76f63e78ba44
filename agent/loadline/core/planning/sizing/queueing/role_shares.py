"""Division of the demand of a role among its pools, at the lowest cost."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from loadline.core.fleet.pool import Pool
from loadline.core.planning.allocation.covers import cover
from loadline.core.planning.sizing.profile.counts import Size
from loadline.core.planning.sizing.queueing.rates import WorkerThroughput
from loadline.core.planning.sizing.replicas import replicas_for
from loadline.core.vocabulary.allocations import PoolOption, RoleRequest
from loadline.core.vocabulary.reasons import RoleDemand
from loadline.core.vocabulary.scalars import Role


class RoleShare(Struct, frozen=True):
    """Pools of a role, the throughput of one worker of each, and the demand of the role."""

    role: Role
    pools: Sequence[Pool]
    throughputs: Mapping[str, WorkerThroughput]
    requests_per_s: float

    @property
    def demand(self) -> RoleDemand:
        """Demand of the role, and the pools that can serve it."""
        capacities = {name: one.requests_per_s for name, one in self._usable().items()}
        return RoleDemand(self.role, self.requests_per_s, capacities)

    def sizes(self, factor: float, switching_cost_hours: float) -> dict[str, Size]:
        """Return the size of each pool for a multiple of the demand.

        If maximum replicas of all pools are too few, the pool of the lowest cost per capacity gets what is missing.
        """
        usable, demand = self._usable(), self.requests_per_s * factor
        options = tuple(_option(pool, usable[pool.name]) for pool in self.pools if pool.name in usable)
        covered = cover(RoleRequest(self.role, demand, options), switching_cost_hours)
        counts = covered or _beyond_maximum(demand, options)
        capacity = sum(counts[option.pool] * option.capacity for option in options)
        sizes: dict[str, Size] = {}
        for pool in self.pools:
            one, count = self.throughputs[pool.name], counts.get(pool.name, pool.knobs.replicas_min)
            if one.problem is not None:
                sizes[pool.name] = Size(problem=one.problem)
            elif pool.name not in usable:
                sizes[pool.name] = Size(0.0, count, count, infeasible=one.infeasible)
            else:
                served = min(1.0, demand / capacity) * count * one.requests_per_s if count else 0.0
                busy = served / one.saturated_requests_per_s
                sizes[pool.name] = Size(busy, count, count, infeasible=one.infeasible)
        return sizes

    def _usable(self) -> dict[str, WorkerThroughput]:
        """Return the pools that meet the objectives; if none does, those that can do the work."""
        working = {pool.name: one for pool in self.pools if (one := self.throughputs[pool.name]).requests_per_s > 0.0}
        return {name: one for name, one in working.items() if one.infeasible is None} or working


def _beyond_maximum(demand: float, options: Sequence[PoolOption]) -> dict[str, int]:
    """Return the maximum counts, and in the pool of the lowest cost per capacity as many as the demand needs."""
    counts = {option.pool: option.replicas_max for option in options}
    cheapest = min(options, key=lambda one: (one.cost_per_hour / one.capacity, one.pool), default=None)
    if cheapest is not None:
        others = sum(counts[one.pool] * one.capacity for one in options if one is not cheapest)
        counts[cheapest.pool] = replicas_for(demand - others, cheapest.capacity, cheapest.replicas_max)
    return counts


def _option(pool: Pool, throughput: WorkerThroughput) -> PoolOption:
    current = pool.ready + pool.starting if pool.target is None else pool.target
    knobs = pool.knobs
    return PoolOption(
        pool.name,
        throughput.requests_per_s,
        pool.cost_per_hour,
        replicas_min=knobs.replicas_min,
        replicas_max=knobs.replicas_max,
        current=current,
    )
