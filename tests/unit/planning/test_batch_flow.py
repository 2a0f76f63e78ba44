"""Present requests of a decode pool next to its arrivals."""

from math import exp

import pytest

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.sizing.evidence.latency import PoolEvidence
from loadline.core.planning.sizing.needs.batch_flow import BatchFlow
from loadline.core.planning.sizing.request_lengths import Lengths
from loadline.core.vocabulary.samples import WorkerSample
from loadline.core.vocabulary.scalars import Role
from tests.support.fleet_harness import FleetHarness, reported

LEAD_MS = 60_000


def flow(
    osl_tokens: float, role: Role = "decode", *, running: int = 40, waiting: int = 0, lead_ms: int = LEAD_MS
) -> BatchFlow:
    """Return the flow of a pool of two workers with an ITL of 20 ms."""
    world = FleetHarness([PoolKnobs("p", role, replicas_max=16)], 2)
    pool = world.pool("p")
    for name in pool.workers:
        sample = WorkerSample(1, 0, kv_usage_ratio=0.1, running_requests=running // 2, waiting_requests=0)
        world.fleet.ingest(reported(name, sample, pool="p"), world.now)
    world.refresh()
    evidence = PoolEvidence()
    evidence.itl.latest_ms, evidence.queues.waiting = 20.0, [waiting]
    return BatchFlow.of(pool, evidence, Lengths(500.0, osl_tokens), lead_ms)


def test_the_present_requests_stay_for_one_and_a_half_durations_on_average() -> None:
    found = flow(2_000.0)  # 40 s
    assert found.staying == pytest.approx(exp(-1.0))
    assert found.present_per_s == pytest.approx(1.0)
    assert found.count(5.0) == pytest.approx(exp(-1.0) + 5.0 * (1.0 - exp(-1.0)))


def test_a_steady_state_counts_as_its_arrivals() -> None:
    assert flow(2_000.0, running=80).count(2.0) == pytest.approx(2.0)


def test_requests_that_wait_for_the_batch_are_present() -> None:
    assert flow(2_000.0, running=40, waiting=40).present_per_s == pytest.approx(2.0)


def test_short_requests_are_gone_before_a_worker_is_ready() -> None:
    assert flow(100.0).count(5.0) == pytest.approx(5.0, rel=1e-6)
    assert flow(100.0, lead_ms=0).count(5.0) == pytest.approx(5.0, rel=1e-2)


@pytest.mark.parametrize("role", ["prefill", "aggregated"])
def test_other_roles_provide_for_the_arrivals(role: Role) -> None:
    assert flow(2_000.0, role).count(5.0) == 5.0


def test_an_unknown_duration_leaves_the_arrivals() -> None:
    assert flow(0.0).count(5.0) == 5.0
