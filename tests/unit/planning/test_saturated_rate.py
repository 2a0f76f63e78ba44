"""Rate of saturated workers, where the ITL of a request contains its wait for them."""

import pytest

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.fleet.traffic_totals import NO_MEAN, TrafficTotals
from loadline.core.planning.sizing.evidence.latency import PoolEvidence
from loadline.core.planning.sizing.evidence.request_shares import PoolTraffic
from loadline.core.planning.sizing.evidence.saturation import SaturationEvidence
from loadline.core.planning.sizing.request_lengths import Lengths
from loadline.core.vocabulary.samples import WorkerSample
from tests.support.fleet_harness import FleetHarness, reported

OBJECTIVES = ObjectiveKnobs(ttft_ms=500, itl_ms=50)
RUNNING, OSL = 30, 100.0
LENGTHS = Lengths(500.0, OSL, 500.0, OSL, 10)
WORK = LENGTHS.work("aggregated")


def served(itl_ms: float, completed: int) -> float:
    """Return the requests/s of a decode worker with a queue, which has completed so many in each of 10 s."""
    world = FleetHarness([PoolKnobs("d", "decode", replicas_max=16)], 1)
    pool, queues, lengths = world.pool("d"), SaturationEvidence(), Lengths(1_000.0, OSL, 1_000.0, OSL, 10)
    for second in range(10):
        world.now += 1_000
        one = WorkerSample(second, 0, kv_usage_ratio=0.3, running_requests=RUNNING, waiting_requests=40)
        for name in pool.workers:
            world.fleet.ingest(reported(name, one, pool="d"), world.now)
        world.refresh()
        mean = NO_MEAN.plus(itl_ms, 4)
        queues.add(world.model, pool, TrafficTotals(1_000, completed, completed, itl_ms=mean), world.now)
    assert queues.is_saturated(pool)
    return queues.served(world.model, pool, lengths, world.now)


def test_requests_whose_itl_contains_a_wait_are_counted_as_they_complete() -> None:
    assert served(700.0, 5) == pytest.approx(5.0, rel=0.15)


def test_the_running_requests_tell_the_rate_before_the_first_of_them_complete() -> None:
    assert served(50.0, 0) == pytest.approx(1_000.0 * RUNNING / (50.0 * OSL))


def test_a_worker_serves_at_least_the_rate_that_was_within_the_objective() -> None:
    evidence = PoolEvidence()
    for rate in (100.0, 400.0, 800.0):
        evidence.itl.add(rate, 20.0 + rate / 50.0, 18.0, 0)
    evidence.saturated_rate = 40.0
    assert evidence.capacity("decode", OBJECTIVES) == pytest.approx(800.0)


def queued(batches: list[tuple[int, int]]) -> float:
    """Return the requests/s that a decode worker with a queue serves, by its batch and the completed ones each second.

    The ITL of requests, 1.2 s, contains their wait.
    """
    world = FleetHarness([PoolKnobs("d", "decode", replicas_max=16)], 1)
    pool, queues, lengths = world.pool("d"), SaturationEvidence(), Lengths(1_000.0, OSL, 1_000.0, OSL, 10)
    for second, (running, completed) in enumerate(batches):
        world.now += 1_000
        one = WorkerSample(second, 0, kv_usage_ratio=0.95, running_requests=running, waiting_requests=40)
        for name in pool.workers:
            world.fleet.ingest(reported(name, one, pool="d"), world.now)
        world.refresh()
        queues.add(world.model, pool, TrafficTotals(1_000, 6, completed, itl_ms=NO_MEAN.plus(1_200.0, 4)), world.now)
    assert queues.is_saturated(pool)
    return queues.served(world.model, pool, lengths, world.now)


def test_a_second_in_which_a_saturated_worker_completes_nothing_is_chance() -> None:
    """A batch that shrinks ends the span in which the pool is saturated, but not that in which it has a queue."""
    assert queued([(38, 5)] * 20 + [(30, 0), (24, 0), (24, 0), (24, 0)]) == pytest.approx(4.1, rel=0.1)


def test_an_engine_that_became_slower_during_a_queue_is_counted_since_its_batch_changed() -> None:
    assert queued([(40, 10)] * 60 + [(30, 4)] + [(40, 4)] * 8) == pytest.approx(4.0, rel=0.1)


def overloaded(itl_ms: float) -> PoolEvidence:
    """Return the evidence of an aggregated worker after a light load and 40 s in which its 256 slots were full.

    Its ITL was 6.2 to 6.6 ms with batches of 1 to 3, and the line through these says nothing of one of 256.
    """
    world = FleetHarness([PoolKnobs("a", "aggregated", replicas_max=16)], 1)
    pool, evidence, lengths = world.pool("a"), PoolEvidence(), LENGTHS

    def run(seconds: int, itl_ms: float, running: int, waiting: int) -> None:
        completed = round(1_000.0 * running / (itl_ms * OSL))
        for second in range(seconds):
            world.now += 1_000
            queue = waiting + 20 * second if waiting else 0
            one = WorkerSample(
                world.now // 1_000, 0, kv_usage_ratio=0.001 * running, running_requests=running, waiting_requests=queue
            )
            for name in pool.workers:
                world.fleet.ingest(reported(name, one, pool="a"), world.now)
            world.refresh()
            itl, ttft = NO_MEAN.plus(itl_ms, completed), NO_MEAN.plus(40.0 + 10.0 * queue, completed)
            arrivals = completed + 20 * bool(waiting)
            traffic = TrafficTotals(1_000, arrivals, completed, itl_ms=itl, ttft_ms=ttft)
            evidence.add(world.model, pool, PoolTraffic(traffic, 1.0), lengths, world.now)

    for running in (1, 2, 3):
        run(60, 6.0 + 0.2 * running, running, 0)
    run(40, itl_ms, 256, 100)
    return evidence


def test_a_full_batch_within_the_itl_shows_that_the_slots_are_the_limit() -> None:
    evidence = overloaded(itl_ms=38.0)
    assert evidence.capacity("aggregated", OBJECTIVES) == pytest.approx(evidence.saturated_rate, rel=0.1)
    assert evidence.saturated_rate == pytest.approx(WORK * 1_000.0 * 256 / (38.0 * OSL), rel=0.05)


def test_a_full_batch_beyond_the_itl_is_no_point_of_its_curve() -> None:
    assert overloaded(itl_ms=70.0).itl.latest_ms == pytest.approx(6.6)
