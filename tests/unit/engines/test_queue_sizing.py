"""Maximum request rate of an engine within its targets, and the search for it."""

import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadline.core.engines.linear import LinearTimes
from loadline.core.engines.queue_sizing import ROUNDING, MaxRate, Targets, max_rate
from loadline.core.engines.queueing import EngineQueue
from loadline.core.engines.roots import last_below
from tests.support.queue_analysis import analyse

LLAMA = LinearTimes(6.958, 0.042, 14.0, 0.0005)
QUEUE = EngineQueue(LLAMA, 512.0, 128.0, 64, 64)
LEAST, MOST = QUEUE.rate_range_per_s

attainments = st.sampled_from([0.0, 0.5, 0.95, 0.99])


def queue_of(seed: int) -> EngineQueue:
    draw = random.Random(seed)
    alpha, beta = draw.choice([(0.0, 0.02), (1.0, 0.0), (1.0, 0.5), (25.0, 0.02)])
    gamma, delta = draw.choice([(0.0, 1e-4), (14.0, 0.0), (60.0, 0.01)])
    times = LinearTimes(alpha, beta, gamma, delta)
    lengths = draw.choice([0.0, 100.0, 4_000.0]), draw.choice([2.0, 128.0, 1_000.5])
    return EngineQueue(times, *lengths, draw.choice([1, 2, 8, 33, 64]), draw.choice([0, 1, 16, 80, 640]))


def targets_of(queue: EngineQueue, seed: int, attainment: float) -> Targets:
    draw = random.Random(seed)
    full = analyse(queue, 1_000.0 * queue.rate_max)
    return Targets(
        ttft_ms=draw.choice(
            [math.inf, draw.uniform(0.5, 2.0) * full.prefill_ms + 1.0, draw.uniform(0.0, 1.0) * full.ttft_ms + 0.1]
        ),
        itl_ms=draw.choice([math.inf, draw.uniform(0.9, 1.1) * full.itl_ms, draw.uniform(0.3, 1.0) * full.itl_ms]),
        tokens_per_s=draw.choice([0.0, 1_000.0]),
        attainment=attainment,
    )


def reached(queue: EngineQueue, rate: float, attainment: float) -> tuple[float, float]:
    if attainment:
        return queue.ttft_quantile_ms(rate, attainment), queue.itl_quantile_ms(rate, attainment)
    found = analyse(queue, rate)
    return found.ttft_ms, found.itl_ms


def met(queue: EngineQueue, targets: Targets, rate: float, rounding: float = 3e-6) -> bool:
    ttft_ms, itl_ms = reached(queue, rate, targets.attainment)
    return ttft_ms <= targets.ttft_ms * (1.0 + rounding) and itl_ms <= targets.itl_ms * (1.0 + rounding)


@given(st.integers(0, 10_000), attainments)
def test_the_rate_is_the_highest_that_meets_the_targets(seed: int, attainment: float) -> None:
    queue = queue_of(seed)
    targets = targets_of(queue, seed, attainment)
    least, most = queue.rate_range_per_s
    found = max_rate(queue, targets)
    if not found.requests_per_s:
        assert found.bound in {"ttft", "itl"}
        at_least = dict(zip(("ttft", "itl"), reached(queue, least, attainment), strict=True))[found.bound]
        assert found.lowest_ms == at_least > getattr(targets, f"{found.bound}_ms")
        return
    assert least <= found.requests_per_s <= most
    assert met(queue, targets, found.requests_per_s)
    if found.bound == "saturation":
        assert found.requests_per_s == most
    elif found.bound == "tokens":
        assert found.requests_per_s == pytest.approx(0.9 * most)
    else:
        assert not met(queue, targets, found.requests_per_s * 1.001, 0.0)


def test_reference_points_of_the_workload_variant_autoscaler() -> None:
    assert max_rate(QUEUE, Targets(itl_ms=7.781)).requests_per_s == pytest.approx(18.46, abs=0.005)
    assert max_rate(QUEUE, Targets(ttft_ms=179.0)).requests_per_s == pytest.approx(48.05, abs=0.005)
    assert max_rate(QUEUE, Targets()) == MaxRate(MOST, "saturation")
    assert max_rate(QUEUE, Targets(tokens_per_s=1.0)) == MaxRate(0.9 * MOST, "tokens")


def test_an_infeasible_target_is_named_with_the_lowest_latency() -> None:
    found = max_rate(QUEUE, Targets(ttft_ms=1_000.0, itl_ms=6.9))
    assert (found.requests_per_s, found.bound) == (0.0, "itl")
    assert found.lowest_ms == analyse(QUEUE, LEAST).itl_ms == pytest.approx(7.0, abs=1e-3)
    assert max_rate(QUEUE, Targets(ttft_ms=14.0)).lowest_ms == pytest.approx(14.256, abs=1e-3)
    late = max_rate(QUEUE, Targets(ttft_ms=14.0, attainment=0.95))
    assert (late.requests_per_s, late.lowest_ms) == (0.0, QUEUE.ttft_quantile_ms(LEAST, 0.95))


