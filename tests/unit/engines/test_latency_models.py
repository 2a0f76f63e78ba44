"""Latency models: measured points are reproduced, no value outside is better, and all functions are monotone."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadline.core.engines.latency_models import DecodeSurface, PrefillCurve, decode_surface, prefill_curve
from loadline.core.engines.linear import LinearDecode, LinearPrefill, LinearTimes
from loadline.core.engines.monotone_curve import MonotoneCurve
from loadline.core.engines.sweeps import DecodeSweep, PrefillSweep
from loadline.profile_files import read_decode, read_prefill

DATA = Path(__file__).parents[2] / "vectors" / "data"
PREFILL_SWEEP = read_prefill(DATA / "dynamo_h200_llama3.1-8b-fp8_tp1_prefill.npz")
DECODE_SWEEP = read_decode(DATA / "dynamo_h200_llama3.1-8b-fp8_tp1_decode.npz")
PREFILL, DECODE = PrefillCurve(PREFILL_SWEEP), DecodeSurface(DECODE_SWEEP)
LINEAR = LinearDecode(LinearTimes(10.0, 0.5, 20.0, 0.1), max_kv_tokens=100_000.0, max_batch_requests=64.0)
OUTLIER = PrefillSweep((100.0, 200.0, 300.0, 400.0), (10.0, 50.0, 30.0, 45.0), (1_000.0, 400.0, 1_000.0, 900.0))


def num(value: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.asarray(float(value))


# -- the curve ---------------------------------------------------------------------------------------------------------


def test_a_curve_is_the_not_a_knot_spline_where_that_is_monotone() -> None:
    at = [0.0, 1.0, 3.0, 4.0, 6.0]
    curve = MonotoneCurve(at, [x**3 + x for x in at])  # this spline reproduces every cubic
    places = np.linspace(0.0, 6.0, 61)
    assert curve(places) == pytest.approx(places**3 + places, rel=1e-12)


def test_a_curve_is_monotone_where_the_spline_is_not() -> None:
    values = MonotoneCurve([0.0, 1.0, 2.0, 3.0, 4.0], [0.0, 0.0, 0.0, 10.0, 10.0])(np.linspace(0.0, 4.0, 401))
    assert values.min() == 0.0
    assert values.max() == 10.0
    assert (np.diff(values) >= 0.0).all()


points = st.lists(
    st.tuples(st.integers(0, 10**6), st.floats(0, 1e9)), min_size=2, max_size=12, unique_by=lambda p: p[0]
)


@given(points)
def test_a_curve_passes_through_its_points_and_stays_between_neighbours(pairs: list[tuple[int, float]]) -> None:
    at, values = zip(*sorted(pairs), strict=True)
    curve = MonotoneCurve(at, values)
    assert curve(np.asarray(at, dtype=float)).tolist() == pytest.approx(values, rel=1e-12, abs=1e-12 * max(values))
    for left in range(len(at) - 1):
        ends = values[left : left + 2]
        piece = curve(np.linspace(at[left], at[left + 1], 20))
        assert piece.min() >= min(ends)
        assert piece.max() <= max(ends)


@given(points)
def test_a_curve_through_rising_points_rises(pairs: list[tuple[int, float]]) -> None:
    at = sorted(place for place, _ in pairs)
    values = sorted(value for _, value in pairs)
    along = MonotoneCurve(at, values)(np.linspace(at[0], at[-1], 500))
    assert (np.diff(along) >= -1e-9 * max(values)).all()


# -- prefill -----------------------------------------------------------------------------------------------------------


def test_measured_prompts_are_reproduced() -> None:
    isl = np.asarray(PREFILL_SWEEP.isl_tokens)
    assert PREFILL.ttft_ms(isl) == pytest.approx(PREFILL_SWEEP.ttft_ms)
    assert PREFILL.tokens_per_s_per_gpu(isl) == pytest.approx(PREFILL_SWEEP.tokens_per_s_per_gpu)


def test_prompts_outside_the_sweep_are_never_faster() -> None:
    shortest, longest = PREFILL.isl_min, PREFILL.isl_max
    assert float(PREFILL.ttft_ms(num(1))) == pytest.approx(PREFILL_SWEEP.ttft_ms[0])
    assert float(PREFILL.ttft_ms(num(4 * longest))) == pytest.approx(4 * PREFILL_SWEEP.ttft_ms[-1])
    rate = PREFILL.tokens_per_s_per_gpu
    assert float(rate(num(shortest / 2))) == pytest.approx(PREFILL_SWEEP.tokens_per_s_per_gpu[0] / 2)
    assert float(rate(num(4 * longest))) == pytest.approx(PREFILL_SWEEP.tokens_per_s_per_gpu[-1])
    assert float(rate(num(0))) == 0.0


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_a_longer_prompt_never_takes_less(one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert 0.0 < PREFILL.ttft_ms(num(low)) <= PREFILL.ttft_ms(num(high)) * (1 + 1e-12)


def test_an_outlier_is_bounded_by_the_longer_prompt() -> None:
    curve = PrefillCurve(OUTLIER)
    assert float(curve.ttft_ms(num(200))) == 30.0
    assert float(curve.tokens_per_s_per_gpu(num(200))) == pytest.approx(400 * 50 / 30)


# -- decode ------------------------------------------------------------------------------------------------------------


def test_measured_batches_are_reproduced() -> None:
    usage, context = np.asarray(DECODE_SWEEP.kv_usage), np.asarray(DECODE_SWEEP.context_tokens)
    assert DECODE.itl_ms(usage, context) == pytest.approx(DECODE_SWEEP.itl_ms)
    assert DECODE.tokens_per_s_per_gpu(usage, context) == pytest.approx(DECODE_SWEEP.tokens_per_s_per_gpu)


def test_the_time_per_token_is_linear_between_two_contexts() -> None:
    sweep = DecodeSweep(
        (0.0, 1.0, 0.0, 1.0), (100.0, 100.0, 200.0, 200.0), (10.0, 20.0, 30.0, 50.0), (100.0, 400.0, 50.0, 200.0), 1e3
    )
    surface = DecodeSurface(sweep)
    assert float(surface.itl_ms(num(0.5), num(150))) == pytest.approx((15 + 40) / 2)
    assert float(surface.tokens_per_s_per_gpu(num(1.0), num(150))) == pytest.approx(1 / ((1 / 400 + 1 / 200) / 2))
    assert float(surface.itl_ms(num(2.0), num(50))) == 20.0
    assert float(surface.itl_ms(num(-1.0), num(500))) == 30.0


def test_contexts_outside_the_sweep_are_never_faster() -> None:
    longest = float(DECODE.contexts[-1])
    rate = DECODE.tokens_per_s_per_gpu
    assert float(rate(num(0.5), num(2 * longest))) == pytest.approx(float(rate(num(0.5), num(longest))) / 2)
    assert float(rate(num(0.5), num(1))) == float(rate(num(0.5), num(DECODE.contexts[0])))
    at_longest, beyond = (DECODE.find_best_throughput_per_gpu(30.0, length) for length in (longest, 2 * longest))
    assert at_longest is not None
    assert beyond is not None
    assert beyond.tokens_per_s_per_gpu == pytest.approx(at_longest.tokens_per_s_per_gpu / 2)


@given(st.floats(1, 100), st.floats(1, 100), st.floats(1, 50_000))
def test_the_best_throughput_meets_the_objective_and_grows_with_it(one: float, other: float, context: float) -> None:
    for model in (DECODE, LINEAR):
        tight, loose = (model.find_best_throughput_per_gpu(itl, context) for itl in sorted((one, other)))
        if tight is None:
            continue
        assert loose is not None
        assert 0.0 < tight.tokens_per_s_per_gpu <= loose.tokens_per_s_per_gpu * (1 + 1e-12)
        assert tight.itl_ms <= min(one, other) * (1 + 1e-9)
        assert 0.0 <= tight.kv_usage <= 1.0
        shown = float(model.itl_ms(num(tight.kv_usage), num(context)))
        assert shown == pytest.approx(tight.itl_ms, rel=1e-6)


@given(st.floats(5, 100), st.floats(1, 50_000), st.floats(1, 50_000))
def test_a_longer_context_never_increases_linear_throughput(itl: float, one: float, other: float) -> None:
    short, long = (LINEAR.find_best_throughput_per_gpu(itl, context) for context in sorted((one, other)))
    assert (short is None) == (long is None)
    if short and long:
        assert short.tokens_per_s_per_gpu >= long.tokens_per_s_per_gpu * (1 - 1e-12)


@pytest.mark.parametrize("itl", [0.0, -1.0, 4.0, float("nan")])
def test_an_objective_that_no_batch_meets_is_infeasible(itl: float) -> None:
    assert DECODE.find_best_throughput_per_gpu(itl, 3_000.0) is None
    assert LINEAR.find_best_throughput_per_gpu(itl, 3_000.0) is None


@given(st.floats(1, 30_000))
def test_the_lowest_itl_is_feasible_and_nothing_below(context: float) -> None:
    for model in (DECODE, LINEAR):
        assert model.find_best_throughput_per_gpu(model.itl_min_ms, 1.0) is not None
        assert model.find_best_throughput_per_gpu(model.itl_min_ms * 0.999, context) is None


def test_the_best_throughput_of_a_linear_engine_computed_by_hand() -> None:
    best = LINEAR.find_best_throughput_per_gpu(30.0, 1_000.0)  # 10 + 0.5 * 40
    assert best is not None
    assert (best.itl_ms, best.kv_usage) == pytest.approx((30.0, 0.4))
    assert best.tokens_per_s_per_gpu == pytest.approx(40 / 0.030)
    full = LINEAR.find_best_throughput_per_gpu(1_000.0, 1_000.0)
    assert full is not None
    assert full.itl_ms == 10.0 + 0.5 * 64, "limited by the batch"
    filled = LINEAR.find_best_throughput_per_gpu(1_000.0, 10_000.0)
    assert filled is not None
    assert filled.itl_ms == 10.0 + 0.5 * 10, "limited by the cache"
    assert LINEAR.find_best_throughput_per_gpu(1_000.0, 200_000.0) is None, "a context that does not fit"
    flat = LinearDecode(LinearTimes(10.0, 0.0, 0.0, 0.1), 1e5, 64.0, gpus=2)
    best = flat.find_best_throughput_per_gpu(10.0, 100.0)
    assert best is not None
    assert best.tokens_per_s_per_gpu == pytest.approx(64 / 0.010 / 2)


def test_a_linear_engine_computes_prompts_one_after_the_other() -> None:
    prefill = LinearPrefill(LINEAR.times, gpus=2)
    assert float(prefill.ttft_ms(num(1_000))) == pytest.approx(120.0)
    assert float(prefill.tokens_per_s_per_gpu(num(1_000))) == pytest.approx(1_000 / 0.120 / 2)


# -- as data -----------------------------------------------------------------------------------------------------------


def test_a_decoded_sweep_shares_the_cached_curve() -> None:
    for sweep in (PREFILL_SWEEP, DECODE_SWEEP):
        again = msgspec.json.decode(msgspec.json.encode(sweep), type=type(sweep))
        assert again == sweep
        assert hash(again) == hash(sweep)
    assert prefill_curve(PREFILL_SWEEP) is prefill_curve(msgspec.structs.replace(PREFILL_SWEEP))
    assert decode_surface(DECODE_SWEEP) is decode_surface(msgspec.structs.replace(DECODE_SWEEP))


def test_points_of_a_context_may_be_in_any_order() -> None:
    mixed = DecodeSweep(
        (0.1, 0.2, 0.9, 0.8), (100.0, 50.0, 100.0, 50.0), (1.0, 2.0, 3.0, 4.0), (1.0, 2.0, 3.0, 4.0), 1e3
    )
    assert mixed.rows() == {50.0: [1, 3], 100.0: [0, 2]}


def test_one_context_is_enough_for_a_surface() -> None:
    surface = DecodeSurface(DecodeSweep((0.0, 1.0), (100.0, 100.0), (10.0, 20.0), (100.0, 200.0), 1e3))
    best = surface.find_best_throughput_per_gpu(15.0, 200.0)
    assert best is not None
    assert (best.itl_ms, best.tokens_per_s_per_gpu) == pytest.approx((15.0, 75.0))


def test_an_invalid_sweep_in_a_journal_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match=r"point 2 of key 'prefill_isl' is 100.0 after 100.0"):
        msgspec.convert(
            {"prefill_isl": [100, 100], "prefill_ttft": [1, 2], "prefill_thpt_per_gpu": [1, 2]},
            PrefillSweep,
            strict=True,
        )
