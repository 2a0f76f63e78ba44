"""Fallbacks of failed predictors, and the choice between predictors."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final, get_args

import msgspec
import numpy as np
import pytest

from loadline.core.vocabulary.forecasts import (
    AnyPredictor,
    ArimaKnobs,
    AutoKnobs,
    Fallback,
    ForecastKnobs,
    ForecastQuery,
    PredictorName,
    Series,
)
from loadline.forecast import ScoringTime, arima, auto, available, forecast, last_value, packages, predict
from loadline.forecast.base import Prediction, PredictionTask, Predictor, Values

DOCUMENT: Final = (Path(__file__).parents[3] / "docs" / "explanation" / "forecasting.md").read_text("utf-8")
RISING: Final = tuple(float(value) for value in range(10, 30))


@pytest.fixture(autouse=True)
def _no_kept_losses() -> Iterator[None]:
    """Forget the losses of predictors that tests replace."""
    auto._cell.cache_clear()
    yield
    auto._cell.cache_clear()


def query(**knobs: object) -> ForecastQuery:
    return ForecastQuery(Series(RISING, 1_000, 20_000), 3, msgspec.convert(knobs, ForecastKnobs))


def answering(mean: float, upper: float) -> Predictor:
    return lambda _history, task: Prediction(np.full(task.steps, mean), np.full(task.steps, upper))


@pytest.mark.parametrize(
    ("mean", "upper", "fallback"),
    [
        (float("nan"), 1.0, "not_finite"),
        (1.0, float("inf"), "not_finite"),
        (1.0, 291.0, "absurd"),
        (291.0, 0.0, "absurd"),
    ],
)
def test_an_implausible_prediction_is_replaced_by_the_last_value(
    monkeypatch: pytest.MonkeyPatch, mean: float, upper: float, fallback: Fallback
) -> None:
    monkeypatch.setitem(predict.PREDICTORS, "kalman", answering(mean, upper))
    answer = forecast(query(predictor="kalman"))
    assert answer == last_value(query(), fallback)
    assert answer is not None
    assert answer.mean == (29.0,) * 3


@pytest.mark.parametrize(
    ("mean", "upper", "fallback"),
    [(5.0, 5.6, ""), (5.0, 5.7, "absurd"), (5.7, 5.0, "absurd"), (1.0, 800.0, "not_finite")],
)
def test_a_prediction_of_logarithms_is_checked_in_the_unit_of_the_load(
    monkeypatch: pytest.MonkeyPatch, mean: float, upper: float, fallback: Fallback
) -> None:
    """The limit is ten times the highest value, 290, whose logarithm is 5.67; ten times the logarithm of 29 is e^34."""
    monkeypatch.setitem(predict.PREDICTORS, "kalman", answering(mean, upper))
    answer = forecast(query(predictor="kalman", log1p=True))
    assert answer is not None
    assert answer.fallback == fallback
    if fallback:
        assert answer == last_value(query(), fallback)
    else:
        assert answer.mean == pytest.approx((np.expm1(5.0),) * 3)


def test_negative_and_crossed_predictions_are_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(predict.PREDICTORS, "kalman", answering(-3.0, -4.0))
    answer = forecast(query(predictor="kalman"))
    assert answer is not None
    assert (answer.mean, answer.upper, answer.predictor) == ((0.0,) * 3, (0.0,) * 3, "kalman")


def test_a_failure_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_history: Values, _task: PredictionTask) -> Prediction:
        raise ZeroDivisionError("of the fit")

    monkeypatch.setitem(predict.PREDICTORS, "arima", fails)
    answer = forecast(query(predictor="arima"))
    assert answer is not None
    assert (answer.predictor, answer.fallback, answer.detail) == ("constant", "failed", "ZeroDivisionError: of the fit")


def test_the_upper_constant_forecast_follows_past_rises() -> None:
    answer = forecast(query(predictor="constant"))
    assert answer is not None
    assert answer.mean == (29.0,) * 3
    assert answer.upper == (30.0, 31.0, 32.0)


def test_idle_and_unknown_intervals_differ() -> None:
    idle = forecast(ForecastQuery(Series((*RISING, 0.0, 0.0), 1_000), 1, ForecastKnobs("constant")))
    unknown = forecast(ForecastQuery(Series((*RISING, None, None), 1_000), 1, ForecastKnobs("constant")))
    assert idle is not None
    assert unknown is not None
    assert (idle.mean, unknown.mean) == ((0.0,), (29.0,))


@pytest.mark.parametrize(("unknown", "is_none"), [(predict.GAP_MAX, False), (predict.GAP_MAX + 1, True)])
def test_a_series_without_recent_values_has_no_forecast(unknown: int, *, is_none: bool) -> None:
    silent = ForecastQuery(Series((*RISING, *[None] * unknown), 1_000), 1, ForecastKnobs("constant"))
    assert (forecast(silent) is None) == is_none
    assert (last_value(silent, "away") is None) == is_none


def test_auto_chooses_the_predictor_with_the_lowest_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    climb = query(predictor="auto", auto={"candidates": ["constant", "kalman"]})
    answer = forecast(climb)
    assert answer is not None
    assert answer.predictor == "kalman"
    monkeypatch.setitem(predict.PREDICTORS, "kalman", answering(0.0, 0.0))
    auto._cell.cache_clear()
    answer = forecast(climb)
    assert answer is not None
    assert answer.predictor == "constant"


def test_auto_prefers_the_first_of_equal_predictors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(predict.PREDICTORS, "kalman", predict.PREDICTORS["constant"])
    for candidates in (["constant", "kalman"], ["kalman", "constant"]):
        auto._cell.cache_clear()
        answer = forecast(query(predictor="auto", auto={"candidates": candidates}))
        assert answer is not None
        assert answer.predictor == candidates[0]


def test_an_order_is_kept_until_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    chosen = arima._choose_order
    chosen.cache_clear()  # other tests have filled the cache

    def counted(values: bytes) -> object:
        seen.append(len(values) // 8)
        return chosen(values)

    monkeypatch.setattr(arima, "_choose_order", counted)
    values = tuple(100.0 + value * 37 % 11 for value in range(60))
    knobs = ForecastKnobs("arima", arima=ArimaKnobs(points=24, order_intervals=12))
    for end in range(48, 61):
        answer = forecast(ForecastQuery(Series(values[:end], 1_000, end * 1_000), 2, knobs))
        assert answer is not None
        assert answer.fallback == ""
    assert seen == [24] * 13  # of the newest points only
    assert chosen.cache_info().misses == 2  # at 48 and at 60 points


def test_auto_scores_slow_predictors_once_at_each_past_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The past times of a forecast are those of the one before, and a new one now and then."""
    fits: list[int] = []

    def fits_slowly(history: Values, task: PredictionTask) -> Prediction:
        fits.append(history.size)
        return Prediction(np.full(task.steps, history[-1]), np.full(task.steps, history[-1]))

    monkeypatch.setitem(predict.PREDICTORS, "arima", fits_slowly)
    values = tuple(100.0 + at * 31 % 17 for at in range(160))
    for size in range(100, 160):
        forecast(ForecastQuery(Series(values[:size], 1_000, size * 1_000), 3, ForecastKnobs()))
    assert len(fits) == len(set(fits)) <= 24 + 60 / 2
    assert max(fits) > 150  # up to the newest


