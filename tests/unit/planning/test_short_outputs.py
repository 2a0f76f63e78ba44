"""What auto learns of requests that take less than a second, and how far their ITL varies."""

from math import sqrt

import pytest
from msgspec.structs import replace

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.fleet.traffic_totals import TrafficTotals
from loadline.core.planning.planners.auto import AutoPlanner, AutoPlannerKnobs
from loadline.core.planning.sizing.evidence.latency import PoolEvidence
from loadline.core.planning.sizing.evidence.request_shares import PoolTraffic
from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.samples import TrafficSample, WorkerSample
from loadline.core.vocabulary.scalars import Role
from tests.support.fleet_harness import FleetHarness, reported
from tests.unit.planning.test_auto_planner import AutoWorld

OBJECTIVES = ObjectiveKnobs(ttft_ms=500, itl_ms=50)


def second(world: AutoWorld, arrivals: int, running: int, osl_tokens: float | None, itl_ms: float | None) -> None:
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


def test_a_fleet_that_was_busy_before_its_first_report_has_the_rate_of_its_running_requests() -> None:
    world = AutoWorld(4)
    world.fleet.now += 1_000
    world.planner.plan(world.fleet.refresh(), world.fleet.now)  # no worker has reported yet
    for _ in range(6):
        second(world, 24, 30, 200.0, 25.0)
    curve = world.planner.pools["engine"].evidence.itl
    assert curve.latest_rate / world.planner.lengths.work("aggregated") == pytest.approx(30 / (200 * 0.025))


@pytest.mark.parametrize("idle_s", [0, 30])
def test_the_first_requests_that_complete_are_short_so_arrivals_bound_the_rate(idle_s: int) -> None:
    world = AutoWorld(4)
    for _ in range(idle_s):
        second(world, 0, 0, None, None)
    for _ in range(6):
        second(world, 24, 60, 100.0, 25.0)
    curve = world.planner.pools["engine"].evidence.itl
    rate = curve.latest_rate / world.planner.lengths.work("aggregated")
    assert rate == pytest.approx(6.0 * (1.0 + 2.0 / (2 * 24) ** 0.5)), "Little's law gives 24 requests/s"
    for _ in range(20):
        second(world, 24, 60, 100.0, 25.0)
    assert curve.latest_rate / world.planner.lengths.work("aggregated") == pytest.approx(60 / (100 * 0.025))


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


@pytest.mark.parametrize("role", ["aggregated", "decode"])
def test_a_higher_attainment_keeps_the_means_lower(role: Role) -> None:
    limits = [
        (
            learned(10.0).itl_limit_ms(role, replace(OBJECTIVES, attainment=attainment)),
            learned(10.0).ttft_limit_ms(replace(OBJECTIVES, attainment=attainment)),
        )
        for attainment in (0.0, 0.9, 0.95, 0.99, 0.999)
    ]
    itls, ttfts = zip(*limits, strict=True)
    assert list(itls) == sorted(set(itls), reverse=True)
    assert list(ttfts) == sorted(set(ttfts), reverse=True)
    unset = learned(10.0)
    assert (unset.itl_limit_ms(role, OBJECTIVES), unset.ttft_limit_ms(OBJECTIVES)) == limits[2]
    assert ttfts[0] == 500.0, "only the mean has to meet it"


def test_an_unknown_engine_keeps_to_a_part_of_the_objective() -> None:
    assert PoolEvidence().itl_limit_ms("aggregated", OBJECTIVES) == 40.0


def test_reports_that_are_rarer_than_windows_give_the_rate_of_the_time_that_they_cover() -> None:
    world = AutoWorld(4)
    evidence = PoolEvidence()
    for now in range(1_000, 60_001, 1_000):
        reports = 600 if now % 10_000 == 4_000 else 0
        interval = TrafficTotals().with_report(
            TrafficSample(
                now, 10_000, reports, reports, isl_tokens=2_000.0, osl_tokens=10.0, ttft_ms=60.0, itl_ms=25.0
            ),
            10_000 if reports else 0,
        )
        world.planner.lengths.add(interval)
        for worker in world.pool.workers:
            one = WorkerSample(now, 0, kv_usage_ratio=0.0, waiting_requests=0, running_requests=4)
            world.fleet.fleet.ingest(reported(worker, one, pool="engine"), world.fleet.now + now)
        world.fleet.model.refresh_totals(world.fleet.now + now, world.fleet.fleet.knobs)
        evidence.add(world.fleet.model, world.pool, PoolTraffic(interval), world.planner.lengths, now)
        if evidence.itl.latest_rate:
            assert evidence.itl.latest_rate / world.planner.lengths.work("aggregated") == pytest.approx(15.0)
    assert evidence.itl.bins


