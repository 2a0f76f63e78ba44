"""Demands of models on limited supplies, as an allocation problem.

A recommendation of plain counts is split in three: current workers rank before additional ones, so that models of equal
priority do not take workers from each other, and workers that the load does not need rank last. A recommendation with
role demands is one request, which any pool of the role can serve. The first worker of a role ranks before all: a model
without workers would otherwise wait forever for a worker that models of equal priority have no reason to release.
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
"""Steps per worker to which a demand is rounded: otherwise the problem would differ in every turn."""
_NUMBER_MAX: Final = 1e100
"""Bound of demands and capacities: beyond it, and below its inverse, quotients overflow."""
# Suffixes of request names; a control character cannot occur in the name of a model.
_FIRST, _KEPT, _MORE, _UNNEEDED = "\0first", "\0has", "\0more\0", "\0unneeded\0"
_RANKS: Final = 4
"""Ranks of each priority: the first worker of a role, current or needed workers, additional ones, unneeded ones."""
_INCOMPLETE_DATA: Final = frozenset(
    {ReasonCode.TRAFFIC_INCOMPLETE, ReasonCode.TRAFFIC_UNKNOWN, ReasonCode.NO_DATA, ReasonCode.UNKNOWN_WORKERS}
)
"""Reasons of a planner that holds a pool for lack of data."""


class ModelDemand(Struct, frozen=True):
    """Demand of one model on its pools."""

    counts: dict[str, int]
    """First choice: workers of each pool."""
    minimums: dict[str, int]
    """Workers that each pool has in any case: minimum replicas, or the current count if it must not shrink."""
    needs: tuple[RoleDemand, ...] = ()
    """Demands of roles that several pools can serve."""
    unneeded: dict[str, int] = {}
    """Current workers of each pool that the load does not need; only pools that have any."""

    def is_equivalent(self, other: "ModelDemand") -> bool:
        """Return True if both give the same allocation problem; their first choices may differ."""
        needed = {pool for need in self.needs for pool in need.capacities}
        same = all(count == other.counts.get(pool) for pool, count in self.counts.items() if pool not in needed)
        parts, others = (self.needs, self.minimums, self.unneeded), (other.needs, other.minimums, other.unneeded)
        return bool(needed) and same and parts == others

    def met_by(self, granted: Mapping[str, int]) -> set[str]:
        """Return the pools of the role demands that the granted counts serve in full."""
        return {
            pool
            for need in self.needs
            if need.demand <= sum(granted[one] * each for one, each in need.capacities.items()) + 1e-9
            for pool in need.capacities
        }


def current_demand(model: Model, pending: Mapping[str, int], now: int) -> ModelDemand:
    """Return the demand of a model that keeps its current target."""
    counts = {pool.name: min(WORKERS_MAX, planned_of(pool, pending, now)) for pool in model.pools.values()}
    return ModelDemand(counts, counts)


def demand_of(  # noqa: PLR0917 - one argument for each input
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
        model: State of the model.
        recommendation: Recommendation of its planner; a pool left out keeps its count.
        bounds: Temporary bounds of pools.
        limits: Hard limits of the model.
        pending: Counts being committed.
        granted: Granted counts of the last allocation; empty if it granted the first choice.
        stale_after_ms: Time after which a worker is stale.
        now: Unix time in ms.
    """
    counts, minimums, keeps = {}, {}, {}
    unneeded: dict[str, int] = {}
    held = {reason.pool for reason in recommendation.reasons if reason.code in _INCOMPLETE_DATA}
    for name, pool in model.pools.items():
        # A stored decision may have a count above the limit of an allocation problem.
        current, bound = min(WORKERS_MAX, planned_of(pool, pending, now)), bounds.get(name)
        recommended = recommendation.targets.get(name, current)
        wanted = min(pool.knobs.replicas_max, recommended)
        if bound is not None:
            wanted = max(bound.minimum, min(bound.maximum, wanted))
        # A pool without data does not shrink, so its GPUs are not available to others. New workers may report late.
        is_fresh = pool.has_quorum(limits.quorum_ratio) or now - pool.ready_changed_at_ms < stale_after_ms
        may_shrink = is_fresh and (name in recommendation.targets or not held & {name, ""})
        minimums[name] = pool.minimum if may_shrink else max(pool.minimum, min(current, pool.knobs.replicas_max))
        counts[name] = max(wanted, minimums[name])
        # The planner counts from the count in force: a shrink being committed must not count twice.
        base = recommendation.targets.get(name, pool.effective_target(now))
        needed = max(minimums[name], base - recommendation.unneeded.get(name, 0))
        unneeded |= {name: counts[name] - needed} if counts[name] > needed else {}
        keeps[name] = min(counts[name], needed, current, granted.get(name, current))
    shares = [
        PoolGpus(counts[name], pool.knobs.gpus_per_worker, minimums[name], pool.knobs.replicas_max)
        for name, pool in model.pools.items()
    ]
    band = GpuBand(limits.gpu_budget_min or None, limits.gpu_budget_max)
    bounded = [max(share.replicas_min, count) for share, count in zip(shares, fit(shares, band), strict=True)]
    if bounds or bounded != list(counts.values()):
        return ModelDemand(dict(zip(counts, bounded, strict=True)), minimums)
    needs = (_in_steps(need, keeps) for need in recommendation.demands if _is_usable(need, model))
    unneeded = _above_floor(unneeded, dict(zip(counts, shares, strict=True)), band.floor or 0)
    return ModelDemand(counts, minimums, tuple(need for need in needs if need.capacities), unneeded)