def test_past_times_are_spread_over_the_newest_half() -> None:
    values = np.arange(1.0, 1_001.0)
    sizes = auto._moments(values, PredictionTask(5, 60_000, 4_321, ForecastKnobs()))
    assert 12 <= len(sizes) <= 24
    [stride] = set(np.diff(sizes))
    assert min(sizes) < 500 + stride
    assert 995 - stride < max(sizes) <= 995


@pytest.mark.parametrize("steps", [101, 288, 576, 2_401])
def test_the_longest_forecasts_are_scored_at_fewer_past_times(steps: int) -> None:
    """Otherwise every forecast would take longer than its deadline, and those of all models would wait for it."""
    knobs = ForecastKnobs(auto=AutoKnobs(origins=200))
    sizes = auto._moments(np.arange(10.0 * steps), PredictionTask(steps, 60_000, 4_321, knobs))
    assert 600 <= len(sizes) * steps <= max(2_400, 2 * steps)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def pass_s(self, seconds: float) -> float:
        self.now_s += seconds
        return seconds


def test_scoring_takes_a_quarter_of_the_time_and_four_seconds_at_once() -> None:
    clock = Clock()
    time = ScoringTime(clock)
    assert [time.run(lambda: clock.pass_s(2.0)) for _ in range(4)] == [2.0, 2.0, None, None]
    clock.pass_s(4.0)
    assert time.run(lambda: clock.pass_s(2.0)) == 2.0  # of the one second that has accrued
    clock.pass_s(3.9)
    assert time.run(lambda: 0.0) is None
    clock.pass_s(3_600.0)
    assert [time.run(lambda: clock.pass_s(2.0)) for _ in range(4)] == [2.0, 2.0, None, None]


def test_a_slow_candidate_is_chosen_after_it_is_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its scores are kept while the time for them accrues, and forecasts by the others do not wait."""
    clock = Clock()

    def fits_slowly(history: Values, task: PredictionTask) -> Prediction:
        clock.pass_s(1.0)
        rise = history[-1] + np.arange(1.0, task.steps + 1)
        return Prediction(rise, rise)

    monkeypatch.setitem(predict.PREDICTORS, "arima", fits_slowly)
    time = ScoringTime(clock)
    asked = query(predictor="auto", auto={"candidates": ["constant", "arima"]})
    chosen = []
    for _ in range(4):
        began_s = clock()
        answer = forecast(asked, time)
        assert answer is not None
        assert clock() - began_s <= 5.0 + (answer.predictor == "arima")
        chosen.append(answer.predictor)
        clock.pass_s(60.0)
    assert chosen == ["constant", "arima", "arima", "arima"]


@pytest.mark.parametrize("predictor", ["kalman", "arima", "prophet"])
def test_a_missing_package_is_found(monkeypatch: pytest.MonkeyPatch, predictor: str) -> None:
    monkeypatch.setattr(packages, "find_spec", lambda _name: None)
    assert not available(msgspec.convert(predictor, PredictorName))
    assert available("seasonal")
    for knobs in (query(predictor=predictor), query(predictor="auto", auto={"candidates": [predictor]})):
        assert packages.configured_predictors(knobs.knobs)[1] == (predictor,)


def test_the_document_names_every_predictor_and_every_fallback() -> None:
    named = set(re.findall(r"^\| `(\w+)` \|", DOCUMENT, re.MULTILINE))
    names = {name for part in get_args(AnyPredictor) for name in (get_args(part) or (part,))}
    assert named >= names | set(get_args(Fallback)) - {""}


def test_the_documents_example_runs() -> None:
    [text] = re.findall(r"^```python\n(.*?)^```", DOCUMENT, re.DOTALL | re.MULTILINE)
    exec(compile(text, "forecasting.md", "exec"), {})  # noqa: S102 - our own document
