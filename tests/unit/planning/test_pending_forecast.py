"""Pending forecasts: one request at a time, and only its answer counts."""

import pytest

from loadline.core.planning.demand.pending_forecast import PendingForecast
from loadline.core.vocabulary.events import ForecastFailed, ForecastFitted
from loadline.core.vocabulary.forecasts import Forecast, ForecastQuery, Series
from loadline.core.vocabulary.reasons import ReasonCode

MINUTE_MS = 60_000


def queries(end_ms: int) -> list[ForecastQuery]:
    return [ForecastQuery(Series((1.0,), MINUTE_MS, end_ms), 2)]


def fitted(request: int, mean: float) -> ForecastFitted:
    return ForecastFitted("m", request, [Forecast((mean,), (mean,), "constant")])


@pytest.mark.parametrize("late", [fitted(1, 9.0), ForecastFailed("m", 1), fitted(3, 9.0)])
def test_an_answer_to_another_request_leaves_the_pending_one(late: ForecastFitted | ForecastFailed) -> None:
    forecast = PendingForecast()
    forecast.request_forecasts(queries(MINUTE_MS))
    forecast.ingest_forecast(fitted(1, 5.0))
    forecast.is_unread = False
    forecast.request_forecasts(queries(2 * MINUTE_MS))
    forecast.ingest_forecast(late)
    assert (forecast.is_unread, forecast.begins_ms, forecast.notes) == (False, MINUTE_MS, [])
    assert forecast.forecasts == fitted(1, 5.0).forecasts
    forecast.ingest_forecast(fitted(2, 7.0))
    assert (forecast.is_unread, forecast.begins_ms) == (True, 2 * MINUTE_MS)
    assert forecast.forecasts == fitted(2, 7.0).forecasts


def test_a_repeated_answer_counts_once() -> None:
    forecast = PendingForecast()
    forecast.request_forecasts(queries(MINUTE_MS))
    forecast.ingest_forecast(fitted(1, 5.0))
    forecast.is_unread = False
    forecast.ingest_forecast(fitted(1, 9.0))
    assert (forecast.is_unread, forecast.forecasts) == (False, fitted(1, 5.0).forecasts)


def test_the_first_failed_fit_of_the_three_series_is_the_reason() -> None:
    forecast = PendingForecast()
    forecast.request_forecasts(queries(MINUTE_MS))
    fine = Forecast((5.0,), (5.0,), "seasonal")
    late = Forecast((5.0,), (5.0,), "constant", "late", "no answer in time")
    forecast.ingest_forecast(ForecastFitted("m", 1, [fine, None, late]))
    assert [(note.code, note.detail) for note in forecast.notes] == [
        (ReasonCode.FORECAST_FALLBACK, "no answer in time")
    ]


def test_a_forecast_length_is_not_shorter_than_the_observed_ones() -> None:
    forecast = PendingForecast()
    forecast.request_forecasts(queries(MINUTE_MS))
    falling = Forecast((70.0, 4.0, 0.0), (90.0, 30.0, 20.0), "kalman")
    forecast.ingest_forecast(ForecastFitted("m", 1, [falling, falling, falling]))
    forecast.raise_lengths(0.0, 40.0)
    assert forecast.forecasts == [
        falling,
        falling,
        Forecast((70.0, 40.0, 40.0), (90.0, 40.0, 40.0), "kalman"),
    ], "requests may end, lengths may not; no ISL was observed"
    assert [note.sentence() for note in forecast.notes] == [
        "a mean length of 0 tokens is forecast; 40, half of the shortest one of the last day, are used: outputs"
    ]
