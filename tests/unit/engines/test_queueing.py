"""Queueing model of an engine, compared with the direct solution of its Markov chain and with upstream's errors."""

import math
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadline.core.engines.geometric import geometric_sum, queue_weights
from loadline.core.engines.linear import LinearTimes
from loadline.core.engines.queueing import BATCH_MAX, QUEUE_LENGTH_IGNORED, QUEUE_MAX, EngineQueue
from tests.support.birth_death import BirthDeath, Shape
from tests.support.queue_analysis import analyse

LLAMA = LinearTimes(6.958, 0.042, 14.0, 0.0005)
NAN = math.nan

engines = st.builds(
    LinearTimes,
    alpha=st.sampled_from([0.0, 1.0, 7.0, 40.0]),
    beta=st.sampled_from([0.001, 0.04, 1.2]),
    gamma=st.sampled_from([0.0, 14.0, 87.0]),
    delta=st.sampled_from([5e-5, 1e-3, 0.1]),
) | st.just(LinearTimes(10.0, 0.0, 20.0, 0.0))
shapes = st.tuples(
    engines,
    st.sampled_from([0.0, 1.0, 512.0, 8_000.0]),
    st.sampled_from([1.0, 2.0, 128.5, 2_048.0]),
    st.integers(1, 80),
    st.integers(0, 200),
)
loads = st.floats(0.001, 3.0) | st.sampled_from([0.01, 0.5, 0.999, 1.0, 1.001, 50.0, 1e4])


def llama(batch: int = 64, room: int = 640, isl: float = 512.0, osl: float = 128.0) -> EngineQueue:
    return EngineQueue(LLAMA, isl, osl, batch, room)


def rate_of(queue: EngineQueue, load: float) -> float:
    """Return a rate per ms as a fraction of the capacity, at most the largest supported rate."""
    return min(1e6, load * queue.rate_max)


@given(shapes, loads)
def test_an_analysis_equals_the_direct_solution(shape: Shape, load: float) -> None:
    queue = EngineQueue(*shape)
    rate = rate_of(queue, load)
    found, direct = analyse(queue, 1_000.0 * rate), BirthDeath(shape, rate)
    close = partial(pytest.approx, rel=1e-8, abs=1e-12)
    assert found.throughput_requests_per_s == close(1_000.0 * direct.throughput)
    assert found.refused == close(direct.refused)
    assert found.running_requests == close(direct.running)
    assert found.waiting_requests == close(direct.waiting)
    assert found.batch_requests == close(direct.joined_mean)
    assert found.waiting_ms == close(direct.waiting / direct.throughput, rel=1e-8, abs=1e-9)
    assert found.service_ms == close(direct.running / direct.throughput)
    assert found.utilisation == close(direct.running / queue.batch_max)
    assert found.ttft_ms == found.waiting_ms + found.prefill_ms


@pytest.mark.parametrize("load", [0.05, 0.6, 0.97, 1.0, 1.03])
@pytest.mark.parametrize(("batch", "room"), [(256, 2_560), (512, 512), (512, 0), (1_500, 100)])
def test_analyses_of_large_engines_equal_the_direct_solution(batch: int, room: int, load: float) -> None:
    queue = llama(batch, room)
    rate = load * queue.rate_max
    found, direct = analyse(queue, 1_000.0 * rate), BirthDeath((LLAMA, 512.0, 128.0, batch, room), rate)
    assert found.waiting_requests == pytest.approx(direct.waiting, rel=1e-7, abs=1e-12)
    assert found.batch_requests == pytest.approx(direct.joined_mean, rel=1e-9)
    assert found.refused == pytest.approx(direct.refused, rel=1e-7, abs=1e-12)
    above = queue.share_above(1_000.0 * rate, 0.6 * batch)
    assert above == pytest.approx(direct.share_above(int(0.6 * batch)), rel=1e-7, abs=1e-10)


