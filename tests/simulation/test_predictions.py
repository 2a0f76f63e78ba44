"""Latencies that the queueing model predicts, next to those of the simulated engines that it has a profile of."""

import random

import pytest

from loadline.core.engines.profile import EngineProfile, LinearKnobs, ObjectiveKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.sizing.knobs import QueueingKnobs
from loadline.core.queries.status import status
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.forecasts import ForecastKnobs
from loadline.core.vocabulary.scalars import Role
from loadline.core.vocabulary.status import ModelStatus
from loadline.sim.fleet import SimulatedFleetKnobs
from loadline.sim.simulation import Scenario, Simulation
from loadline.traces import Arrival
from tests.support.simulated_fleets import LINEAR, pool_fleet, trace

BATCH = 64
ENGINE = EngineProfile(
    linear=LinearKnobs(
        LINEAR.alpha, LINEAR.beta, LINEAR.gamma, LINEAR.delta, max_kv_tokens=320_000.0, max_batch_requests=BATCH
    )
)
WORKERS = 2
SECONDS = 240.0


def simulated(roles: tuple[Role, ...], requests_per_s: float) -> ModelStatus:
    """Return the status after minutes of Poisson arrivals, whose lengths vary, on a fixed number of workers."""
    source, arrivals, at_s = random.Random(1), list[Arrival](), 0.0
    while at_s < SECONDS:
        at_s += source.expovariate(requests_per_s)
        isl, osl = (int(min(8.0 * mean, max(2.0, source.expovariate(1.0 / mean)))) for mean in (500.0, 150.0))
        arrivals.append(Arrival(at_s, isl, osl))
    pools = tuple(PoolKnobs(role, role, replicas_min=WORKERS, replicas_max=WORKERS) for role in roles)
    knobs = QueueingKnobs(60_000, busiest_ms=60_000, forecast=ForecastKnobs("constant"))
    model = ModelKnobs(
        "m", pools, planner="queueing", planner_knobs={"queueing": knobs}, objectives=ObjectiveKnobs(1_000.0, 50.0)
    )
    settings = Settings("agent", "all", (model,), profiles={"m": dict.fromkeys(roles, ENGINE)})
    engines = tuple(pool_fleet(role, WORKERS, kv_blocks=20_000, max_batch_requests=BATCH) for role in roles)
    world = Simulation(Scenario("test", settings, SimulatedFleetKnobs(engines), trace(arrivals), 1))
    world.run(world.duration_ms * 0.95)
    agent = world.agent.controller
    now = agent.state.fleet.models["m"].traffic.reported_at_ms
    return status(agent.settings, agent.state, "0", 0, now, agent.planners).models[0]


@pytest.mark.parametrize("requests_per_s", [8.0, 16.0])
def test_aggregated_workers_are_as_fast_as_predicted(requests_per_s: float) -> None:
    found = simulated(("aggregated",), requests_per_s)
    predicted = found.estimates.pools["aggregated"]
    assert predicted.itl_ms == pytest.approx(found.traffic.itl_ms, rel=0.15)
    assert predicted.ttft_ms == pytest.approx(found.traffic.ttft_ms, rel=0.2)


def test_prefill_and_decode_workers_are_as_fast_as_predicted() -> None:
    found = simulated(("prefill", "decode"), 16.0)
    pools = found.estimates.pools
    assert pools["decode"].itl_ms == pytest.approx(found.traffic.itl_ms, rel=0.1)
    assert pools["prefill"].ttft_ms == pytest.approx(found.traffic.ttft_ms, rel=0.1)