def test_requests_that_wait_for_prefill_workers_are_not_served_by_decode_workers() -> None:
    fleet = FleetHarness([PoolKnobs("prefill", "prefill"), PoolKnobs("decode", "decode")])
    fleet.model.objectives = OBJECTIVES
    planner = AutoPlanner(AutoPlannerKnobs())
    for sequence in range(1, 31):
        fleet.now += 1_000
        fleet.report("prefill", waiting=80 * sequence, running=4)
        fleet.report("decode", running=3)
        sample = TrafficSample(
            sequence, 1_000, 100, 20, isl_tokens=2_000.0, osl_tokens=10.0, ttft_ms=900.0, itl_ms=25.0
        )
        fleet.model.traffic.ingest(TrafficReported("m", "f", 1, sample), fleet.now)
        planner.plan(fleet.refresh(), fleet.now)
    assert planner.pools["decode"].evidence.itl.latest_rate / planner.lengths.work("decode") == pytest.approx(10.0)


def test_arrivals_at_several_pools_are_no_rate_of_one() -> None:
    """The fast workers of one pool have one request in every other report."""
    fleet = FleetHarness([PoolKnobs("fast", "aggregated"), PoolKnobs("slow", "aggregated")])
    fleet.model.objectives = OBJECTIVES
    planner = AutoPlanner(AutoPlannerKnobs())
    rates: list[float] = []
    for sequence in range(1, 61):
        fleet.now += 1_000
        fleet.report("fast", running=sequence % 2)
        fleet.report("slow", running=4)
        sample = TrafficSample(sequence, 1_000, 60, 60, isl_tokens=2_000.0, osl_tokens=10.0, ttft_ms=60.0, itl_ms=25.0)
        fleet.model.traffic.ingest(TrafficReported("m", "f", 1, sample), fleet.now)
        planner.plan(fleet.refresh(), fleet.now)
        rates.append(planner.pools["fast"].evidence.itl.latest_rate / (2_000.0 + 4.0 * 10.0))
    assert all(rate == pytest.approx(0.5 / 0.25, rel=0.3) for rate in rates[20:])


def test_the_last_requests_before_a_lull_leave_a_worker_its_capacity() -> None:
    """They were late, and none of them runs any more."""
    evidence = learned(100.0)
    before = evidence.capacity("decode", OBJECTIVES)
    evidence.itl.add(0.0, 60.0, 6.0, 0)
    assert evidence.capacity("decode", OBJECTIVES) == before > 0.0


@pytest.mark.parametrize("role", ["decode", "aggregated"])
def test_an_engine_whose_itl_without_load_is_near_the_objective_serves_some_requests(role: Role) -> None:
    """Without a limit above 45 ms, no count of workers would do, and a pool for 0.3 requests/s grew to its maximum."""
    evidence = PoolEvidence()
    evidence.outputs_per_work = 99.0 / 1_400.0
    for rate in (0.5, 1.0, 2.0, 4.0):
        evidence.itl.add(rate, 45.0 / (1.0 - rate / 100.0), 45.0, 0)
    assert evidence.itl_limit_ms(role, OBJECTIVES) == 47.5
    assert evidence.capacity(role, OBJECTIVES) == pytest.approx(5.0, rel=0.2)


@pytest.mark.parametrize("role", ["decode", "aggregated"])
def test_an_engine_near_the_objective_serves_nothing_where_another_pool_may(role: Role) -> None:
    evidence = PoolEvidence(shares_role=True)
    evidence.outputs_per_work = 99.0 / 1_400.0
    for rate in (0.5, 1.0, 2.0, 4.0):
        evidence.itl.add(rate, 45.0 / (1.0 - rate / 100.0), 45.0, 0)
    assert evidence.itl_limit_ms(role, OBJECTIVES) <= 40.0
    assert evidence.capacity(role, OBJECTIVES) < 0.5
