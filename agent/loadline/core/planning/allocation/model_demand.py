"""Demands of models on limited supplies, as an allocation problem.

A recommendation of plain counts is split in two: the workers that the model has come before those that it would add, so
that models of equal priority do not take workers from each other. A recommendation with role demands is one request,
which other pools can serve. The first worker of a role comes before both: an unserved model would otherwise wait
forever for a worker that models of equal priority have no reason to release.
"""

from collections.abc import Mapping
from math import ceil
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from loadline.core.fleet.fleet import Fleet, Model
from loadline.core.fleet.pool import Pool
from loadline.core.planning.allocation.gpu_ledger import planned_of
from loadline.core.planning.allocation.supplies import AllocationKnobs, Supplies
from loadline.core.planning.guardrails.constraints import Bound
from loadline.core.planning.guardrails.gpu_band import GpuBand, PoolGpus, fit
from loadline.core.planning.guardrails.knobs import HardLimits
from loadline.core.vocabulary.allocations import Allocation, AllocationProblem, ModelRequest, PoolOption, RoleRequest
from loadline.core.vocabulary.reasons import ReasonCode, Recommendation, RoleDemand
from loadline.core.vocabulary.scalars import WORKERS_MAX, Role

_STEPS: Final = 4
"""A demand counts in quarters of a worker: else a question would never be the same for two turns."""
_NUMBER_MAX: Final = 1e100
"""Bound of demands and capacities: beyond it, and below its inverse, quotients overflow."""
# No name holds a control character, so these are nobody else's.
_FIRST, _HAS, _MORE = "\0first", "\0has", "\0more\0"
_RANKS: Final = 3
"""Ranks of each priority: the first worker of a role, current or needed workers, additional workers."""
_UNSURE: Final = frozenset(
    {ReasonCode.TRAFFIC_INCOMPLETE, ReasonCode.TRAFFIC_UNKNOWN, ReasonCode.NO_DATA, ReasonCode.UNKNOWN_WORKERS}
)
"""Reasons that a planner gives when it keeps a pool for lack of data."""


class ModelDemand(Struct, frozen=True):
    """Demand of one model on its pools."""

    counts: dict[str, int]
    """Workers by pool, of all its pools: its first choice."""
    minimums: dict[str, int]
    """Workers that a pool has whatever is short: its least count, or all that there are where it must not shrink."""
    needs: tuple[RoleDemand, ...] = ()

    def needs_as(self, other: "ModelDemand") -> bool:
        """Return True if both pose the same problem; their first choices may differ."""
        needed = {pool for need in self.needs for pool in need.capacities}
        same = all(count == other.counts.get(pool) for pool, count in self.counts.items() if pool not in needed)
        return bool(needed) and same and (self.needs, self.minimums) == (other.needs, other.minimums)

    def met_by(self, granted: Mapping[str, int]) -> set[str]:
        """Pools of the needs that these counts serve: of them no more is wanted, whatever the first choice."""
        return {
            pool
            for need in self.needs
            if need.demand <= sum(granted[one] * each for one, each in need.capacities.items()) + 1e-9
            for pool in need.capacities
        }


def current_demand(model: Model, pending: Mapping[str, int], now: int) -> ModelDemand:
    """A model that stays as it is."""
    counts = {pool.name: min(WORKERS_MAX, planned_of(pool, pending, now)) for pool in model.pools.values()}
    return ModelDemand(counts, counts)


