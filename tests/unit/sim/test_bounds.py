"""Work bound, compared with manual calculations and with simulated fleets."""

import pytest

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.vocabulary.scalars import Role
from loadline.sim.compare.bounds import work_bound, worker_seconds
from loadline.sim.engine import EngineKnobs
from loadline.sim.fleet import SimulatedPool, SimulatedPoolKnobs
from loadline.sim.profiles import LinearProfile
from loadline.traces import Arrival, Trace

# An iteration of a batch of n takes 10 + n ms; a pass over t tokens takes 20 + 0.1 t ms.
PROFILE = LinearProfile(alpha=10.0, beta=1.0, gamma=20.0, delta=0.1)
OBJECTIVES = ObjectiveKnobs(ttft_ms=1_000.0, itl_ms=20.0)


def pool(
    role: Role, *, gpus: int = 1, profile: LinearProfile = PROFILE, blocks: int = 10_000, prefix: int = 0
) -> SimulatedPool:
    knobs = SimulatedPoolKnobs(name="any", kv_blocks=blocks, linear=profile, prefix_cache_blocks=prefix)
    engine = EngineKnobs(role, blocks, max_batch_requests=100, max_batched_tokens=2_000)
    return SimulatedPool(knobs, role, gpus, engine, profile)


def test_prefill_work_is_a_fraction_of_the_fullest_pass() -> None:
    # Two prompts of 1000 tokens fill a pass: 20 + 200 ms for both.
    [seconds] = worker_seconds([Arrival(0.0, 1_000, 5)], pool("prefill"), OBJECTIVES)
    assert seconds == pytest.approx(0.110)


def test_decode_work_is_a_fraction_of_the_fullest_iteration_within_the_objective() -> None:
    # An iteration of ten requests takes 20 ms, 2 ms per token. The first of 101 tokens comes from prefill.
    [seconds] = worker_seconds([Arrival(0.0, 1_000, 101)], pool("decode"), OBJECTIVES)
    assert seconds == pytest.approx(100 * 0.002)


def test_an_aggregated_worker_has_the_work_of_both_roles() -> None:
    [seconds] = worker_seconds([Arrival(0.0, 1_000, 101)], pool("aggregated"), OBJECTIVES)
    assert seconds == pytest.approx(0.110 + 0.2)


def test_a_request_that_cannot_meet_its_objective_counts_at_the_best_throughput() -> None:
    slow = LinearProfile(alpha=30.0, beta=1.0, gamma=2_000.0, delta=0.1)
    [decode] = worker_seconds([Arrival(0.0, 100, 2)], pool("decode", profile=slow), OBJECTIVES)
    assert decode == pytest.approx(0.130 / 100)
    [prefill] = worker_seconds([Arrival(0.0, 1_000, 2)], pool("prefill", profile=slow), OBJECTIVES)
    assert prefill == pytest.approx(2.200 / 2)


def test_a_request_that_fits_no_worker_needs_no_gpu_time() -> None:
    trace = Trace("t", [Arrival(0.0, 100, 1), Arrival(0.0, 1_000, 1)], 10.0)
    bound = work_bound(trace, {"a": pool("prefill", blocks=10)}, OBJECTIVES)
    only_small = work_bound(Trace("t", trace.arrivals[:1], 10.0), {"a": pool("prefill", blocks=10)}, OBJECTIVES)
    assert bound == only_small
    assert bound.gpu_hours > 0


def test_the_cheapest_pool_in_gpu_time_counts_for_each_request() -> None:
    # Ten times as fast on four GPUs is cheaper; the same speed on two is not.
    fast = LinearProfile(alpha=1.0, beta=0.1, gamma=2.0, delta=0.01)
    trace = Trace("t", [Arrival(0.0, 1_000, 101)] * 36, 10.0)
    single = work_bound(trace, {"a": pool("decode")}, OBJECTIVES)
    assert single.gpu_hours == pytest.approx(36 * 0.2 / 3_600.0)
    expensive = work_bound(trace, {"a": pool("decode"), "b": pool("decode", gpus=2)}, OBJECTIVES)
    assert expensive == single
    # Its full batch of 100 takes 11 ms, within the 20 ms.
    both = work_bound(trace, {"a": pool("decode"), "b": pool("decode", gpus=4, profile=fast)}, OBJECTIVES)
    assert both.gpu_hours == pytest.approx(36 * 100 * 0.00011 * 4 / 3_600.0)


def test_the_bound_adds_up_the_roles() -> None:
    trace = Trace("t", [Arrival(0.0, 1_000, 101)], 10.0)
    bound = work_bound(trace, {"d": pool("decode", gpus=2), "p": pool("prefill")}, OBJECTIVES)
    assert bound.gpu_hours == pytest.approx((2 * 0.2 + 0.11) / 3_600.0)


@pytest.mark.parametrize(
    "second",
    [Arrival(1.0, 2_000, 1, (1, 2, 9)), Arrival(1.0, 2_000, 1, (), 1_024)],
    ids=["named blocks", "a number of tokens"],
)
def test_cached_prefixes_are_no_work(second: Arrival) -> None:
    arrivals = [Arrival(0.0, 1_024, 1, (1, 2)), second]
    cold = worker_seconds(arrivals, pool("prefill"), OBJECTIVES)
    warm = worker_seconds(arrivals, pool("prefill", prefix=100), OBJECTIVES)
    assert warm[0] == cold[0]
    # 976 tokens of the 2000 that a pass has room for.
    assert warm[1] == pytest.approx((20 * 0.488 + 97.6) / 1_000.0)
    assert warm[1] < cold[1]
