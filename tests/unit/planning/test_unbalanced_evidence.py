"""What auto learns of workers while some of them serve a backlog that the others do not have."""

import pytest
from msgspec.structs import replace

from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.samples import TrafficSample, WorkerSample
from tests.support.fleet_harness import reported
from tests.unit.planning.test_auto_planner import OSL, AutoWorld

LONG = 800
"""Output tokens of the requests that complete last."""


def second(world: AutoWorld, running: int, waiting: int, done: tuple[int, int, float]) -> None:
    """Let a second pass without arrivals, in which the first of the workers alone has requests.

    Args:
        world: The fleet.
        running: Running requests of the first worker.
        waiting: Its waiting ones.
        done: Completed requests, their output tokens and their ITL.
    """
    fleet = world.fleet
    fleet.now += 1_000
    world.sequence += 1
    for number, worker in enumerate(world.pool.workers):
        own = (waiting, running) if number == 0 else (0, 0)
        one = WorkerSample(world.sequence, 0, kv_usage_ratio=0.0, waiting_requests=own[0], running_requests=own[1])
        fleet.fleet.ingest(reported(worker, one, pool="engine"), fleet.now)
    count, osl_tokens, itl_ms = done
    sample = TrafficSample(world.sequence, 1_000, 0, count)
    if count:
        sample = replace(sample, osl_tokens=float(osl_tokens), itl_ms=itl_ms, ttft_ms=9_000.0)
    fleet.model.traffic.ingest(TrafficReported("m", "f", 1, sample), fleet.now)
    world.planner.plan(fleet.refresh(), fleet.now)


def two_kinds(world: AutoWorld, itl_ms: float, behind: int = 2) -> None:
    """Let a second pass in which some workers have a backlog and complete 36 requests/s each.

    The others serve 20 requests/s each. All are sent as many.

    Args:
        world: The fleet.
        itl_ms: ITL of the workers without a backlog. Frontends report the mean ITL of all.
        behind: Workers with a backlog.
    """
    fleet = world.fleet
    fleet.now += 1_000
    world.sequence += 1
    waiting, running = 2_000 - 16 * (world.sequence % 100), round(20 * OSL * itl_ms / 1_000)
    for number, worker in enumerate(world.pool.workers):
        own = (waiting, 250) if number < behind else (0, running)
        one = WorkerSample(world.sequence, 0, kv_usage_ratio=0.0, waiting_requests=own[0], running_requests=own[1])
        fleet.fleet.ingest(reported(worker, one, pool="engine"), fleet.now)
    arrivals, late, timely = 20 * len(world.pool.workers), 36 * behind, 20 * (len(world.pool.workers) - behind)
    mean_ms = (late * 70.0 + timely * itl_ms) / (late + timely)
    sample = TrafficSample(world.sequence, 1_000, arrivals, late + timely, isl_tokens=1_000.0, osl_tokens=OSL)
    sample = replace(sample, ttft_ms=9_000.0, itl_ms=mean_ms)
    fleet.model.traffic.ingest(TrafficReported("m", "f", 1, sample), fleet.now)
    world.planner.plan(fleet.refresh(), fleet.now)


def serves(world: AutoWorld) -> float:
    """Return the requests/s that a worker is taken to serve."""
    return world.planner._serves(world.fleet.model, world.pool)


@pytest.mark.parametrize("itl_ms", [60.0, 180.0])
def test_the_last_requests_of_a_backlog_are_no_measure_of_an_idle_pool(itl_ms: float) -> None:
    world = AutoWorld(6)
    world.run(60.0, 60)
    before = serves(world)
    for left in range(600, 0, -20):
        second(world, 100, left, (20, 15, 180.0))
    for running in (20, 16, 12, 8, 4, 2, 1, 1):
        second(world, running, 0, (4, LONG, itl_ms))
    for _ in range(40):
        second(world, 0, 0, (0, 0, 0.0))
    assert serves(world) == pytest.approx(before, rel=0.2)


