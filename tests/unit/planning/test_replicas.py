"""Counts for a demand and consolidation: manual calculations and properties."""

from math import inf

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadline.core.engines.regression import Line
from loadline.core.planning.sizing.load.steps import can_consolidate, combine_steps, load_after_removal, load_step
from loadline.core.planning.sizing.profile.prefill_capacity import prefill_capacity
from loadline.core.planning.sizing.replicas import (
    REPLICAS_MAX,
    concurrency,
    corrected_itl_ms,
    correction_factor,
    replicas_for,
)

ANY = st.floats(allow_nan=True, allow_infinity=True)
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(("demand", "capacity", "count"), [(2.1, 1.0, 3), (2.0, 1.0, 2), (0.0, 1.0, 1), (9.0, 0.0, 1)])
def test_replicas_for_divides_and_rounds_up(demand: float, capacity: float, count: int) -> None:
    assert replicas_for(demand, capacity, 1) == count


@given(ANY, ANY, st.integers(0, 10))
@example(INF, INF, 0)
@example(INF, 1.0, 0)
@example(1e308, 1e-308, 0)
def test_any_demand_gives_a_valid_count(demand: float, capacity: float, least: int) -> None:
    assert least <= replicas_for(demand, capacity, least) <= REPLICAS_MAX


@given(st.floats(0, 1e9), st.floats(0, 1e9), st.floats(1e-3, 1e9), st.floats(1e-3, 1e9))
def test_counts_are_monotone_in_demand_and_capacity(one: float, other: float, weak: float, strong: float) -> None:
    low, high = sorted((one, other))
    weak, strong = sorted((weak, strong))
    assert replicas_for(low, strong, 1) <= replicas_for(high, strong, 1) <= replicas_for(high, weak, 1)


@pytest.mark.parametrize(
    ("factor", "itl"), [(2.0, 25.0), (0.5, 100.0), (0.0, 50.0), (-1.0, 50.0), (NAN, 50.0), (INF, 50.0)]
)
def test_the_corrected_itl_objective_is_divided_by_the_factor(factor: float, itl: float) -> None:
    assert corrected_itl_ms(50.0, factor) == itl


@pytest.mark.parametrize(
    ("observed", "profiled"), [(0.0, 1.0), (1.0, 0.0), (NAN, 1.0), (1.0, NAN), (INF, 1.0), (1.0, INF)]
)
def test_unknown_latencies_give_no_correction(observed: float, profiled: float) -> None:
    assert correction_factor(observed, profiled) == 1.0
    assert correction_factor(30.0, 20.0) == 1.5


def test_concurrency_follows_littles_law() -> None:
    assert concurrency(1_800.0, 2, 10_000.0, 180_000.0) == 50.0
    assert concurrency(1_800.0, 0, 10_000.0, 180_000.0) == 100.0
    assert concurrency(1_800.0, 2, 10_000.0, 0.0) == 0.0


# -- steps by load -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loads", "target", "step"),
    [
        ([101, 101], 100, 1),
        ([101, 100], 100, 0),  # not all workers are overloaded
        ([39, 39], 100, -1),  # 100 / 2 * 0.8
        ([39, 40], 100, 0),
        ([1], 100, 0),  # the last worker stays
        ([1_000, 1_000], 0, 0),  # a load at which no worker meets the objective
        ([1_000, 1_000], NAN, 0),
        ([], 100, 0),
    ],
)
def test_steps_by_load(loads: list[float], target: float, step: int) -> None:
    assert load_step(loads, target) == step


@given(st.lists(st.floats(0, 1e9), max_size=9), st.floats(0, 1e9), st.floats(0, 1e9))
def test_steps_are_monotone_in_load(loads: list[float], more: float, target: float) -> None:
    assert load_step(loads, target) <= load_step([load + more for load in loads], target)


def test_steps_of_an_aggregated_pool_combine_both_loads() -> None:
    table = {(p, d): combine_steps(p, d) for p in (-1, 0, 1) for d in (-1, 0, 1)}
    assert {pair for pair, step in table.items() if step == 1} == {(1, 1), (1, 0), (0, 1), (1, -1), (-1, 1)}
    assert {pair for pair, step in table.items() if step == -1} == {(-1, -1)}


@pytest.mark.parametrize(
    ("loads", "load_max", "can"),
    [
        ([40, 40], None, False),  # 80: 10 + 80 of 10 + 0.8 * 90
        ([35, 35], None, True),
        ([35, 1], None, True),
        ([37, 1], None, False),  # 74: the fullest worker decides
        ([35, 35], 70, False),  # more than the cache holds
        ([1], None, False),
    ],
)
def test_consolidation_is_allowed_if_one_worker_less_suffices(
    loads: list[float], load_max: float | None, *, can: bool
) -> None:
    assert can_consolidate(loads, Line(1.0, 10.0).at, objective_ms=100.0, load_max=load_max) is can


def test_the_latency_of_an_idle_worker_is_excluded_from_consolidation() -> None:
    assert can_consolidate([1, 1], Line(1.0, 90.0).at, objective_ms=100.0)
    assert not can_consolidate([1, 1], Line(1.0, 100.0).at, objective_ms=100.0)


# -- capacity of one engine --------------------------------------------------------------------------------------------


def test_capacities_equal_manual_calculations() -> None:
    line = Line(1.0, 2.0)  # 2 ms plus 1 ms per token
    found = prefill_capacity(line, 500.0, 2_000.0)
    assert found is not None
    assert (found.batch_requests, found.ttft_ms) == (3, 1_502.0)
    assert found.requests_per_s == pytest.approx(3_000 / 1_502)
    assert prefill_capacity(line, 500.0, 501.0) is None, "not even one prompt"
    bounds = prefill_capacity(line, 500.0, 1e9, tokens_max=1_200)
    assert bounds is not None
    assert bounds.batch_requests == 2
    flat = prefill_capacity(Line(0.0, 100.0), 10.0, 100.0, requests_max=7)
    assert flat is not None
    assert flat.batch_requests == 7
    assert prefill_capacity(Line(0.0, 100.0), 10.0, 99.0) is None
    assert prefill_capacity(Line(0.0, 0.0), 10.0, 99.0) is None


@given(st.floats(1e-6, 10), st.floats(-100, 1e4), st.floats(1, 1e5), st.floats(0, 1e6), st.floats(0, 1e6))
def test_capacity_is_monotone_in_the_objective(slope: float, base: float, isl: float, one: float, other: float) -> None:
    tight, loose = (prefill_capacity(Line(slope, base), isl, ttft) for ttft in sorted((one, other)))
    if tight is not None:
        assert loose is not None
        assert tight.batch_requests <= loose.batch_requests
        assert tight.ttft_ms <= min(one, other) * (1 + 1e-6) + 1e-6


def test_redistributed_requests_raise_the_concurrency_of_others() -> None:
    assert load_after_removal(100.0, 5, Line(0.0, 20.0)) == pytest.approx(125.0), "at constant latency"
    line = Line(0.05, 10.0)
    after = load_after_removal(206.0, 3, line)
    # At the same request rate, concurrency is proportional to the latency.
    assert 3 * 206.0 / line.at(206.0) == pytest.approx(2 * after / line.at(after))
    assert load_after_removal(400.0, 2, line) == inf, "half of the workers never keep up"