@given(shapes, loads, st.integers(0, 81), st.floats(0.0, 3.0))
def test_distributions_equal_the_direct_solution(shape: Shape, load: float, batch: int, waited: float) -> None:
    queue = EngineQueue(*shape)
    rate = rate_of(queue, load)
    direct = BirthDeath(shape, rate)
    wait_ms = waited * (queue.queue_max + 1) / queue.rate_max
    assert queue.share_above(1_000.0 * rate, batch) == pytest.approx(direct.share_above(batch), rel=1e-8, abs=1e-10)
    over = queue.share_waiting_over(1_000.0 * rate, wait_ms)
    assert over == pytest.approx(direct.share_waiting_over(wait_ms), rel=1e-6, abs=1e-12)


def test_treating_a_long_queue_as_infinite_is_continuous() -> None:
    batch, rate, wait_ms = 64, 0.95, 200.0
    found = []
    for room in range(300, 460):
        queue = llama(batch, room)
        step, slack = math.log(rate), (1.0 - rate) * queue.rate_max * wait_ms
        found.append(
            (
                room * step + slack < QUEUE_LENGTH_IGNORED,
                queue.share_waiting_over(1_000.0 * rate * queue.rate_max, wait_ms),
            )
        )
    assert {is_infinite for is_infinite, _ in found} == {True, False}
    assert all(other == pytest.approx(one, rel=3e-8) for (_, one), (_, other) in pairwise(found))


def test_waits_equal_those_of_an_event_simulation() -> None:
    """Four simulated runs of a million requests each, at 90 %, gave 50.6 (1.0), 323.5 (6) and 642.5 (17) ms."""
    queue = llama()
    rate = 900.0 * queue.rate_max
    waits = (analyse(queue, rate).waiting_ms, queue.wait_quantile_ms(rate, 0.95), queue.wait_quantile_ms(rate, 0.99))
    assert waits == pytest.approx((50.6, 323.5, 642.5), rel=0.03)


@given(shapes, loads)
def test_percentiles_are_ordered_and_reach_their_share(shape: Shape, load: float) -> None:
    queue = EngineQueue(*shape)
    rate = 1_000.0 * rate_of(queue, load)
    shares = (0.0, 0.5, 0.9, 0.99, 0.9999)
    for percentile in (queue.wait_quantile_ms, queue.ttft_quantile_ms, queue.itl_quantile_ms):
        found = [percentile(rate, share) for share in shares]
        assert found == sorted(found)
        assert all(math.isfinite(one) for one in found)
    for share in shares:
        wait_ms = queue.wait_quantile_ms(rate, share)
        over = queue.share_waiting_over(rate, wait_ms)
        assert over <= (1.0 - share) * (1.0 + 1e-9)
        assert wait_ms == 0.0 or over == pytest.approx(1.0 - share, rel=1e-3)


def test_latency_percentiles_follow_from_batches_and_waits() -> None:
    queue = llama()
    high_rate, low_rate = 970.0 * queue.rate_max, 600.0 * queue.rate_max
    assert queue.ttft_quantile_ms(high_rate, 0.99) == pytest.approx(
        queue.wait_quantile_ms(high_rate, 0.99) + 14.0 + 0.0005 * 512.0 * 64.0
    )
    assert queue.wait_quantile_ms(low_rate, 0.9) == 0.0
    batch = queue.batch_quantile(low_rate, 0.9)
    assert queue.share_above(low_rate, batch) <= 0.1 < queue.share_above(low_rate, batch - 1)
    assert queue.ttft_quantile_ms(low_rate, 0.9) == pytest.approx(14.0 + 0.0005 * 512.0 * batch)
    assert queue.itl_quantile_ms(low_rate, 0.9) == pytest.approx(6.958 + 0.042 * batch)


