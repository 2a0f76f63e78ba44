"""One model on two accelerators: a cheap and slow one, and an expensive and fast one."""

import random

import pytest

from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.engines.profile import EngineProfile, LinearKnobs, ObjectiveKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.guardrails.knobs import GuardrailKnobs
from loadline.core.planning.planners.auto import AutoPlannerKnobs
from loadline.core.planning.sizing.knobs import QueueingKnobs
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.sim.fleet import SimulatedFleetKnobs
from loadline.sim.profiles import LinearProfile
from loadline.sim.result import SimulationResult
from loadline.sim.simulation import Scenario, simulate
from loadline.traces import Arrival, Trace
from tests.support.simulated_fleets import pool_fleet

ENGINES = {"dear": (8.0, 0.1, 4.0, 0.02), "cheap": (24.0, 0.2, 8.0, 0.04)}
PRICES = AcceleratorKnobs("dear", cost_per_hour=5.0), AcceleratorKnobs("cheap", cost_per_hour=1.0)
SECONDS = 600.0
GUARD = GuardrailKnobs(step_up_max=32, step_down_max=8, stabilisation_ms=20_000, warm_up_ms=20_000)


def requests(most_per_s: float) -> Trace:
    """Return a trace of 15 requests per second, and then more."""
    rng, at_s, found = random.Random("mixed"), 0.0, []
    while (at_s := at_s + rng.expovariate(15.0 if at_s < SECONDS / 2 else most_per_s)) < SECONDS:
        found.append(Arrival(at_s, int(rng.uniform(300, 1_500)), int(rng.uniform(50, 250))))
    return Trace("mixed", found, SECONDS)


def simulate_fleet(
    itl_ms: float, *, planner: str = "queueing", profiled: bool = True, cheap_max: int = 30, most_per_s: float = 45.0
) -> SimulationResult:
    pools = tuple(
        PoolKnobs(
            name, "aggregated", replicas_min=0, replicas_max=30 if name == "dear" else cheap_max, accelerator=name
        )
        for name in ENGINES
    )
    knobs = {
        "queueing": QueueingKnobs(throughput_adjustment_interval_ms=60_000, start_up_ms=20_000),
        "auto": AutoPlannerKnobs(start_up_ms=20_000),
    }
    model = ModelKnobs(
        "m",
        pools,
        planner=planner,
        objectives=ObjectiveKnobs(500.0, itl_ms),
        guardrails=GUARD if planner == "queueing" else None,
        planner_knobs=knobs,
    )
    profiles = {
        name: EngineProfile(linear=LinearKnobs(*engine, max_kv_tokens=320_000.0)) for name, engine in ENGINES.items()
    }
    settings = Settings("agent", "all", (model,), accelerators=PRICES, profiles={"m": profiles if profiled else {}})
    fleet = SimulatedFleetKnobs(
        tuple(
            pool_fleet(name, 2, kv_blocks=20_000, max_batch_requests=256, linear=LinearProfile(*engine))
            for name, engine in ENGINES.items()
        )
    )
    return simulate(Scenario("test", settings, fleet, requests(most_per_s)), lambda _: None)


def ready_at_end(outcome: SimulationResult) -> dict[str, int]:
    return {line.pool: line.ready[-1] for line in outcome.series.pools}


def hourly_cost(outcome: SimulationResult) -> float:
    prices = {accelerator.name: accelerator.cost_per_hour for accelerator in PRICES}
    return sum(hours * prices[name] for name, hours in outcome.gpu_hours_by_pool.items())


def settled(outcome: SimulationResult) -> float:
    """Return the fraction of the last sixth of the time in which 95 % of the requests met their ITL."""
    late = [ms for ms in outcome.series.itl_p95_ms[-len(outcome.series.at_s) // 6 :] if ms is not None]
    return sum(ms <= outcome.itl_objective_ms for ms in late) / len(late)


@pytest.mark.parametrize("profiled", [True, False])
def test_loose_objectives_use_the_cheap_pool_and_tight_ones_the_fast_pool(*, profiled: bool) -> None:
    patient, strict = simulate_fleet(60.0, profiled=profiled), simulate_fleet(25.0, profiled=profiled)
    assert ready_at_end(patient)["dear"] == 0
    assert ready_at_end(patient)["cheap"] >= 6
    assert ready_at_end(strict) == {"dear": pytest.approx(4, abs=1), "cheap": 0}
    assert min(settled(patient), settled(strict)) >= 0.9
    assert hourly_cost(patient) < 0.6 * hourly_cost(strict)


def test_load_beyond_the_cheap_pool_uses_the_other_pool() -> None:
    outcome = simulate_fleet(60.0, cheap_max=4)
    assert ready_at_end(outcome)["cheap"] == 4
    assert ready_at_end(outcome)["dear"] in {1, 2}
    assert settled(outcome) >= 0.9


@pytest.mark.parametrize("profiled", [True, False])
def test_auto_grows_in_the_cheap_pool_unless_only_the_fast_one_meets_the_objective(*, profiled: bool) -> None:
    patient = simulate_fleet(60.0, planner="auto", profiled=profiled)
    strict = simulate_fleet(25.0, planner="auto", profiled=profiled)
    assert ready_at_end(patient)["cheap"] >= 6
    assert ready_at_end(patient)["dear"] <= 4
    assert ready_at_end(strict) == {"dear": pytest.approx(4, abs=1), "cheap": 0}
    assert min(settled(patient), settled(strict)) >= 0.9


def test_auto_uses_the_other_pool_beyond_the_maximum_of_the_cheap_one() -> None:
    outcome = simulate_fleet(60.0, planner="auto", cheap_max=4, most_per_s=60.0)
    assert ready_at_end(outcome)["cheap"] == 4
    assert ready_at_end(outcome)["dear"] >= 2
    assert settled(outcome) >= 0.9


def test_auto_adds_no_worker_where_those_at_the_start_suffice() -> None:
    outcome = simulate_fleet(60.0, planner="auto", cheap_max=4)
    assert ready_at_end(outcome) == {"dear": 2, "cheap": 2}
    assert settled(outcome) >= 0.9
