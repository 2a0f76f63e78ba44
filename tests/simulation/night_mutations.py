"""Mutations of the safeguards of traffic, schedules, scale to zero, forecasts and sidecars, like ``mutations``.

``python -m tests.simulation.night_mutations`` finds new seeds.
"""

from typing import Any

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.traffic import FrontendTraffic, Traffic
from loadline.core.planning.guardrails.constraints import Bound
from loadline.core.planning.planners.throughput import ThroughputPlanner
from loadline.core.planning.recommendation import PoolRecommendation, hold
from loadline.core.planning.scale_to_zero import IdleTracker
from loadline.core.planning.schedules import Schedules
from loadline.core.vocabulary import events as ev
from loadline.core.vocabulary.reasons import ReasonCode
from loadline.core.vocabulary.rejections import Rejection
from loadline.sidecar.engine_state import EngineState
from loadline.sim.chaos.runner import ChaosResult, run_plan
from tests.simulation.mutation_runs import NIGHT_SEEDS, Mutation, combined, constant, find_seeds, wrapped
from tests.simulation.mutations import handled, without_limit

MINUTE_MS = 60_000


def count_twice(
    old: Any, traffic: Traffic, event: ev.TrafficReported, known: FrontendTraffic | None, now: int
) -> Rejection | None:
    """Accept the newest report of a frontend again."""
    again = known is not None and (event.incarnation, event.sample.sequence) == (known.incarnation, known.sequence)
    return None if again else old(traffic, event, known, now)


def accept_earlier(old: Any, *args: Any) -> Rejection | None:
    """Accept reports of an earlier incarnation of a frontend."""
    refusal: Rejection | None = old(*args)
    return None if refusal is Rejection.STALE_INCARNATION else refusal


def begin_and_end_early(old: Any, schedules: Schedules, model: Model, now: int) -> int | None:
    """Let scheduled windows begin and end a minute early."""
    changes_at_ms: int | None = old(schedules, model, now + MINUTE_MS)
    return changes_at_ms


def never_busy(old: Any, idle: IdleTracker, model: Model, now: int) -> None:
    """Overlook the requests of a model."""
    old(idle, model, now)
    idle.busy_at_ms = -1


def without_first_worker(old: Any, *args: Any) -> dict[str, Bound]:
    """Start no worker for the first request."""
    return {name: bound for name, bound in old(*args).items() if bound.code is not ReasonCode.FIRST_WORKER}


def hold_without_workers(
    old: Any, planner: ThroughputPlanner, model: Model, pool: Pool, now: int
) -> PoolRecommendation:
    """Hold a pool without workers, as planners do that read the load of workers."""
    held = None if pool.ready else hold(ReasonCode.NO_WORKERS, pool)
    recommendation: PoolRecommendation = held or old(planner, model, pool, now)
    return recommendation


def never_away(old: Any, engine: EngineState, problem: str, now_ms: int, *, refused: bool) -> None:
    """Take an engine without an answer to be present."""
    away = engine.away
    old(engine, problem, now_ms, refused=refused)
    engine.away = away


def same_start(old: Any, engine: EngineState, *args: Any) -> Any:
    """Overlook an engine that was started again between two pages."""
    starts, away = engine.starts, engine.away
    reading = old(engine, *args)
    if not away:
        engine.starts = starts
    return reading


MUTATIONS: dict[str, Mutation] = {
    "traffic: repeated reports": Mutation(wrapped(Traffic, "_refusal", count_twice), 50, "F1-once", hours=1.0),
    "traffic: earlier incarnations": Mutation(wrapped(Traffic, "_refusal", accept_earlier), 60, "F2-newest", hours=1.0),
    "traffic: silent frontends": Mutation(constant(Traffic, "is_complete", value=True), 50, "F3-silent", hours=1.0),
    "schedules: the whole window": Mutation(
        wrapped(Schedules, "refresh", begin_and_end_early), 68, "S1-minimum", hours=1.0
    ),
    "schedules: minimum": Mutation(without_limit(ReasonCode.SCHEDULE_MINIMUM), 50, "S2-begins", hours=1.0),
    "scale to zero: idle time": Mutation(wrapped(IdleTracker, "observe", never_busy), 50, "Z1-idle", hours=1.0),
    "scale from zero: first worker": Mutation(
        combined(
            wrapped(IdleTracker, "bounds", without_first_worker),
            wrapped(ThroughputPlanner, "_recommend", hold_without_workers),
        ),
        59,
        "Z2-wake",
        hours=1.0,
    ),
    "sidecar: engine away": Mutation(wrapped(EngineState, "failed", never_away), 67, "E1-away", hours=1.0),
    "sidecar: engine restarted": Mutation(wrapped(EngineState, "answered", same_start), 51, "E2-start", hours=1.0),
    "forecasts: answers": Mutation(handled(ev.ForecastFitted, lambda *_args: None), 50, "L7-forecast", hours=1.0),
}


def run_mutated(name: str, seed: int) -> ChaosResult:
    """Run the plan of a seed with a mutation."""
    mutation = MUTATIONS[name]
    with mutation.apply():
        return run_plan(seed, mutation.hours)


if __name__ == "__main__":
    find_seeds(MUTATIONS, run_mutated, NIGHT_SEEDS)
