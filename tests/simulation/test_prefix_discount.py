"""Reported hits of prefix caches lower the number of prefill workers."""

import random

import pytest

from loadline.client.traffic_interval import TrafficInterval
from loadline.core.engines.profile import EngineProfile, LinearKnobs, ObjectiveKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.sizing.knobs import ThroughputKnobs
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.sim.fleet import SimulatedFleetKnobs
from loadline.sim.result import SimulationResult
from loadline.sim.simulation import Scenario, simulate
from loadline.traces import Arrival, Trace
from tests.support.simulated_fleets import GUARD, LINEAR, pool_fleet

SECONDS = 600.0
ENGINE = EngineProfile(
    linear=LinearKnobs(LINEAR.alpha, LINEAR.beta, LINEAR.gamma, LINEAR.delta, max_kv_tokens=320_000.0)
)
POOLS = PoolKnobs("p", "prefill", replicas_max=12), PoolKnobs("d", "decode", replicas_max=12)


def conversations() -> Trace:
    """Return 20 prompts of 4,000 tokens per second; each begins with the 2,560 tokens of one of thirty tools."""
    found: list[Arrival] = []
    rng, at_s = random.Random("conversations"), 0.0
    while (at_s := at_s + rng.expovariate(20.0)) < SECONDS:
        tool, own = rng.randrange(30) * 10, 1_000 + 3 * len(found)
        found.append(Arrival(at_s, 4_000, 20, prefix=(*range(tool, tool + 5), own, own + 1, own + 2)))
    return Trace("conversations", found, SECONDS)


def outcome() -> SimulationResult:
    knobs = ThroughputKnobs(throughput_adjustment_interval_ms=60_000, start_up_ms=20_000)
    model = ModelKnobs(
        "m",
        POOLS,
        planner="throughput",
        objectives=ObjectiveKnobs(1_000.0),
        guardrails=GUARD,
        planner_knobs={"throughput": knobs},
    )
    settings = Settings("agent", "all", (model,), profiles={"m": {"p": ENGINE, "d": ENGINE}})
    caches = pool_fleet("p", 4, kv_blocks=20_000, prefix_cache_blocks=2_000)
    fleet = SimulatedFleetKnobs((caches, pool_fleet("d", 3, kv_blocks=20_000)), routing="kv_aware")
    return simulate(Scenario("test", settings, fleet, conversations()), lambda _: None)


def test_reported_cache_hits_save_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    with_hit_rate = outcome()
    monkeypatch.setattr(TrafficInterval, "looked_up", lambda *_: None)
    silent = outcome()
    assert with_hit_rate.attainment.both >= 0.95
    assert with_hit_rate.gpu_hours_by_pool["p"] < 0.75 * silent.gpu_hours_by_pool["p"]
    assert with_hit_rate.gpu_hours_by_pool["d"] == pytest.approx(silent.gpu_hours_by_pool["d"], rel=0.1)
