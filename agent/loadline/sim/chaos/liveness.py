"""Checks of the liveness invariants L1 to L6 in the calm phase at the end of every cycle."""

import math
from typing import Final

from loadline.core.decisions.ledger import OPEN
from loadline.core.fleet.pool import Pool
from loadline.core.planning.planners.throughput import ThroughputPlanner
from loadline.core.state.agent_state import limited_supplies
from loadline.core.state.settings import ModelKnobs
from loadline.core.vocabulary.reasons import ReasonCode
from loadline.sim.chaos.invariants import ReportViolation
from loadline.sim.chaos.night_settings import (
    FORECAST_INTERVAL_MS,
    NIGHT,
    schedule_changes,
    scheduled_replicas,
)
from loadline.sim.chaos.plan import CALM_MS
from loadline.sim.chaos.world import IDLE_BELOW, ChaosWorld
from loadline.sim.world.agent import SimulatedAgent

LEADER_AFTER_MS: Final = 13_000.0
"""The lease's TTL of 10 s, 2 s for a new leader, and 1 s until all are connected again."""
OBSTACLES: Final = frozenset(
    {
        ReasonCode.NOT_LEADER,
        ReasonCode.NOT_SETTLED,
        ReasonCode.PAUSED,
        ReasonCode.BUS_DOWN,
        ReasonCode.DECISION_IN_FLIGHT,
        ReasonCode.RETRY_BACKOFF,
        ReasonCode.STOPPING,
        ReasonCode.HANDING_OVER,
    }
)
"""Reasons for which no decision is made, whatever is planned."""
_FORECAST_INTERVALS_MAX: Final = 3
_SETTLED_MS: Final = 90_000
"""Time after a change of the schedule in which workers are idle for long enough, and drain."""
_START_UP_MS: Final = 30_000
"""Time before a scheduled window in which its workers start."""
_WAKE_SLACK_MS: Final = 3_000
"""Slack of wake-ups; planners run once a second."""


def check_leader(world: ChaosWorld, report: ReportViolation) -> None:
    """Check L1: exactly one agent leads each model, and the store agrees."""
    for scope in sorted(set(world.scopes.values())):
        leaders, epoch = world.leaders_of(scope), world.epoch_of(scope)
        if len(leaders) != 1 or leaders[0].controller.state.leadership.epoch != epoch:
            epochs = {agent.name: agent.controller.state.leadership.epoch for agent in leaders}
            report("L1-leader", f"the epoch of {scope} is {epoch}, leaders are {epochs}")


def check_calm_end(world: ChaosWorld, report: ReportViolation) -> None:
    """Check L1 to L6 at the end of a calm phase."""
    check_leader(world, report)
    _check_requests(world, report)
    for agent in world.agents.values():
        if agent.controller.state.dormant:
            continue  # it waits for the end of a lease
        wake_ms = agent.controller.next_wake()
        late_ms = agent.clock.now_ms() - (wake_ms or 0)
        if wake_ms is None or abs(late_ms) > _WAKE_SLACK_MS:
            report("L5-turning", f"the next wake-up of {agent.name} is in {-late_ms} ms")
    for model in world.models.values():
        for leader in world.leaders_of(world.scopes[model.name])[:1]:
            _check_model(world, leader, model, report)


def _check_requests(world: ChaosWorld, report: ReportViolation) -> None:
    """Check L6: every request that arrived before the calm phase has ended."""
    calm_ms = world.timeline.now_ms - CALM_MS
    late = [
        (name, world.frontend.owners.owner(name))
        for name, one in world.frontend.open.items()
        if one.arrived_ms < calm_ms
    ]
    if late:
        report("L6-served", f"{len(late)} requests are open: {late[:3]}")


