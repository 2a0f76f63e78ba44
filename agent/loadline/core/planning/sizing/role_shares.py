"""The demand of a role over its pools: the fewest costs that serve it, whatever the pools are made of."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from loadline.core.fleet.pool import Pool
from loadline.core.planning.allocation.covers import cover
from loadline.core.planning.sizing.sizing_by_profile import Size
from loadline.core.planning.sizing.sizing_by_queue import WorkerThroughput
from loadline.core.vocabulary.allocations import PoolOption, RoleRequest
from loadline.core.vocabulary.reasons import RoleDemand
from loadline.core.vocabulary.scalars import Role


class RoleShare(Struct, frozen=True):
    """A role: its pools, what one worker of each serves, and what is demanded of all of them together."""

    role: Role
    pools: Sequence[Pool]
    served: Mapping[str, WorkerThroughput]
    requests_per_s: float

    @property
    def need(self) -> RoleDemand:
        """What is demanded, and the pools that can serve it."""
        return RoleDemand(
            self.role, self.requests_per_s, {name: one.requests_per_s for name, one in self._able().items()}
        )

    def sizes(self, times: float, switching_cost_hours: float) -> dict[str, Size]:
        """Workers of each pool for so many times the demand; all there may be where they do not suffice."""
        able, demand = self._able(), self.requests_per_s * times
        options = tuple(_option(pool, able[pool.name]) for pool in self.pools if pool.name in able)
        covered = cover(RoleRequest(self.role, demand, options), switching_cost_hours)
        counts = covered or {option.pool: option.replicas_max for option in options}
        capacity = sum(counts[option.pool] * option.capacity for option in options)
        found: dict[str, Size] = {}
        for pool in self.pools:
            one, count = self.served[pool.name], counts.get(pool.name, pool.knobs.replicas_min)
            if one.problem is not None:
                found[pool.name] = Size(problem=one.problem)
            elif pool.name not in able:
                found[pool.name] = Size(0.0, count, count, infeasible=one.infeasible)
            else:
                busy = count and min(1.0, demand / capacity) * count * one.requests_per_s / one.saturated_requests_per_s
                missing = int(max(0.0, demand - capacity) / one.requests_per_s + 1.0) if covered is None else 0
                found[pool.name] = Size(busy, count, count + missing, infeasible=one.infeasible)
        return found

    def _able(self) -> dict[str, WorkerThroughput]:
        """The pools that meet the objectives; where none does, those that do the work all the same."""
        usable = {pool.name: one for pool in self.pools if (one := self.served[pool.name]).requests_per_s > 0.0}
        return {name: one for name, one in usable.items() if one.infeasible is None} or usable


def _option(pool: Pool, one: WorkerThroughput) -> PoolOption:
    standing = pool.ready + pool.starting if pool.desired is None else pool.desired
    knobs = pool.knobs
    return PoolOption(
        pool.name,
        one.requests_per_s,
        pool.cost_per_hour,
        replicas_min=knobs.replicas_min,
        replicas_max=knobs.replicas_max,
        current=standing,
    )
