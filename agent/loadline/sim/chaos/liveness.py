"""What must come right once nothing fails any more: L1 to L5, judged in the calm at the end of every cycle."""

import math
from collections.abc import Callable
from typing import Final

from loadline.core.decisions.ledger import OPEN
from loadline.core.fleet.pool import Pool
from loadline.core.state.agent_state import limited
from loadline.core.state.settings import ModelKnobs
from loadline.core.vocabulary.reasons import ReasonCode
from loadline.sim.chaos.plan import CALM_MS
from loadline.sim.chaos.world import IDLE, ChaosWorld
from loadline.sim.world.agent import SimulatedAgent
from loadline.wire.keys import Keys

Report = Callable[[str, str], None]

LEADER_AFTER_MS: Final = 13_000.0
"""The ttl of 10 s and the 2 s that a new leader may take, and 1 s until everybody is connected again."""
_OBSTACLES: Final = frozenset(
    {
        ReasonCode.NOT_LEADER,
        ReasonCode.NOT_SETTLED,
        ReasonCode.PAUSED,
        ReasonCode.BUS_DOWN,
        ReasonCode.DECISION_IN_FLIGHT,
        ReasonCode.RETRY_BACKOFF,
        ReasonCode.STOPPING,
    }
)
_ASLEEP_MS_MAX: Final = 3_000
"""The planners want to look once in a second."""


def check_leader(world: ChaosWorld, report: Report) -> None:
    """L1: one agent leads, and the store says the same."""
    leaders = [agent for agent in world.agents.values() if agent.controller.leading]
    entry = world.store.keys.get(Keys("default").leader("all"))
    term = entry.create_revision if entry else 0
    if len(leaders) != 1 or leaders[0].controller.state.leadership.epoch != term:
        epochs = {agent.name: agent.controller.state.leadership.epoch for agent in leaders}
        report("L1-leader", f"in the term {term} these lead: {epochs}")


def check_calm_end(world: ChaosWorld, report: Report) -> None:
    """L2 to L5: the counts are right, the fleet is what was decided, and everybody goes on."""
    check_leader(world, report)
    _judge_requests(world, report)
    for agent in world.agents.values():
        wake_ms = agent.controller.next_wake()
        late_ms = agent.clock.now_ms() - (wake_ms or 0)
        if wake_ms is None or abs(late_ms) > _ASLEEP_MS_MAX:
            report("L5-turning", f"{agent.name} wants to wake {-late_ms} ms from now")
    leader = world.leader
    if leader is not None:
        for model in world.models.values():
            _judge_model(world, leader, model, report)


def _judge_requests(world: ChaosWorld, report: Report) -> None:
    """What came before the calm has ended: nothing was lost on the way."""
    calm_ms = world.timeline.now_ms - CALM_MS
    late = [
        (name, world.frontend.owners.owner(name))
        for name, one in world.frontend.open.items()
        if one.arrived_ms < calm_ms
    ]
    if late:
        report("L6-served", f"{len(late)} requests have not ended: {late[:3]}")


def _judge_model(world: ChaosWorld, leader: SimulatedAgent, model: ModelKnobs, report: Report) -> None:
    state = leader.controller.state
    held = state.fleet.models[model.name].hold
    if held is None or (held.limits and held.limits[0].code in _OBSTACLES):
        report("L4-hold", f"{model.name}: {held.limits[0] if held and held.limits else 'was never held'}")
    entry = state.ledger.entries.get(model.name)
    if entry is not None and (entry.state in OPEN or entry.pending is not None):
        report("L3-applied", f"the decision of {model.name} is {entry.state}, pending is {entry.pending}")
    pools = state.fleet.models[model.name].pools
    total = sum((pool.desired or pool.ready) * pool.knobs.gpus_per_worker for pool in pools.values())
    for pool in pools.values():
        _judge_pool(world, model, pool, total, report, scarce=_is_scarce(leader, model, pool))


def _is_scarce(leader: SimulatedAgent, model: ModelKnobs, pool: Pool) -> bool:
    """Whether there are no GPUs for one worker more, even where models that come later gave all that they can."""
    settings, fleet = leader.controller.settings, leader.controller.state.fleet
    supplies = limited(settings, fleet)
    for supply, gpus in supplies.takes.get(model.name, {}).get(pool.name, {}).items():
        left = supplies.limits[supply] - gpus
        for other in settings.models:
            later = other.priority > model.priority
            counts = {
                one.name: one.knobs.replicas_min if later else one.desired or one.ready
                for one in fleet.models[other.name].pools.values()
            }
            left -= supplies.taken(other.name, counts).get(supply, 0)
        if left < 0:
            return True
    return False


def _judge_pool(
    world: ChaosWorld, model: ModelKnobs, pool: Pool, total_gpus: int, report: Report, *, scarce: bool
) -> None:
    key = model.name, pool.name
    there_are = world.workers_of(key)
    serving = sum(worker.serving for worker in there_are)
    desired = serving if pool.desired is None else pool.desired
    if serving != desired or len(there_are) != desired:
        report("L3-applied", f"{desired} of {key} are decided, {len(there_are)} there are, {serving} serve")
        return
    least, most = expected_workers(world.demand[key], pool)
    budget = model.gpu_budget_max
    full = scarce or (budget is not None and total_gpus + pool.knobs.gpus_per_worker > budget)
    alone = desired if full else max(least, 0)
    filled = desired if model.gpu_budget_min >= total_gpus else most
    if not alone <= desired <= filled:
        report("L2-reference", f"{desired} of {key} for a demand of {world.demand[key]}: {least} to {most} expected")


def expected_workers(demand: float, pool: Pool) -> tuple[int, int]:
    """The fewest and the most workers that are right for a demand: nobody is overloaded, and nobody is idle."""
    least, most = math.ceil(demand), math.floor(demand / IDLE) + 1
    bounds = pool.knobs.replicas_min, pool.knobs.replicas_max
    return min(max(least, bounds[0]), bounds[1]), min(max(most, bounds[0]), bounds[1])
