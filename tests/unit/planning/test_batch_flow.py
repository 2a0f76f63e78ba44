"""Present requests of a decode pool next to its arrivals."""

from math import exp
from typing import Any

import pytest

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.sizing.evidence.saturation import SaturationEvidence
from loadline.core.planning.sizing.needs.batch_flow import BatchFlow
from loadline.core.vocabulary.samples import WorkerSample
from loadline.core.vocabulary.scalars import Role
from tests.support.fleet_harness import FleetHarness, reported

LEAD_MS, ITL_MS, ITL_LIMIT_MS = 60_000, 20.0, 40.0


def flow(
    osl_tokens: float,
    role: Role = "decode",
    *,
    running: int | None = 40,
    waiting: int = 0,
    itl_ms: float = ITL_MS,
    lead_ms: int = LEAD_MS,
    silent: bool = False,
) -> BatchFlow:
    """Return the flow of a pool of two workers."""
    world = FleetHarness([PoolKnobs("p", role, replicas_max=16)], 2)
    pool = world.pool("p")
    for name in list(pool.workers)[silent:]:
        batch = None if running is None else running // 2
        sample = WorkerSample(1, 0, kv_usage_ratio=0.1, running_requests=batch, waiting_requests=0)
        world.fleet.ingest(reported(name, sample, pool="p"), world.now)
    world.refresh()
    queues = SaturationEvidence(waiting=[waiting], latencies=[(0, itl_ms, 3), (1_000, itl_ms, 1)])
    return BatchFlow.of(pool, queues, osl_tokens, ITL_LIMIT_MS, lead_ms)


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


@pytest.mark.parametrize("unknown", [{"running": None}, {"itl_ms": 0.0}, {"silent": True}])
def test_while_anything_is_unknown_the_arrivals_count(unknown: dict[str, Any]) -> None:
    assert flow(2_000.0, **unknown).count(5.0) == 5.0
    assert flow(0.0).count(5.0) == 5.0


def test_in_an_overload_requests_seem_to_take_no_longer_than_at_the_limit() -> None:
    assert flow(2_000.0, running=400, itl_ms=120.0) == flow(2_000.0, running=400, itl_ms=ITL_LIMIT_MS)


def test_the_arrivals_of_a_sample_count_with_the_present_requests_of_its_time() -> None:
    found = flow(2_000.0)
    assert found.count(10.0, seconds=2.0) == pytest.approx(2.0 * found.count(5.0))
    assert found.count(10.0, seconds=0.0) == pytest.approx(10.0 * (1.0 - found.staying))
