"""Simulated gateway: routing of requests, and retries when workers drain or are lost."""

import random
from collections.abc import Callable
from functools import partial

import msgspec
import pytest

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.planners.threshold import ThresholdKnobs
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.events import DrainRequested
from loadline.sim.fleet import SimulatedFleetKnobs, StartDelayKnobs, TransferKnobs
from loadline.sim.simulation import Scenario, Simulation
from loadline.sim.world.worker import SimulatedWorker
from loadline.traces import Arrival, Trace
from tests.support.simulated_fleets import GUARD, aggregated, disaggregated, pool_fleet, trace, with_migration

Setup = tuple[Settings, SimulatedFleetKnobs]

# 1,000 blocks of 16 tokens in a small worker, 4,000 in a large one.
SHORT, LONG, ENDLESS = Arrival(0.0, 200, 50), Arrival(0.0, 20_000, 50), Arrival(0.0, 70_000, 50)


def unlike(small: int, large: int) -> Setup:
    """Return two pools of one role on accelerators of different size, with fixed counts."""
    pools = tuple(PoolKnobs(name, "aggregated", replicas_min=0, replicas_max=4) for name in ("small", "large"))
    threshold = ThresholdKnobs(adjustment_interval_ms=3_600_000)
    settings = Settings(
        "agent",
        "all",
        (ModelKnobs("m", pools, planner="threshold", guardrails=GUARD, planner_knobs={"threshold": threshold}),),
    )
    return settings, SimulatedFleetKnobs((pool_fleet("small", small), pool_fleet("large", large, kv_blocks=4_000)))


def begun(setup: Setup, arrivals: Trace, seed: int = 0) -> Simulation:
    return Simulation(Scenario("test", *setup, arrivals, seed))


def among(*arrivals: Arrival) -> Trace:
    """Return a trace of these requests, one per second."""
    return trace([msgspec.structs.replace(one, arrival_s=1.0 + index) for index, one in enumerate(arrivals)])


def run_to_end(simulation: Simulation) -> Simulation:
    simulation.run(simulation.duration_ms)
    simulation.run_out()
    return simulation


@pytest.mark.parametrize("small", [1, 3])
def test_a_long_request_goes_to_the_pool_that_can_hold_it(small: int) -> None:
    outcome = run_to_end(begun(unlike(small, 1), among(LONG, SHORT, LONG, SHORT, LONG))).result()
    assert (outcome.finished, outcome.refused, outcome.unfinished) == (5, 0, 0)


def test_only_a_request_that_no_pool_can_hold_is_refused() -> None:
    outcome = run_to_end(begun(unlike(1, 1), among(ENDLESS, LONG, ENDLESS, SHORT))).result()
    assert (outcome.finished, outcome.refused, outcome.unfinished) == (2, 2, 0)


def test_a_request_that_waits_for_a_large_worker_delays_no_other() -> None:
    simulation = begun(unlike(1, 0), among(LONG, SHORT, SHORT))
    simulation.run(10_000.0)
    outcome = simulation.result()
    assert (outcome.finished, outcome.refused, simulation.gateway.queued) == (2, 0, 1)


def test_a_request_that_no_decode_worker_can_hold_is_refused_before_prefill() -> None:
    settings, fleet = disaggregated()
    decode = msgspec.structs.replace(fleet.pools[1], kv_blocks=100)
    fleet = msgspec.structs.replace(fleet, pools=(fleet.pools[0], decode))
    single = Arrival(0.0, 2_000, 1)  # needs no decode worker
    outcome = run_to_end(begun((settings, fleet), among(Arrival(0.0, 2_000, 2), single, SHORT))).result()
    assert (outcome.finished, outcome.refused, outcome.unfinished) == (2, 1, 0)


@pytest.mark.parametrize("others", [0, 1])
def test_a_cache_that_arrives_at_a_dead_worker_is_sent_to_another_one(others: int) -> None:
    slow: dict[str, object] = {"transfer": TransferKnobs(bandwidth_gbytes_per_s=0.01)}  # 2.6 s for 200 tokens
    settings, fleet = disaggregated(fleet=slow, start_delay=StartDelayKnobs("constant", 5.0))
    decode = msgspec.structs.replace(fleet.pools[1], workers=1 + others)
    fleet = msgspec.structs.replace(fleet, pools=(fleet.pools[0], decode))
    simulation = begun((settings, fleet), Trace("one", [Arrival(1.0, 200, 50)], 60.0))
    simulation.run(2_000.0)
    assert (simulation.gateway.in_flight, simulation.gateway.queued) == (1, 0)
    simulation._alive["d"]["d-1"].kill()
    simulation._scaler.schedule_reconcile()
    simulation.run(4_000.0)
    assert (simulation.gateway.in_flight, simulation.gateway.queued) == (others, 1 - others)
    outcome = run_to_end(simulation).result()
    assert (outcome.finished, outcome.retried, outcome.unfinished) == (1, 0, 0)
    assert outcome.ttft_ms.p50 == pytest.approx(15.0)


