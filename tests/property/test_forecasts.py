"""Properties of every predictor for any series."""

import math
import os
import subprocess
import sys
from itertools import pairwise
from typing import Final, get_args

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from loadline.core.vocabulary.forecasts import (
    AnyPredictor,
    AutoKnobs,
    Forecast,
    ForecastKnobs,
    ForecastQuery,
    PredictorName,
    SeasonalKnobs,
    Series,
)
from loadline.forecast import forecast
from loadline.forecast.base import GROWTH_MAX

# A fit of the others takes from a tenth of a second to some seconds; auto chooses between the quick ones.
QUICK: Final[tuple[AnyPredictor, ...]] = ("constant", "kalman", "seasonal", "auto")
ALL: Final[tuple[AnyPredictor, ...]] = (*get_args(PredictorName), "auto")
INTERVAL_MS: Final = 600_000

# Realistic counts and lengths, with idle (0) and unknown (None) intervals.
VALUES = st.lists(st.none() | st.just(0.0) | st.floats(0.0, 1e6) | st.integers(0, 50).map(float), max_size=80)
quick = pytest.mark.parametrize("predictor", QUICK)
every = pytest.mark.parametrize("predictor", ALL)


def forecast_of(
    predictor: AnyPredictor, values: list[float | None], horizon: int = 4, season_s: int = 6_000, *, log1p: bool = False
) -> Forecast | None:
    """Forecast a series with seasons of ten intervals, so that short series have several."""
    auto = AutoKnobs(("seasonal", "constant", "kalman"))
    knobs = ForecastKnobs(predictor, log1p=log1p, seasonal=SeasonalKnobs(season_s=season_s), auto=auto)
    return forecast(ForecastQuery(Series(tuple(values), INTERVAL_MS, 1_000 * INTERVAL_MS), horizon, knobs))


def wave(count: int = 60) -> list[float | None]:
    """Return seasons of ten intervals with a little pseudo-random noise."""
    return [100.0 + 40.0 * math.sin(at * math.tau / 10) + (at * 7919 % 13) for at in range(count)]


@quick
@settings(max_examples=60, deadline=None)
@given(values=VALUES, horizon=st.integers(1, 24), log1p=st.booleans())
def test_a_forecast_is_finite_bounded_not_negative_and_as_long_as_the_horizon(
    predictor: AnyPredictor, values: list[float | None], horizon: int, *, log1p: bool
) -> None:
    answer = forecast_of(predictor, values, horizon, log1p=log1p)
    known = [value for value in values if value is not None]
    if not known:
        assert answer is None
        return
    assert answer is not None
    assert len(answer.mean) == len(answer.upper) == horizon
    for mean, upper in zip(answer.mean, answer.upper, strict=True):
        assert 0.0 <= mean <= upper < math.inf
        if not log1p:
            assert upper <= GROWTH_MAX * max(known)


@quick
@settings(max_examples=40, deadline=None)
@given(values=VALUES, power=st.integers(-5, 5), horizon=st.integers(1, 6))
def test_a_forecast_is_in_the_unit_of_the_series(
    predictor: AnyPredictor, values: list[float | None], power: int, horizon: int
) -> None:
    factor = 4.0**power  # its square root is exact too: nothing but the unit changes
    original = forecast_of(predictor, [value and round(value) * 1.0 for value in values], horizon)
    scaled_forecast = forecast_of(predictor, [value and round(value) * factor for value in values], horizon)
    if original is None or scaled_forecast is None:
        assert original is scaled_forecast
        return
    assert scaled_forecast.mean == pytest.approx([value * factor for value in original.mean])
    assert scaled_forecast.upper == pytest.approx([value * factor for value in original.upper])


@quick
@settings(max_examples=40, deadline=None)
@given(values=VALUES, gap=st.integers(1, 10), horizon=st.integers(1, 6))
def test_a_forecast_starts_after_unknown_intervals_at_the_end(
    predictor: AnyPredictor, values: list[float | None], gap: int, horizon: int
) -> None:
    known = [*values, 3.0]  # the last one is known
    late = forecast_of(predictor, [*known, *[None] * gap], horizon)
    full = forecast_of(predictor, known, gap + horizon)
    assert full is not None
    assert late == replace(full, mean=full.mean[gap:], upper=full.upper[gap:])


@every
@pytest.mark.parametrize("value", [0.0, 1.0, 50.0, 0.1, 1e9])
def test_a_constant_load_is_forecast_unchanged(predictor: AnyPredictor, value: float) -> None:
    answer = forecast_of(predictor, [value, None] * 20)
    assert answer is not None
    assert answer.mean == answer.upper == (value,) * 4
    assert answer.fallback == "flat"


@every
def test_a_series_of_unknown_values_has_no_forecast(predictor: AnyPredictor) -> None:
    assert forecast_of(predictor, []) is None
    assert forecast_of(predictor, [None] * 50) is None
    assert forecast_of(predictor, [float("nan"), float("inf"), -1.0]) is None


@every
def test_values_that_are_not_finite_are_unknown(predictor: AnyPredictor) -> None:
    clean = wave()
    clean[7] = clean[20] = clean[21] = None
    spoilt = list(clean)
    spoilt[7], spoilt[20], spoilt[21] = float("nan"), -5.0, float("inf")
    answer = forecast_of(predictor, spoilt)
    assert answer is not None
    assert answer.fallback == ""
    assert answer == forecast_of(predictor, clean)


@every
def test_one_unknown_interval_changes_little(predictor: AnyPredictor) -> None:
    full = forecast_of(predictor, wave())
    holed = forecast_of(predictor, [None if at == 30 else value for at, value in enumerate(wave())])
    assert full is not None
    assert holed is not None
    assert holed.mean == pytest.approx(full.mean, rel=0.2)


@every
def test_a_linear_increase_continues(predictor: AnyPredictor) -> None:
    """A predictor that takes seconds for intervals would not change its forecast."""
    answer = forecast_of(predictor, [1_000.0 + 10.0 * at + (at * 7919 % 5) for at in range(40)], season_s=86_400)
    assert answer is not None
    assert answer.fallback == ""
    truth = [1_402.0 + 10.0 * step for step in range(4)]
    if predictor == "constant":
        assert len(set(answer.mean)) == 1
        assert all(one < next_one for one, next_one in pairwise(answer.upper))
    else:
        assert answer.mean == pytest.approx(truth, abs=8.0)


@every
def test_a_short_series_is_forecast_by_its_last_value(predictor: AnyPredictor) -> None:
    answer = forecast_of(predictor, [10.0, 20.0, None, 30.0, 25.0])
    assert answer is not None
    assert (answer.predictor, answer.fallback) == ("constant", "points")
    assert answer.mean == (25.0,) * 4


SCRIPT: Final = """
import sys
import msgspec
from tests.property.test_forecasts import ALL, forecast_of, wave
print(msgspec.json.encode([forecast_of(predictor, wave()) for predictor in ALL]).decode())
"""


def test_a_forecast_is_reproducible_in_every_process() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=os.environ | {"PYTHONHASHSEED": seed, "OPENBLAS_NUM_THREADS": "1"},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