@pytest.mark.parametrize("attainment", [0.0, 0.95])
def test_a_flat_curve_is_feasible_up_to_saturation(attainment: float) -> None:
    """The Workload Variant Autoscaler reports "below bounded region", although the ITL is 10 ms at every rate."""
    queue = EngineQueue(LinearTimes(10.0, 0.0, 5.0, 0.0), 100.0, 50.0, 32, 320)
    for target in (50.0, 10.0):
        assert max_rate(queue, Targets(itl_ms=target, attainment=attainment)).bound == "saturation"
    assert max_rate(queue, Targets(itl_ms=9.99, attainment=attainment)) == MaxRate(0.0, "itl", 10.0)


@pytest.mark.parametrize("attainment", [0.0, 0.95])
def test_a_target_equal_to_the_lowest_latency_is_met(attainment: float) -> None:
    """With a batch of one, the ITL is the same at every rate. The Workload Variant Autoscaler returns 0.1 % of it."""
    queue = EngineQueue(LLAMA, 512.0, 128.0, 1, 10)
    for rounded in (7.0, 7.0 * (1.0 - 0.5 * ROUNDING)):
        assert max_rate(queue, Targets(itl_ms=rounded, attainment=attainment)).bound == "saturation"


def test_a_target_that_is_a_rounded_latency_is_met() -> None:
    for rate in (LEAST, MOST):
        targets = Targets(itl_ms=analyse(QUEUE, rate).itl_ms * (1.0 - 0.5 * ROUNDING))
        assert max_rate(QUEUE, targets).requests_per_s == rate
    least_ms = analyse(QUEUE, LEAST).itl_ms
    missed = Targets(itl_ms=least_ms * (1.0 - 2.0 * ROUNDING))
    assert max_rate(QUEUE, missed) == MaxRate(0.0, "itl", least_ms)


def test_percentiles_need_more_capacity_than_means() -> None:
    queue = EngineQueue(LLAMA, 512.0, 128.0, 64, 640)
    rates = [
        max_rate(queue, Targets(ttft_ms=500.0, attainment=share)).requests_per_s for share in (0.0, 0.9, 0.95, 0.99)
    ]
    assert rates == sorted(rates, reverse=True)
    assert queue.ttft_quantile_ms(rates[-1], 0.99) == pytest.approx(500.0, rel=1e-4)
    batches = [max_rate(queue, Targets(itl_ms=9.0, attainment=share)).requests_per_s for share in (0.5, 0.95, 0.99)]
    assert batches == sorted(batches, reverse=True)


@pytest.mark.parametrize("room", [0, 1, 16])
def test_a_short_queue_bounds_the_wait(room: int) -> None:
    """Refused requests do not wait, so a short queue meets the percentile at any rate."""
    queue = EngineQueue(LLAMA, 512.0, 128.0, 64, room)
    targets = Targets(ttft_ms=2_000.0, attainment=0.99)
    assert max_rate(queue, targets).bound == "saturation"


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"ttft_ms": math.nan}, "target ttft_ms is nan"),
        ({"itl_ms": 0.0}, "target itl_ms is 0.0"),
        ({"tokens_per_s": -1.0}, "target tokens_per_s is -1.0"),
        ({"tokens_per_s": math.inf}, "target tokens_per_s is inf"),
        ({"attainment": 1.0}, "attainment is 1.0"),
        ({"attainment": math.nan}, "attainment is nan"),
    ],
)
def test_invalid_targets_are_refused(changed: dict[str, float], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Targets(**changed)


FUNCTIONS: dict[str, tuple[Callable[[float], float], float, int]] = {
    "line": (lambda x: x - 3.0, 3.0, 12),
    "steep": (lambda x: (x / 7.0) ** 40 - 1.0, 7.0, 40),
    "pole": (lambda x: 1.0 / (10.0001 - x) - 500.0, 10.0001 - 1.0 / 500.0, 30),
    "jump": (lambda x: -1.0 if x <= 5.25 else 1e6, 5.25, 90),
    "plateau": (lambda x: max(-13.0, 100.0 * math.log(x / 9.9)), 9.9, 40),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_search_ends_just_below_the_crossing(name: str) -> None:
    function, crossing, most = FUNCTIONS[name]
    evaluated: list[float] = []

    def evaluate(place: float) -> float:
        evaluated.append(place)
        return function(place)

    found = last_below(evaluate, (0.001, function(0.001)), (10.0, function(10.0)), 1e-6)
    assert crossing * (1.0 - 1.1e-6) <= found <= crossing * (1.0 + 1e-12)
    assert len(evaluated) <= most