@pytest.mark.parametrize("load", [1.0 - 1e-9, 1.0 - 1e-13])
def test_an_engine_without_fixed_time_near_saturation(load: float) -> None:
    shape = (LinearTimes(0.0, 0.04, 0.0, 0.001), 512.0, 128.0, 16, 40)
    queue = EngineQueue(*shape)
    direct = BirthDeath(shape, load * queue.rate_max)
    assert analyse(queue, 1_000.0 * load * queue.rate_max).batch_requests == pytest.approx(direct.joined_mean, rel=1e-9)


@pytest.mark.parametrize("load", [0.3, 0.9, 0.99, 1.0, 1.5])
def test_the_mean_equals_that_of_the_distribution(load: float) -> None:
    queue = llama(16, 100)
    rate = 1_000.0 * load * queue.rate_max
    found = analyse(queue, rate)
    joined = sum(queue.share_above(rate, batch) for batch in range(queue.batch_max))
    assert found.batch_requests == pytest.approx(joined, rel=1e-9)
    step_ms = 10.0
    waited = sum(queue.share_waiting_over(rate, (place + 0.5) * step_ms) for place in range(6_000)) * step_ms
    assert found.waiting_ms == pytest.approx(waited, rel=1e-3)


@given(shapes)
def test_more_requests_wait_longer(shape: Shape) -> None:
    queue = EngineQueue(*shape)
    rates = [
        min(1e9, 1_000.0 * queue.rate_max * load) for load in (1e-6, 0.01, 0.3, 0.7, 0.95, 0.999, 1.0, 1.001, 1.2, 5.0)
    ]
    found = [analyse(queue, rate) for rate in rates]
    for low, high in pairwise(found):
        for name in ("waiting_ms", "batch_requests", "ttft_ms", "itl_ms", "refused", "throughput_requests_per_s"):
            assert getattr(low, name) <= getattr(high, name) * (1.0 + 1e-9)


@pytest.mark.parametrize("load", [1.0, 1.001, 2.0, 1e3, 1e6])
@pytest.mark.parametrize(("batch", "room"), [(1, 0), (1, 10), (64, 640), (256, 2_560), (512, 1_000_000)])
def test_an_overloaded_engine_can_be_analysed(load: float, batch: int, room: int) -> None:
    """Upstream returns an error above 99.9 % of the capacity."""
    queue = llama(batch, room)
    found = analyse(queue, min(1e9, 1_000.0 * load * queue.rate_max))
    assert all(math.isfinite(getattr(found, name)) for name in found.__struct_fields__)
    assert found.throughput_requests_per_s <= 1_000.0 * queue.rate_max * (1.0 + 1e-6)
    assert 0.0 <= found.waiting_ms <= room / queue.rate_max * (1.0 + 1e-6)
    if load >= 2.0:
        assert found.throughput_requests_per_s == pytest.approx(
            1_000.0 * queue.rate_max, rel=0.35 if batch == 1 else 1e-2
        )
        assert found.waiting_ms == pytest.approx(room / queue.rate_max, rel=0.15 if room else 0)
        assert math.isfinite(queue.ttft_quantile_ms(1_000.0 * queue.rate_max, 0.99))


def test_a_tiny_rate_is_served_at_once() -> None:
    found = analyse(llama(), 1e-300)
    assert (found.waiting_ms, found.batch_requests, found.refused) == (0.0, 1.0, 0.0)


def test_constant_service_times_can_be_analysed() -> None:
    """Upstream reports every target as infeasible for constant times, and NaN as the prefill time."""
    queue = EngineQueue(LinearTimes(10.0, 0.0, 5.0, 0.0), 100.0, 50.0, 32, 320)
    found = analyse(queue, 500.0 * queue.rate_max)
    assert (found.itl_ms, found.prefill_ms, found.service_ms) == (10.0, 5.0, 495.0)
    assert queue.itl_quantile_ms(500.0 * queue.rate_max, 0.99) == 10.0


