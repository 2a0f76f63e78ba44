"""Scale to zero and from zero, and the last worker of a role."""

import msgspec
import pytest

from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.vocabulary.reasons import ReasonCode
from tests.support.idle_harness import AFTER_MS, IdleHarness, traffic

ONE = PoolKnobs("one", "aggregated", replicas_min=0)
TWO = PoolKnobs("two", "aggregated", replicas_min=0)
PREFILL = PoolKnobs("p", "prefill", replicas_min=0)
DECODE = PoolKnobs("d", "decode", replicas_min=0)
SECONDS = AFTER_MS // 1_000

# -- to zero -----------------------------------------------------------------------------------------------------------


def test_an_idle_model_is_scaled_to_zero_in_all_pools() -> None:
    world = IdleHarness(PREFILL, DECODE, workers=2)
    world.report_traffic(SECONDS)
    assert world.bounds() == {}
    assert world.idle.idle_at_ms(AFTER_MS) == world.now + 1_000
    world.report_traffic()
    assert world.bounded_counts(p=1, d=5) == {"p": 0, "d": 0}, "independent of the planner"
    assert {bound.code for bound in world.bounds().values()} == {ReasonCode.IDLE}


@pytest.mark.parametrize("fields", [{"arrivals": 1}, {"queued": 1}, {"in_flight": 1}])
def test_any_work_restarts_the_idle_time(fields: dict[str, int]) -> None:
    world = IdleHarness(ONE)
    world.report_traffic(SECONDS)
    world.report_traffic(1, ("f",), **fields)
    world.report_traffic(SECONDS - 1)
    assert world.bounds() == {}
    world.report_traffic(2)
    assert world.bounded_counts() == {"one": 0}


def test_outstanding_requests_count_as_work_and_completions_do_not() -> None:
    world = IdleHarness(ONE)
    world.report_traffic(arrivals=1, in_flight=1)
    world.report_traffic(10 * SECONDS, in_flight=1)
    assert world.bounds() == {}, "a long first request has not completed"
    world.report_traffic(SECONDS + 1, completed=1)
    assert world.bounded_counts() == {"one": 0}


@pytest.mark.parametrize("load", [{"waiting": 1, "running": 0}, {"waiting": 0, "running": 1}])
def test_load_of_a_worker_prevents_scale_to_zero(load: dict[str, int]) -> None:
    world = IdleHarness(ONE)
    world.report_traffic(SECONDS)
    world.report("one", **load)
    world.idle.observe(world.refresh(), world.now)
    world.report_traffic(SECONDS - 1)
    assert world.bounds() == {}, "worker load without known requests counts"


def test_a_refused_frontend_prevents_scale_to_zero_and_scales_from_zero() -> None:
    world = IdleHarness(ONE)
    world.model.traffic.frontends_max = 1
    for _ in range(3 * SECONDS):
        world.report_traffic(1, ("f", "refused"), queued=0)
    assert world.bounds() == {}, "a refused frontend may have requests"
    world.report_traffic(4 * SECONDS)
    assert world.bounded_counts() == {"one": 0}, "the refusal has expired"
    world.pool("one").decided = 0
    world.report_traffic(1, ("f",))
    world.model.traffic.ingest(traffic(1, "refused", queued=1), world.now)
    world.idle.observe(world.refresh(), world.now)
    assert world.bounded_counts() == {"one": 1}, "a request waits"


def test_a_silent_frontend_prevents_scale_to_zero() -> None:
    world = IdleHarness(ONE)
    world.report_traffic(SECONDS - 10, ("f", "g"))
    world.report_traffic(20)
    assert world.bounds() == {}, "one of two is silent"
    world.report_traffic(50)
    assert world.idle.known_since_ms > 0, "it expires with the traffic window"
    world.report_traffic(SECONDS - 30)
    assert world.bounds() == {}
    world.report_traffic(30)
    assert world.bounded_counts() == {"one": 0}


def test_without_frontends_no_model_scales_to_zero() -> None:
    world = IdleHarness(ONE)
    world.report_traffic(3 * SECONDS, ())
    assert world.bounds() == {}


# -- from zero ---------------------------------------------------------------------------------------------------------


def at_zero(*pools: PoolKnobs) -> IdleHarness:
    world = IdleHarness(*pools, workers=0)
    world.report_traffic(SECONDS + 1)
    assert world.bounded_counts() == dict.fromkeys(world.model.pools, 0)
    return world


@pytest.mark.parametrize("fields", [{"arrivals": 1}, {"queued": 1}])
def test_the_first_request_scales_one_pool_of_each_role_from_zero(fields: dict[str, int]) -> None:
    world = at_zero(PREFILL, DECODE, PoolKnobs("e", "decode", replicas_min=0))
    world.report_traffic(1, ("f",), **fields)
    assert world.bounded_counts() == {"p": 1, "d": 1, "e": 0}
    assert {bound.code for bound in world.bounds().values()} == {ReasonCode.FIRST_WORKER}
    assert world.bounded_counts(e=2) == {"p": 1, "d": 0, "e": 2}, "the planner recommends another pool"