def test_slow_requests_that_began_after_a_backlog_count() -> None:
    world = AutoWorld(6)
    world.run(60.0, 60)
    before = serves(world)
    second(world, 100, 20, (20, 15, 180.0))
    for _ in range(60):
        second(world, 24, 0, (4, 15, 180.0))
    assert serves(world) < 0.5 * before


@pytest.mark.parametrize(("itl_ms", "least", "most"), [(55.0, 14.0, 20.0), (12.0, 30.0, 50.0)])
def test_workers_without_a_backlog_show_what_one_serves(itl_ms: float, least: float, most: float) -> None:
    world = AutoWorld(6)
    world.run(60.0, 60)
    evidence = world.planner.pools["engine"].evidence
    evidence.saturated_rate = 36.0 * world.planner.lengths.work("aggregated")
    for _ in range(40):
        two_kinds(world, itl_ms)
    assert evidence.itl.latest_rate / world.planner.lengths.work("aggregated") == pytest.approx(20.0, rel=0.05)
    assert evidence.itl.latest_ms == pytest.approx(itl_ms, rel=0.05)
    assert least < serves(world) < most


def test_the_mean_of_both_kinds_is_no_measure_of_either_while_the_rate_of_a_full_worker_is_unknown() -> None:
    world = AutoWorld(6)
    world.run(60.0, 60)
    before = serves(world)
    for _ in range(40):
        two_kinds(world, 55.0)
    assert serves(world) == pytest.approx(before, rel=0.1)


def test_a_worker_that_restarts_takes_its_backlog_with_it() -> None:
    """As many are without a backlog before and after, and those that waited for it were not served by them."""
    world = AutoWorld(6)
    world.run(60.0, 60)
    evidence = world.planner.pools["engine"].evidence
    evidence.saturated_rate = 36.0 * world.planner.lengths.work("aggregated")
    for _ in range(45):
        two_kinds(world, 55.0)
    world.fleet.fleet.deregister("m", "engine", next(iter(world.pool.workers)), world.fleet.now)
    for _ in range(20):
        two_kinds(world, 55.0, behind=1)
        assert evidence.itl.latest_rate / world.planner.lengths.work("aggregated") == pytest.approx(20.0, rel=0.25)


def test_new_workers_as_many_as_those_with_a_backlog_begin_another_window() -> None:
    world = AutoWorld(2)
    world.run(20.0, 60)
    evidence = world.planner.pools["engine"].evidence
    for _ in range(10):
        two_kinds(world, 55.0)
    world.fleet.add_workers("engine", 2)
    two_kinds(world, 55.0)
    assert evidence.window.samples == 0


def test_workers_that_drain_a_backlog_are_no_measure_of_those_that_stay() -> None:
    """A shrink takes the workers with a backlog first, and frontends report their latencies until they are done."""
    world = AutoWorld(6)
    world.run(60.0, 60)
    before, fleet, drained = serves(world), world.fleet, next(iter(world.pool.workers))
    fleet.fleet.start_drain("m", "engine", drained, fleet.now)
    for left in range(2_000, 0, -40):
        fleet.now += 1_000
        world.sequence += 1
        for worker in world.pool.workers:
            own = (left, 200) if worker == drained else (0, 1)
            one = WorkerSample(world.sequence, 0, kv_usage_ratio=0.0, waiting_requests=own[0], running_requests=own[1])
            fleet.fleet.ingest(reported(worker, one, pool="engine"), fleet.now)
        done = TrafficSample(world.sequence, 1_000, 2, 42, isl_tokens=1_000.0, osl_tokens=OSL)
        done = replace(done, ttft_ms=9_000.0, itl_ms=86.0)
        fleet.model.traffic.ingest(TrafficReported("m", "f", 1, done), fleet.now)
        world.planner.plan(fleet.refresh(), fleet.now)
    assert serves(world) == pytest.approx(before, rel=0.2)