def test_without_prompts_there_is_no_prefill() -> None:
    """Upstream subtracts gamma nevertheless, so its ITL is too low."""
    queue = llama(isl=0.0)
    found = analyse(queue, 500.0 * queue.rate_max)
    assert found.prefill_ms == 0.0
    assert found.service_ms == pytest.approx(127.0 * found.itl_ms)
    one = EngineQueue(LLAMA, 0.0, 1.0, 64, 640)
    assert analyse(one, 500.0 * one.rate_max).itl_ms == pytest.approx(analyse(one, 500.0 * one.rate_max).service_ms)


@pytest.mark.parametrize("count", [0, 1, 2, 10, 2_560])
@pytest.mark.parametrize("step", [-50.0, -1.0, -0.03, -1e-4, -1e-9, -1e-300, 0.0, 1e-12, 1e-4, 0.2, 3.0, 600.0])
def test_the_closed_form_of_the_tail_equals_its_sum(step: float, count: int) -> None:
    anchor = max(0.0, step * count)
    weights = [math.exp(step * place - anchor) for place in range(1, count + 1)]
    lead, last, total, moment = queue_weights(step, count)
    assert lead == pytest.approx(math.exp(-anchor))
    assert last == pytest.approx(weights[-1] if weights else 1.0)
    assert total == pytest.approx(math.fsum(weights), rel=1e-9)
    assert moment == pytest.approx(math.fsum(place * weight for place, weight in enumerate(weights, 1)), rel=1e-9)
    places = range(count) if step <= 0.0 else range(-count, 0)
    assert geometric_sum(step, count) == pytest.approx(math.fsum(math.exp(step * place) for place in places), rel=1e-9)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"isl_tokens": NAN}, "isl_tokens is nan"),
        ({"isl_tokens": -1.0}, "isl_tokens is -1.0"),
        ({"osl_tokens": 0.5}, "osl_tokens is 0.5"),
        ({"osl_tokens": math.inf}, "osl_tokens is inf"),
        ({"max_batch_requests": 0}, "max_batch_requests is 0"),
        ({"max_batch_requests": BATCH_MAX + 1}, "max_batch_requests is 16385"),
        ({"max_queue_requests": -1}, "max_queue_requests is -1"),
        ({"max_queue_requests": QUEUE_MAX + 1}, "max_queue_requests is 1000001"),
        ({"times": LinearTimes(0.0, 1.0, 0.0, 1e-300), "osl_tokens": 1.0}, "would take"),
        ({"times": LinearTimes(1e300, 1e300, 1.0, 1.0)}, "would take"),
    ],
)
def test_invalid_arguments_are_refused_by_name(changed: dict[str, float], problem: str) -> None:
    """Upstream accepts NaN in its configuration and never returns."""
    arguments = {
        "times": LLAMA,
        "isl_tokens": 512.0,
        "osl_tokens": 128.0,
        "max_batch_requests": 8,
        "max_queue_requests": 80,
    }
    with pytest.raises(ValueError, match=problem):
        EngineQueue(**{**arguments, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize("rate", [NAN, 0.0, -1.0, math.inf, 1e10])
def test_an_invalid_rate_is_refused(rate: float) -> None:
    queue = llama()
    for method in (
        queue.steady_state,
        lambda r: queue.share_above(r, 3),
        lambda r: queue.share_waiting_over(r, 1.0),
    ):
        with pytest.raises(ValueError, match="the rate is"):
            method(rate)


@pytest.mark.parametrize("wait_ms", [NAN, -1.0])
def test_an_invalid_wait_is_refused(wait_ms: float) -> None:
    with pytest.raises(ValueError, match="wait_ms is"):
        llama().share_waiting_over(10.0, wait_ms)
    assert llama().share_waiting_over(50.0, math.inf) == 0.0


@pytest.mark.parametrize("share", [NAN, -0.1, 1.0, 2.0])
def test_an_invalid_share_is_refused(share: float) -> None:
    for method in (llama().wait_quantile_ms, llama().batch_quantile, llama().ttft_quantile_ms, llama().itl_quantile_ms):
        with pytest.raises(ValueError, match="the share is"):
            method(10.0, share)