def test_a_rejected_request_scales_from_zero() -> None:
    world = at_zero(ONE)
    world.report_traffic(arrivals=1)
    world.report_traffic(10)
    assert world.bounded_counts() == {"one": 1}, "a rejected request counts although none waits"


def test_the_fastest_pool_scales_from_zero_then_the_cheapest_then_by_name() -> None:
    world = at_zero(TWO, ONE)
    world.report_traffic(queued=1)
    assert world.bounded_counts() == {"one": 1, "two": 0}, "by name"
    world.pool("one").accelerator = AcceleratorKnobs("dear", cost_per_hour=3.0)
    assert world.bounded_counts() == {"one": 0, "two": 1}, "the cheapest"
    world.pool("one").start_ups_ms, world.pool("two").start_ups_ms = [30_000], [35_000]
    assert world.bounded_counts() == {"one": 0, "two": 1}, "a few seconds of start-up time do not matter"
    world.pool("two").start_ups_ms = [60_000]
    assert world.bounded_counts() == {"one": 1, "two": 0}, "the fastest"


def test_after_an_overdue_pool_the_next_one_scales_from_zero() -> None:
    world = at_zero(ONE, TWO)
    world.report_traffic(queued=1)
    world.pool("one").reset_decided(1, world.now)
    assert world.bounded_counts() == {"one": 1, "two": 0}
    world.now += ONE.start_deadline_ms
    world.report_traffic(queued=1)
    assert world.bounded_counts() == {"one": 1, "two": 1}
    world.pool("two").reset_decided(1, world.now)
    world.now += ONE.start_deadline_ms
    world.report_traffic(queued=1)
    assert world.bounded_counts() == {"one": 1, "two": 1}, "no other pool exists"


def test_workers_beyond_the_maximum_serve_nothing() -> None:
    world = at_zero(msgspec.structs.replace(ONE, replicas_max=1), TWO)
    world.report_traffic(queued=1)
    world.pool("one").reset_decided(1, world.now)
    world.now += ONE.start_deadline_ms
    world.report_traffic(queued=1)
    assert world.bounded_counts(one=5)["two"] == 1, "the only worker that the first pool may have is overdue"


def test_missing_reports_do_not_scale_from_zero() -> None:
    world = at_zero(ONE)
    world.report_traffic(30, ())
    assert world.bounded_counts() == {"one": 0}
    fresh = IdleHarness(ONE, workers=0)
    assert fresh.bounded_counts() == {"one": 0}


# -- the last worker ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("after_ms", [0, AFTER_MS])
def test_a_role_keeps_its_last_worker_against_its_planner(after_ms: int) -> None:
    world = IdleHarness(PREFILL, DECODE, workers=1, after_ms=after_ms)
    world.report_traffic(5)
    assert world.bounded_counts(p=0, d=0) == {"p": 1, "d": 1}
    assert world.bounds(p=0)["p"].code is ReasonCode.LAST_WORKER
    assert world.bounds(p=1, d=3) == {}


def test_the_last_worker_is_the_cheapest_ready_one() -> None:
    world = IdleHarness(ONE, TWO)
    world.report_traffic(5)
    assert world.bounded_counts(one=0, two=0) == {"one": 1, "two": 0}
    world.pool("one").accelerator = AcceleratorKnobs("dear", cost_per_hour=3.0)
    assert world.bounded_counts(one=0, two=0) == {"one": 0, "two": 1}
    world.remove_newest("two")
    world.pool("two").reset_decided(0, world.now)
    assert world.bounded_counts(one=0) == {"one": 1, "two": 0}, "the cheap pool has no ready worker"


def test_the_last_worker_is_not_a_pending_one() -> None:
    world = IdleHarness(ONE, TWO)
    world.pool("one").accelerator = AcceleratorKnobs("dear", cost_per_hour=3.0)
    world.remove_newest("two")
    world.add_workers("two", 1, "starting")
    world.report_traffic(5)
    assert world.bounded_counts(one=0, two=0) == {"one": 1, "two": 0}


def test_without_scale_to_zero_each_role_has_a_worker_from_the_start() -> None:
    world = IdleHarness(PREFILL, DECODE, workers=0, after_ms=0)
    assert world.bounded_counts() == {"p": 1, "d": 1}


def test_a_role_with_minimum_replicas_gets_no_bounds() -> None:
    world = IdleHarness(PoolKnobs("one", "aggregated"), TWO, workers=1)
    world.report_traffic(5)
    assert world.bounded_counts(one=0, two=0) == {"one": 0, "two": 0}, "minimum replicas are a guardrail's concern"