def _above_floor(unneeded: Mapping[str, int], shares: Mapping[str, PoolGpus], floor: int) -> dict[str, int]:
    """Return the unneeded workers that can leave without less than ``floor`` GPUs, the minimum of the model's budget.

    Its guardrail would keep the others, and the GPUs granted to another model for them would never be free.
    """
    found: dict[str, int] = {}
    left = sum(share.total for share in shares.values()) - floor
    for name, workers in unneeded.items():
        count = min(workers, left // shares[name].gpus)
        if count > 0:
            found[name] = count
            left -= count * shares[name].gpus
    return found


def _is_usable(need: RoleDemand, model: Model) -> bool:
    numbers = (need.demand, *need.capacities.values())
    known = bool(need.capacities) and need.capacities.keys() <= model.pools.keys()
    return known and all(0.0 <= one <= _NUMBER_MAX for one in numbers)


def _in_steps(need: RoleDemand, keeps: Mapping[str, int]) -> RoleDemand:
    """Return a role demand rounded up to steps, without pools of negligible capacity.

    The demand is raised to the capacity of the workers that the planner keeps, if that is at least a worker more: the
    planner may keep them for reasons other than the demand.

    Args:
        need: Demand of a role.
        keeps: Current workers by pool that the planner keeps.
    """
    capacity_min = max(need.demand / WORKERS_MAX, 1.0 / _NUMBER_MAX)
    capacities = {pool: each for pool, each in sorted(need.capacities.items()) if each >= capacity_min}
    step = min(capacities.values(), default=1.0) / _STEPS
    kept = sum(keeps[pool] * each for pool, each in capacities.items())
    smallest = min((each for pool, each in capacities.items() if keeps[pool]), default=0.0)
    demand = kept if kept - smallest >= need.demand else need.demand
    return RoleDemand(need.role, ceil(demand / step - 1e-9) * step, capacities)


def left_of(
    demands: Mapping[str, ModelDemand], granted: Mapping[str, Mapping[str, int]], supplies: Supplies
) -> dict[str, int]:
    """Return the GPUs left of each supply if models get their grant, or their first choice without one."""
    left = dict(supplies.limits)
    for name in supplies.takes:
        for supply, gpus in supplies.taken(name, granted.get(name, demands[name].counts)).items():
            left[supply] -= gpus
    return left


def problem_of(
    fleet: Fleet, demands: Mapping[str, ModelDemand], supplies: Supplies, knobs: AllocationKnobs, now: int
) -> AllocationProblem:
    """Return the allocation problem at ``now`` (ms) of all models that use limited supplies."""
    requests: list[ModelRequest] = []
    for name in sorted(supplies.takes):
        requests += _requests(fleet.models[name], demands[name], supplies.priorities[name], supplies.takes[name], now)
    return AllocationProblem(
        tuple(requests), supplies.limits, knobs.policy, knobs.delayed_best_effort, knobs.switching_cost_hours
    )


def _requests(
    model: Model, model_demand: ModelDemand, priority: int, takes: Mapping[str, Mapping[str, int]], now: int
) -> list[ModelRequest]:
    """Return the requests of a model: first workers, needed and current workers, additional ones, unneeded ones."""
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
    kept_parts: list[RoleRequest] = []
    additional: list[tuple[str, int, list[RoleRequest]]] = []
    for name in sorted(takes.keys() - needed):
        pool, minimum, count = model.pools[name], model_demand.minimums[name], model_demand.counts[name]
        current, unneeded = pool.effective_target(now), model_demand.unneeded.get(name, 0)
        count -= unneeded
        kept = max(minimum, min(current, count))
        cost, taken = pool.cost_per_hour, dict(takes[name])
        if count and pool.knobs.role in empty:
            empty.remove(pool.knobs.role)
            option = PoolOption(name, 1.0, cost, taken, 0, 1)
            first.append(RoleRequest(pool.knobs.role, 1.0, (option,)))
            count -= 1
        if kept:
            option = PoolOption(name, 1.0, cost, taken, minimum, kept, current)
            kept_parts.append(RoleRequest(pool.knobs.role, float(kept), (option,)))
        if count > kept:
            option = PoolOption(name, 1.0, cost, taken, 0, count - kept)
            part = RoleRequest(pool.knobs.role, float(count - kept), (option,))
            additional.append((model.name + _MORE + name, rank + 2, [part]))
    for name in sorted(takes.keys() & model_demand.unneeded.keys()):
        pool, unneeded = model.pools[name], model_demand.unneeded[name]
        option = PoolOption(name, 1.0, pool.cost_per_hour, dict(takes[name]), 0, unneeded)
        part = RoleRequest(pool.knobs.role, float(unneeded), (option,))
        additional.append((model.name + _UNNEEDED + name, rank + 3, [part]))
    found = (
        (model.name + _FIRST, rank, first),
        (model.name, rank + 1, parts),
        (model.name + _KEPT, rank + 1, kept_parts),
        *additional,
    )
    return [ModelRequest(name, order, tuple(each)) for name, order, each in found if each]


def _empty(model: Model, model_demand: ModelDemand, takes: Mapping[str, Mapping[str, int]], now: int) -> set[Role]:
    """Return the roles without workers, and without workers that start in any case."""
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
    minimum = model_demand.minimums[pool.name]
    maximum = min(WORKERS_MAX, max(minimum, pool.knobs.replicas_max))
    taken = dict(takes.get(pool.name, {}))
    return PoolOption(pool.name, serves, pool.cost_per_hour, taken, minimum, maximum, pool.effective_target(now))


def counts_of(allocation: Allocation, name: str, model_demand: ModelDemand) -> dict[str, int]:
    """Return the counts that an allocation grants a model; pools that it leaves out get their first choice."""
    found: dict[str, int] = {}
    for request in (name + _FIRST, name, name + _KEPT, *(name + _MORE + pool for pool in model_demand.counts)):
        for pool, count in allocation.counts.get(request, {}).items():
            found[pool] = found.get(pool, 0) + count
    for pool, first_choice in model_demand.counts.items():
        # A role demand may already have them in its mix of pools.
        count = allocation.counts.get(name + _UNNEEDED + pool, {}).get(pool, 0)
        if count:
            found[pool] = max(found.get(pool, 0), min(found.get(pool, 0) + count, first_choice))
    return {
        pool: max(model_demand.minimums[pool], found.get(pool, count)) for pool, count in model_demand.counts.items()
    }