def kill_one(simulation: Simulation, rng: random.Random) -> None:
    """Kill a busy worker; the scaler starts another one."""
    alive = [worker for workers in simulation._alive.values() for worker in workers.values()]
    busy = [worker for worker in alive if worker.engine.held]
    if busy:
        rng.choice(busy).kill()
        simulation._scaler.schedule_reconcile()


def drain(simulation: Simulation, worker: SimulatedWorker) -> None:
    """Drain a worker as an operator does."""
    record = worker.record
    simulation.agent.inbox.put(DrainRequested(record.model, record.pool, record.worker, "test"))


def drain_one(simulation: Simulation, rng: random.Random) -> None:
    """Drain a decode worker if there is another one."""
    pool = "both" if "both" in simulation._alive else "d"
    serving = [worker for worker in simulation._alive[pool].values() if worker.serving]
    if len(serving) > 1:
        drain(simulation, rng.choice(serving))


def check(simulation: Simulation) -> None:
    """Assert that every request is at one place and no load is negative."""
    gateway, served = simulation.gateway, simulation.gateway.log
    assert served.requests == served.finished + served.refused + gateway.queued + gateway.in_flight
    held = [number for station in gateway._workers.values() for number in station.requests.values()]
    waiting = [number for lane in gateway._queues.values() for number, _ in lane.waiting]
    assert len(set(held + waiting)) == len(held) + len(waiting)
    for station in gateway._workers.values():
        assert set(station.worker.engine.held) <= set(station.requests) <= set(station.worker.held)
        assert station.queued_prompt_tokens == sum(station._prompt_tokens_by_id.values()) >= 0
        assert all(tokens >= 0 for tokens in station._prompt_tokens_by_id.values())


@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("moves", [False, True])
@pytest.mark.parametrize("fleet", [aggregated, disaggregated])
def test_no_request_is_lost_or_ends_twice_when_workers_die_and_drain(
    fleet: Callable[..., Setup],
    moves: bool,  # noqa: FBT001 - a parameter of a test
    seed: int,
) -> None:
    rng = random.Random(f"{seed}:deaths")
    # Small caches: about 11 of these requests fit beside each other, so that some wait and some are preempted.
    # A slow link takes a quarter of a second for a cache, so that some are in transit when their worker dies.
    knobs = {"transfer": TransferKnobs(bandwidth_gbytes_per_s=0.2)}
    setup = fleet(workers=3, fleet=knobs, kv_blocks=300, start_delay=StartDelayKnobs("constant", 5.0))
    setup = with_migration(setup) if moves else setup
    arrivals = [Arrival(rng.uniform(0.0, 30.0), rng.randint(1, 600), rng.randint(1, 300)) for _ in range(600)]
    arrivals += [Arrival(rng.uniform(0.0, 30.0), 6_000, 10) for _ in range(5)]  # fits no worker
    simulation = begun(setup, trace(sorted(arrivals, key=lambda one: one.arrival_s)), seed)
    simulation.timeline.call_at(2_000.0, partial(drain_one, simulation, rng))  # all workers serve and are busy
    for fault in (kill_one, drain_one):
        for _ in range(5):
            simulation.timeline.call_at(rng.uniform(3_000.0, 30_000.0), partial(fault, simulation, rng))
    for second in range(1, int(simulation.duration_ms / 1_000.0)):
        simulation.run(second * 1_000.0)
        check(simulation)
    outcome = run_to_end(simulation).result()
    check(simulation)
    assert (outcome.requests, outcome.finished, outcome.refused, outcome.unfinished) == (605, 600, 5, 0)
    assert outcome.retried > 0
    assert outcome.preempted > 0
    assert (outcome.migrated > 0) == moves
    assert all(station.queued_prompt_tokens == 0 for station in simulation.gateway._workers.values())