def demand_of(  # noqa: PLR0917 - one argument for each fact
    model: Model,
    recommendation: Recommendation,
    bounds: Mapping[str, Bound],
    limits: HardLimits,
    pending: Mapping[str, int],
    granted: Mapping[str, int],
    stale_after_ms: int,
    now: int,
) -> ModelDemand:
    """Return the demand of a recommendation, within the bounds of the pools and the budget of the model.

    Args:
        model: The model as reported.
        recommendation: Recommendation of its planner; a pool left out keeps its count.
        bounds: Temporary bounds of pools.
        limits: Hard limits of the model.
        pending: Counts that are being committed.
        granted: Granted counts of the last allocation, where they differ from its first choice.
        stale_after_ms: Time after which a worker is silent.
        now: In ms.
    """
    counts, minimums, keeps = {}, {}, {}
    unsure = {reason.pool for reason in recommendation.reasons if reason.code in _UNSURE}
    for name, pool in model.pools.items():
        # Whatever is stored as decided: a count above that would stop the agent.
        there_are, bound = min(WORKERS_MAX, planned_of(pool, pending, now)), bounds.get(name)
        wanted = min(pool.knobs.replicas_max, recommendation.targets.get(name, there_are))
        if bound is not None:
            wanted = max(bound.least, min(bound.most, wanted))
        # Without data it does not shrink, so others must not count on it. Who has just come is yet to report.
        heard = pool.has_quorum(limits.quorum_ratio) or now - pool.ready_changed_at_ms < stale_after_ms
        sure = name in recommendation.targets or not unsure & {name, ""}
        minimums[name] = pool.minimum if heard and sure else max(pool.minimum, min(there_are, pool.knobs.replicas_max))
        counts[name] = max(wanted, minimums[name])
        keeps[name] = min(counts[name], there_are, granted.get(name, there_are))
    shares = [
        PoolGpus(counts[name], pool.knobs.gpus_per_worker, minimums[name], pool.knobs.replicas_max)
        for name, pool in model.pools.items()
    ]
    band = GpuBand(limits.gpu_budget_min or None, limits.gpu_budget_max)
    bounded = [max(share.least, count) for share, count in zip(shares, fit(shares, band), strict=True)]
    if bounds or bounded != list(counts.values()):
        return ModelDemand(dict(zip(counts, bounded, strict=True)), minimums)
    needs = (_in_steps(need, keeps) for need in recommendation.demands if _is_usable(need, model))
    return ModelDemand(counts, minimums, tuple(need for need in needs if need.capacities))


def _is_usable(need: RoleDemand, model: Model) -> bool:
    numbers = (need.demand, *need.capacities.values())
    known = bool(need.capacities) and need.capacities.keys() <= model.pools.keys()
    return known and all(0.0 <= one <= _NUMBER_MAX for one in numbers)


def _in_steps(need: RoleDemand, keeps: Mapping[str, int]) -> RoleDemand:
    """A need in steps of its demand, with the pools that could serve it alone, if with all the workers there may be.

    It is no less than what a planner keeps, for it may have other reasons to than the demand. Of a mix that is less
    than a worker above the demand none is kept: each is needed.
    """
    least = max(need.demand / WORKERS_MAX, 1.0 / _NUMBER_MAX)
    serves = {pool: each for pool, each in sorted(need.capacities.items()) if each >= least}
    step = min(serves.values(), default=1.0) / _STEPS
    kept = sum(keeps[pool] * each for pool, each in serves.items())
    smallest = min((each for pool, each in serves.items() if keeps[pool]), default=0.0)
    demand = kept if kept - smallest >= need.demand else need.demand
    return RoleDemand(need.role, ceil(demand / step - 1e-9) * step, serves)


def left_of(
    demands: Mapping[str, ModelDemand], granted: Mapping[str, Mapping[str, int]], supplies: Supplies
) -> dict[str, int]:
    """Return what is left of each supply if models get their grant, or their first choice without one."""
    left = dict(supplies.limits)
    for name in supplies.takes:
        for supply, gpus in supplies.taken(name, granted.get(name, demands[name].counts)).items():
            left[supply] -= gpus
    return left


def problem_of(
    fleet: Fleet, demands: Mapping[str, ModelDemand], supplies: Supplies, knobs: AllocationKnobs, now: int
) -> AllocationProblem:
    """Return the allocation problem at ``now`` (ms) of all models that use limited supplies."""
    wants: list[ModelRequest] = []
    for name in sorted(supplies.takes):
        wants += _wants(fleet.models[name], demands[name], supplies.priorities[name], supplies.takes[name], now)
    return AllocationProblem(
        tuple(wants), supplies.limits, knobs.policy, knobs.delayed_best_effort, knobs.switching_cost_hours
    )


