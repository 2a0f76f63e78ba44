"""Demands of models on limited supplies, as an allocation problem.

A recommendation of plain counts is split by level, the part of its need that a worker serves (``worker_levels``), so
that models of equal priority, and the roles of each, are served alike; workers that the load does not need rank last. A
recommendation with role demands is one request, which any pool of the role can serve. The first worker of each role
ranks before all: a model without workers would otherwise wait for one of a model that needs all of its own. Models that
have a worker of each role come first among these, as the model that gives its last worker would ask for it again.
"""

from collections.abc import Mapping
from math import ceil
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from loadline.core.fleet.fleet import Fleet, Model
from loadline.core.fleet.pool import Pool
from loadline.core.planning.allocation.covers import cover
from loadline.core.planning.allocation.gpu_ledger import planned_of
from loadline.core.planning.allocation.supplies import AllocationKnobs, Supplies
from loadline.core.planning.allocation.worker_levels import LEVEL_RANKS, UNDIVIDED, ranked_workers
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
_FIRST, _MINIMUM, _LEVEL, _UNNEEDED = "\0first", "\0minimum", "\0level\0", "\0unneeded\0"
_LEVELS_BEGIN: Final = 3
"""Rank of the lowest level within a priority, after existing and new first workers, and minimum replicas."""
_RANKS: Final = _LEVELS_BEGIN + LEVEL_RANKS + 1
"""Ranks of each priority: those before the levels, the levels, and unneeded workers."""
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
    lasting: dict[str, int] = {}
    """Workers that the arrivals of a pool need; only pools whose planner tells them."""

    def is_equivalent(self, other: "ModelDemand") -> bool:
        """Return True if both give the same allocation problem; their first choices may differ."""
        needed = {pool for need in self.needs for pool in need.capacities}
        same = all(
            count == other.counts.get(pool) and self.lasting.get(pool) == other.lasting.get(pool)
            for pool, count in self.counts.items()
            if pool not in needed
        )
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
        return ModelDemand(dict(zip(counts, bounded, strict=True)), minimums, lasting=recommendation.lasting)
    needs = (_in_steps(need, keeps) for need in recommendation.demands if _is_usable(need, model))
    unneeded = _above_floor(unneeded, dict(zip(counts, shares, strict=True)), band.floor or 0)
    return ModelDemand(
        counts, minimums, tuple(need for need in needs if need.capacities), unneeded, recommendation.lasting
    )


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
        rank, takes = _RANKS * supplies.priorities[name], supplies.takes[name]
        requests += _requests(fleet.models[name], demands[name], rank, takes, knobs.switching_cost_hours, now)
    return AllocationProblem(
        tuple(requests), supplies.limits, knobs.policy, knobs.delayed_best_effort, knobs.switching_cost_hours
    )


def _requests(  # noqa: PLR0917 - one argument for each input
    model: Model, model_demand: ModelDemand, rank: int, takes: Mapping[str, Mapping[str, int]], hours: float, now: int
) -> list[ModelRequest]:
    """Return the requests of a model: first workers, minimum replicas, role demands, levels, unneeded workers."""
    needed = {pool for need in model_demand.needs for pool in need.capacities}
    unreserved = _unreserved(model, model_demand, takes)
    first: list[RoleRequest] = []
    parts: list[RoleRequest] = []
    for need in model_demand.needs:
        options = tuple(
            _option(model.pools[pool], model_demand, each, takes, now) for pool, each in need.capacities.items()
        )
        part = RoleRequest(need.role, need.demand, options)
        if need.role in unreserved and need.demand > 0.0 and options:
            unreserved.remove(need.role)
            one, part = _first_of(part, hours)
            first.append(one)
        parts.append(part)
    ranked: list[tuple[str, int, list[RoleRequest]]] = []
    minimums: list[RoleRequest] = []
    levels = rank + _LEVELS_BEGIN
    # Pools that have workers come first: one of these is the first worker of its role.
    for name in sorted(takes.keys() - needed, key=lambda one: (not model.pools[one].effective_target(now), one)):
        pool, minimum = model.pools[name], model_demand.minimums[name]
        count, current = model_demand.counts[name] - model_demand.unneeded.get(name, 0), pool.effective_target(now)
        role, lasting = pool.knobs.role, model_demand.lasting.get(name)
        option = PoolOption(name, 1.0, pool.cost_per_hour, dict(takes[name]), 0, 1)
        reserved = minimum
        if minimum:
            kept = replace(option, replicas_min=minimum, replicas_max=minimum, current=current)
            minimums.append(RoleRequest(role, float(minimum), (kept,)))
        if count and role in unreserved:
            unreserved.remove(role)
            first.append(RoleRequest(role, 1.0, (replace(option, current=min(1, current)),)))
            reserved = 1
        for level_rank, workers in ranked_workers(reserved, count, current, lasting):
            some = replace(option, replicas_max=workers, current=0 if level_rank % 2 else workers)
            part = RoleRequest(role, float(workers), (some,))
            ranked.append((f"{model.name}{_LEVEL}{level_rank}\0{name}", levels + level_rank, [part]))
    unneeded: list[tuple[str, int, list[RoleRequest]]] = []
    for name in sorted(takes.keys() & model_demand.unneeded.keys()):
        pool, workers = model.pools[name], model_demand.unneeded[name]
        option = PoolOption(name, 1.0, pool.cost_per_hour, dict(takes[name]), 0, workers)
        part = RoleRequest(pool.knobs.role, float(workers), (option,))
        unneeded.append((model.name + _UNNEEDED + name, rank + _RANKS - 1, [part]))
    is_served = all(any(option.current for option in one.options) for one in first)
    found = (
        (model.name + _FIRST, rank if is_served else rank + 1, first),
        (model.name + _MINIMUM, rank + 2, minimums),
        (model.name, levels + UNDIVIDED, parts),
        *ranked,
        *unneeded,
    )
    return [ModelRequest(name, order, tuple(each)) for name, order, each in found if each]


def _unreserved(model: Model, model_demand: ModelDemand, takes: Mapping[str, Mapping[str, int]]) -> set[Role]:
    """Return the roles of which no worker exists or starts in any case."""
    reserved = {
        pool.knobs.role
        for name, pool in model.pools.items()
        if model_demand.minimums[name] or (model_demand.counts[name] and name not in takes)
    }
    return {pool.knobs.role for pool in model.pools.values()} - reserved


def _first_of(part: RoleRequest, hours: float) -> tuple[RoleRequest, RoleRequest]:
    """Return the first worker of a role demand, and the rest of the demand.

    The worker is one of the cheapest mix for the whole demand, if possible one that exists: the two together are then
    as cheap as the demand in one.

    Args:
        part: Demand and pools of the role, none of which has minimum replicas.
        hours: Cost of switching a worker, in hours of its cost.
    """
    mix = cover(part, hours) or {option.pool: option.replicas_max for option in part.options}
    first = max(part.options, key=lambda option: (mix[option.pool] > 0, option.current > 0, -option.capacity))
    options = tuple(
        replace(one, replicas_max=max(0, one.replicas_max - 1), current=max(0, one.current - 1))
        if one is first
        else one
        for one in part.options
    )
    worker = min(part.demand, first.capacity)
    return replace(part, demand=worker), replace(part, demand=part.demand - worker, options=options)


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
    levels = (f"{name}{_LEVEL}{rank}\0{pool}" for pool in model_demand.counts for rank in range(LEVEL_RANKS))
    for request in (name + _FIRST, name, name + _MINIMUM, *levels):
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
