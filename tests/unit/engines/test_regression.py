"""Online regression of latency over load: upstream's rules, and the exclusion of outliers."""

import random
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadline.core.engines.regression import SAMPLES_MAX, SAMPLES_MIN, Line, Regression


def learned(*samples: tuple[float, float]) -> Regression:
    regression = Regression()
    for load, latency_ms in samples:
        regression.push(load, latency_ms)
    return regression


def on_a_line(count: int, first: int = 1) -> list[tuple[float, float]]:
    return [(load, 10.0 + 2.0 * load) for load in range(first, first + count)]


def test_too_few_samples_give_no_line() -> None:
    few = learned(*on_a_line(SAMPLES_MIN - 1))
    assert (few.line(), few.load_at(100.0)) == (None, None)
    assert learned(*on_a_line(SAMPLES_MIN)).line() == Line(2.0, 10.0)


@pytest.mark.parametrize(("sla_ms", "load"), [(100.0, 45.0), (10.0, 0.0), (5.0, 0.0)])
def test_the_load_at_which_the_line_reaches_an_objective(sla_ms: float, load: float) -> None:
    assert learned(*on_a_line(5)).load_at(sla_ms) == load


def test_only_the_last_samples_count() -> None:
    regression = learned(*[(load, 500.0 - load) for load in range(1, 100)], *on_a_line(SAMPLES_MAX))
    assert regression.line() == Line(2.0, 10.0)
    assert len(regression.loads) == len(regression.latencies_ms) == SAMPLES_MAX


@pytest.mark.parametrize(("sla_ms", "load"), [(50.0, 26.0), (50.1, 25.0), (10.0, 20.0)])
def test_a_falling_line_gives_the_smallest_load_within_the_objective(sla_ms: float, load: float) -> None:
    falling = learned(*[(load, 100.0 - 2.0 * load) for load in range(20, 31)])
    assert falling.load_at(sla_ms) == load


def test_equal_loads_give_a_slope_of_zero() -> None:
    same = learned(*[(7.0, latency) for latency in (10.0, 20.0, 30.0, 20.0, 20.0)])
    assert same.line() == Line(0.0, 20.0)
    assert same.load_at(15.0) == 7.0


@pytest.mark.parametrize("load", [0.0, -1.0, float("nan"), float("inf")])
def test_an_invalid_sample_is_ignored(load: float) -> None:
    assert learned((load, 10.0), (10.0, load)).loads == []


@pytest.mark.parametrize("cold", range(1, 13))
def test_samples_of_a_cold_start_are_outliers(cold: int) -> None:
    noise = random.Random("noise")
    warm = [(load, latency * noise.uniform(0.97, 1.03)) for load, latency in on_a_line(SAMPLES_MAX - cold)]
    line = learned(*[(1.0 + number, 45_000.0) for number in range(cold)], *warm).line()
    assert line is not None
    assert line.slope == pytest.approx(2.0, rel=0.05)
    assert line.at(20.0) == pytest.approx(50.0, rel=0.05)


def test_a_line_is_never_below_zero() -> None:
    assert Line(2.0, -10.0).at(1.0) == 0.0


def test_a_decoded_regression_is_equal() -> None:
    regression = learned(*on_a_line(7))
    for fitted in (False, True):
        if fitted:
            regression.line()
        again = msgspec.json.decode(msgspec.json.encode(regression), type=Regression)
        assert again == regression
        assert again.line() == regression.line()


samples = st.lists(st.tuples(st.floats(1e-6, 1e12), st.floats(1e-6, 1e12)), max_size=80)


@given(samples, st.floats(0, 1e12))
def test_every_result_is_finite_and_not_negative(pairs: list[tuple[float, float]], sla_ms: float) -> None:
    load = learned(*pairs).load_at(sla_ms)
    assert (load is None) == (len(pairs) < SAMPLES_MIN)
    assert load is None or 0.0 <= load < float("inf")


@given(samples, st.lists(st.floats(0, 1e12), min_size=2, max_size=5))
def test_a_looser_objective_allows_no_less_load(pairs: list[tuple[float, float]], slas: list[float]) -> None:
    regression = learned(*pairs)
    line = regression.line()
    if line is None or line.slope <= 0.0:
        return
    loads = [regression.load_at(sla_ms) or 0.0 for sla_ms in sorted(slas)]
    assert all(low <= high for low, high in pairwise(loads))


@given(samples)
def test_repeated_queries_give_the_same_line(pairs: list[tuple[float, float]]) -> None:
    queried = Regression()
    for load, latency_ms in pairs:
        queried.push(load, latency_ms)
        queried.line()
    assert queried.line() == learned(*pairs).line()