def _wants(
    model: Model, model_demand: ModelDemand, priority: int, takes: Mapping[str, Mapping[str, int]], now: int
) -> list[ModelRequest]:
    rank = _RANKS * priority
    needed = {pool for need in model_demand.needs for pool in need.capacities}
    empty = _empty(model, model_demand, takes, now)
    first: list[RoleRequest] = []
    parts: list[RoleRequest] = []
    for need in model_demand.needs:
        options = tuple(
            _option(model.pools[pool], model_demand, each, takes, now) for pool, each in need.capacities.items()
        )
        demand = need.demand
        if need.role in empty and demand > 0.0 and options:
            empty.remove(need.role)
            worker = min(need.capacities.values())
            first.append(RoleRequest(need.role, worker, options))
            demand = max(0.0, demand - worker)
            options = tuple(replace(option, replicas_max=option.replicas_max - 1) for option in options)
        parts.append(RoleRequest(need.role, demand, options))
    has: list[RoleRequest] = []
    more: list[tuple[str, int, list[RoleRequest]]] = []
    for name in sorted(takes.keys() - needed):
        pool, floor, count = model.pools[name], model_demand.minimums[name], model_demand.counts[name]
        there_are = pool.effective_target(now)
        kept = max(floor, min(there_are, count))
        cost, taken = pool.cost_per_hour, dict(takes[name])
        if count and pool.knobs.role in empty:
            empty.remove(pool.knobs.role)
            option = PoolOption(name, 1.0, cost, taken, 0, 1)
            first.append(RoleRequest(pool.knobs.role, 1.0, (option,)))
            count -= 1
        if kept:
            option = PoolOption(name, 1.0, cost, taken, floor, kept, there_are)
            has.append(RoleRequest(pool.knobs.role, float(kept), (option,)))
        if count > kept:
            option = PoolOption(name, 1.0, cost, taken, 0, count - kept)
            part = RoleRequest(pool.knobs.role, float(count - kept), (option,))
            more.append((model.name + _MORE + name, rank + 2, [part]))
    found = (
        (model.name + _FIRST, rank, first),
        (model.name, rank + 1, parts),
        (model.name + _HAS, rank + 1, has),
        *more,
    )
    return [ModelRequest(name, order, tuple(each)) for name, order, each in found if each]


def _empty(model: Model, model_demand: ModelDemand, takes: Mapping[str, Mapping[str, int]], now: int) -> set[Role]:
    """The roles of which a model has no worker, and none that comes whatever is short."""
    pools = model.pools
    served = {
        pool.knobs.role
        for name, pool in pools.items()
        if pool.effective_target(now)
        or model_demand.minimums[name]
        or (model_demand.counts[name] and name not in takes)
    }
    return {pool.knobs.role for pool in pools.values()} - served


def _option(
    pool: Pool, model_demand: ModelDemand, serves: float, takes: Mapping[str, Mapping[str, int]], now: int
) -> PoolOption:
    floor = model_demand.minimums[pool.name]
    most = min(WORKERS_MAX, max(floor, pool.knobs.replicas_max))
    taken = dict(takes.get(pool.name, {}))
    return PoolOption(pool.name, serves, pool.cost_per_hour, taken, floor, most, pool.effective_target(now))


def counts_of(allocation: Allocation, name: str, model_demand: ModelDemand) -> dict[str, int]:
    """Return the counts that an allocation gives a model; a pool that it leaves out gets its first choice."""
    found: dict[str, int] = {}
    for want in (name + _FIRST, name, name + _HAS, *(name + _MORE + pool for pool in model_demand.counts)):
        for pool, count in allocation.counts.get(want, {}).items():
            found[pool] = found.get(pool, 0) + count
    return {
        pool: max(model_demand.minimums[pool], found.get(pool, count)) for pool, count in model_demand.counts.items()
    }
