"""Length distributions from histograms, and the capacity computed over them."""

from math import nan
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadline.core.engines.latency_models import PrefillCurve
from loadline.core.engines.lengths import (
    computed_isl,
    constant_length,
    exponential_length,
    lengths_from_histogram,
    mean_decode_context,
    mixed_prefill_throughput,
)
from loadline.core.engines.linear import LinearPrefill, LinearTimes
from loadline.core.vocabulary.samples import Histogram
from loadline.profile_files import read_prefill

DATA = Path(__file__).parents[2] / "vectors" / "data"
MEASURED = PrefillCurve(read_prefill(DATA / "dynamo_h200_llama3.1-8b-fp8_tp1_prefill.npz"))
LINEAR = LinearPrefill(LinearTimes(10.0, 1.0, 20.0, 0.1))
HALF = Histogram((100.0, 300.0), (5, 5, 0))


def test_requests_are_in_the_middle_of_their_bin() -> None:
    lengths = lengths_from_histogram(HALF)
    assert lengths is not None
    assert (lengths.tokens, lengths.shares) == ((50.0, 200.0), (0.5, 0.5))
    assert (lengths.mean, lengths.mean_square) == (125.0, 21_250.0)


def test_requests_above_the_last_bound_are_longer() -> None:
    lengths = lengths_from_histogram(Histogram((100.0,), (0, 7)))
    assert lengths is not None
    assert lengths.tokens == (150.0,)


def test_lengths_of_which_only_the_mean_is_known_vary_nearly_as_much_as_it() -> None:
    lengths = exponential_length(700.0)
    assert lengths.mean == pytest.approx(700.0)
    assert lengths.variability == pytest.approx(1.0, abs=0.15), "an exponential distribution has 1"
    assert lengths.tokens == tuple(sorted(lengths.tokens))


def test_lengths_are_scaled_to_a_known_mean() -> None:
    lengths = lengths_from_histogram(HALF, mean_tokens=250.0)
    assert lengths is not None
    assert lengths.mean == 250.0
    assert lengths.tokens == (100.0, 400.0)


@pytest.mark.parametrize(
    "histogram",
    [
        Histogram((), ()),
        Histogram((), (3,)),
        Histogram((100.0,), (0, 0)),
        Histogram((100.0,), (1,)),
        Histogram((100.0,), (1, 2, 3)),
        Histogram((100.0, 100.0), (1, 1, 1)),
        Histogram((0.0, 100.0), (1, 1, 1)),
        Histogram((200.0, 100.0), (1, 1, 1)),
        Histogram((5e-324,), (1, 0)),
        Histogram((5e-324, 1e-320), (1, 1, 1)),
    ],
)
def test_an_invalid_histogram_has_no_distribution(histogram: Histogram) -> None:
    assert lengths_from_histogram(histogram) is None
    assert lengths_from_histogram(histogram, 100.0) is None


@given(st.floats(1, 100_000))
def test_equal_lengths_have_the_throughput_of_the_model(tokens: float) -> None:
    one = constant_length(tokens)
    for model in (MEASURED, LINEAR):
        assert mixed_prefill_throughput(model, one) == pytest.approx(
            float(model.tokens_per_s_per_gpu(np.asarray(tokens)))
        )


def test_the_throughput_of_a_mix_is_its_tokens_by_their_time() -> None:
    mix = lengths_from_histogram(Histogram((100.0, 1_900.0), (5, 5, 0)))  # 50 and 1,000 tokens: 25 and 120 ms
    assert mix is not None
    assert mixed_prefill_throughput(LINEAR, mix) == pytest.approx((50 + 1_000) / 0.145)


def test_a_mix_without_tokens_has_no_throughput() -> None:
    assert mixed_prefill_throughput(LINEAR, constant_length(0.0)) == 0.0


def test_long_outputs_weigh_by_their_time_in_the_batch() -> None:
    outputs = lengths_from_histogram(Histogram((20.0, 380.0), (5, 5, 0)))  # 10 and 200 tokens
    assert outputs is not None
    # In the batch a token at a time: 10 steps of contexts 0..10 and 200 of 0..200.
    assert mean_decode_context(constant_length(1_000.0), outputs) == pytest.approx(1_000 + (10 * 5 + 200 * 100) / 210)
    assert mean_decode_context(constant_length(1_000.0), constant_length(100.0)) == 1_050.0
    assert mean_decode_context(constant_length(1_000.0), constant_length(0.0)) == 1_000.0


@pytest.mark.parametrize(
    ("rate", "left"), [(0.0, 1_000), (0.5, 500), (1.0, 50), (2.0, 50), (-1.0, 1_000), (nan, 1_000)]
)
def test_tokens_in_the_prefix_cache_are_not_computed(rate: float, left: float) -> None:
    assert computed_isl(1_000.0, rate) == pytest.approx(left)
