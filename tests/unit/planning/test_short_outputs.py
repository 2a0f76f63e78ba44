"""What auto learns of requests that take less than a second, and how far their ITL varies."""

from math import sqrt

import pytest
from msgspec.structs import replace

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.planning.sizing.evidence.latency import PoolEvidence
from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.samples import TrafficSample, WorkerSample
from tests.support.fleet_harness import reported
from tests.unit.planning.test_auto_planner import AutoWorld

OBJECTIVES = ObjectiveKnobs(ttft_ms=500, itl_ms=50)


def second(world: AutoWorld, arrivals: int, running: int, osl_tokens: float, itl_ms: float) -> None:
    """Let a second pass in which each worker reports so many running requests, those of its last iteration."""
    fleet = world.fleet
    fleet.now += 1_000
    world.sequence += 1
    for worker in world.pool.workers:
        one = WorkerSample(world.sequence, 0, kv_usage_ratio=0.0, waiting_requests=0, running_requests=running)
        fleet.fleet.ingest(reported(worker, one, pool="engine"), fleet.now)
    sample = TrafficSample(world.sequence, 1_000, arrivals, arrivals, isl_tokens=2_000.0, osl_tokens=osl_tokens)
    sample = replace(sample, ttft_ms=60.0, itl_ms=itl_ms)
    fleet.model.traffic.ingest(TrafficReported("m", "f", 1, sample), fleet.now)
    world.planner.plan(fleet.refresh(), fleet.now)


@pytest.mark.parametrize("running", [1, 8])
def test_the_rate_of_short_requests_is_that_of_their_arrivals(running: int) -> None:
    world = AutoWorld(4)
    for _ in range(30):
        second(world, 60, running, 10.0, 25.0)
    work = world.planner.lengths.work("aggregated")
    assert world.planner.pools["engine"].evidence.itl.latest_rate / work == pytest.approx(15.0)


def test_the_rate_of_long_requests_is_that_of_the_running_ones() -> None:
    world = AutoWorld(4)
    for _ in range(60):
        second(world, 60, 30, 200.0, 25.0)
    work = world.planner.lengths.work("aggregated")
    assert world.planner.pools["engine"].evidence.itl.latest_rate / work == pytest.approx(30 / (200 * 0.025))


def learned(osl_tokens: float) -> PoolEvidence:
    """Return the evidence of an engine that serves 30 requests/s without bound of the ITL, and 7.5 at 8 ms."""
    evidence, work = PoolEvidence(), 1_000.0 + 4.0 * osl_tokens
    evidence.outputs_per_work = (osl_tokens - 1.0) / work
    for rate in (7.5, 15.0, 22.5):
        itl_ms = 6.0 / (1.0 - rate / 30.0)
        evidence.itl.add(rate * work, itl_ms, 6.0, 0)
    return evidence


@pytest.mark.parametrize("osl_tokens", [4.0, 10.0, 30.0])
def test_a_mean_itl_leaves_room_for_two_standard_deviations_of_the_prompts_in_between(osl_tokens: float) -> None:
    evidence = learned(osl_tokens)
    limit_ms = evidence.itl_limit_ms("aggregated", OBJECTIVES)
    rate = evidence.itl.rate_within(limit_ms) / (1_000.0 + 4.0 * osl_tokens)
    others = rate * (osl_tokens - 1.0) * limit_ms / 1_000.0
    variation = (1.0 - 6.0 / limit_ms) / sqrt(others)
    assert limit_ms * (1.0 + 2.0 * variation) == pytest.approx(50.0, rel=0.15)


def test_the_itl_of_long_outputs_may_be_closer_to_the_objective() -> None:
    limits = [learned(osl_tokens).itl_limit_ms("aggregated", OBJECTIVES) for osl_tokens in (2, 4, 10, 30, 100, 1_000)]
    assert limits == sorted(limits)
    assert limits[0] < 25.0
    assert 40.0 < limits[-2] < limits[-1] == 45.0


def test_prompts_do_not_delay_the_outputs_of_a_decode_pool() -> None:
    assert learned(4.0).itl_limit_ms("decode", OBJECTIVES) == 40.0


def test_an_unknown_engine_keeps_to_a_part_of_the_objective() -> None:
    assert PoolEvidence().itl_limit_ms("aggregated", OBJECTIVES) == 40.0