def _check_model(world: ChaosWorld, leader: SimulatedAgent, model: ModelKnobs, report: ReportViolation) -> None:
    state = leader.controller.state
    if model.name == NIGHT:
        _check_forecast(leader, report)
        now = leader.clock.now_ms()
        if schedule_changes(now - _SETTLED_MS, now + _START_UP_MS):
            return  # the fleet follows the schedule
    held = state.fleet.models[model.name].hold
    if held is None or (held.limits and held.limits[0].code in OBSTACLES):
        report("L4-hold", f"{model.name}: {held.limits[0] if held and held.limits else 'no hold yet'}")
    entry = state.ledger.entries.get(model.name)
    if entry is not None and (entry.state in OPEN or entry.pending is not None):
        report("L3-applied", f"the decision of {model.name} is {entry.state}, pending is {entry.pending}")
    pools = state.fleet.models[model.name].pools
    total = sum((pool.target or pool.ready) * pool.knobs.gpus_per_worker for pool in pools.values())
    scheduled = scheduled_replicas(leader.clock.now_ms()) if model.name == NIGHT else 0
    for pool in pools.values():
        scarce = _is_scarce(leader, model, pool)
        _check_pool(world, model, pool, total, report, scheduled=scheduled, scarce=scarce)


def _check_forecast(leader: SimulatedAgent, report: ReportViolation) -> None:
    """Check L7: the newest forecast of the model that forecasts is new."""
    planner = leader.controller.planners[NIGHT]
    assert isinstance(planner, ThroughputPlanner)  # noqa: S101 - as configured, since all reloads were undone
    age_ms = leader.clock.now_ms() - planner.demand.forecast.begins_ms
    if age_ms > _FORECAST_INTERVALS_MAX * FORECAST_INTERVAL_MS:
        report("L7-forecast", f"the newest one began {age_ms} ms ago")


def _is_scarce(leader: SimulatedAgent, model: ModelKnobs, pool: Pool) -> bool:
    """Return True if GPUs lack for one more worker, even if models of lower priority shrank to their minimum."""
    settings, fleet = leader.controller.settings, leader.controller.state.fleet
    supplies = limited_supplies(settings, fleet)
    for supply, gpus in supplies.takes.get(model.name, {}).get(pool.name, {}).items():
        left = supplies.limits[supply] - gpus
        for other in settings.models:
            later = other.priority > model.priority
            counts = {
                one.name: one.knobs.replicas_min if later else one.target or one.ready
                for one in fleet.models[other.name].pools.values()
            }
            left -= supplies.taken(other.name, counts).get(supply, 0)
        if left < 0:
            return True
    return False


def _check_pool(
    world: ChaosWorld,
    model: ModelKnobs,
    pool: Pool,
    total_gpus: int,
    report: ReportViolation,
    *,
    scheduled: int,
    scarce: bool,
) -> None:
    key = model.name, pool.name
    workers = world.workers_of(key)
    serving = sum(worker.serving for worker in workers)
    desired = serving if pool.target is None else pool.target
    if serving != desired or len(workers) != desired:
        report("L3-applied", f"{key}: {desired} decided, {len(workers)} running, {serving} serving")
        return
    low, high = expected_workers(world.demand[key], pool, scheduled)
    budget = model.gpu_budget_max
    full = scarce or (budget is not None and total_gpus + pool.knobs.gpus_per_worker > budget)
    lower = desired if full else max(low, 0)
    upper = desired if model.gpu_budget_min >= total_gpus else high
    if not lower <= desired <= upper:
        report("L2-reference", f"{key}: {desired} for a demand of {world.demand[key]}, {low} to {high} expected")


def expected_workers(demand: float, pool: Pool, scheduled: int = 0) -> tuple[int, int]:
    """Return the fewest and the most workers for a demand: none overloaded, none idle, within the bounds."""
    low, high = math.ceil(demand), math.floor(demand / IDLE_BELOW) + 1 if demand else 0
    bounds = max(pool.knobs.replicas_min, scheduled), pool.knobs.replicas_max
    return min(max(low, bounds[0]), bounds[1]), min(max(high, bounds[0]), bounds[1])
