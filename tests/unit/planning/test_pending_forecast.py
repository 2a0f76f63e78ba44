"""Pending forecasts: one request at a time, and only its answer counts."""

import pytest

from loadline.core.planning.demand.pending_forecast import PendingForecast
from loadline.core.vocabulary.events import ForecastFailed, ForecastFitted
from loadline.core.vocabulary.forecasts import Forecast, ForecastQuery, Series

MINUTE_MS = 60_000


def questions(end_ms: int) -> list[ForecastQuery]:
    return [ForecastQuery(Series((1.0,), MINUTE_MS, end_ms), 2)]


def fitted(request: int, mean: float) -> ForecastFitted:
    return ForecastFitted("m", request, [Forecast((mean,), (mean,), "constant")])


@pytest.mark.parametrize("late", [fitted(1, 9.0), ForecastFailed("m", 1), fitted(3, 9.0)])
def test_an_answer_to_another_request_leaves_the_pending_one(late: ForecastFitted | ForecastFailed) -> None:
    foresight = PendingForecast()
    foresight.request_forecasts(questions(MINUTE_MS))
    foresight.ingest_forecast(fitted(1, 5.0))
    foresight.is_unread = False
    foresight.request_forecasts(questions(2 * MINUTE_MS))
    foresight.ingest_forecast(late)
    assert (foresight.is_unread, foresight.begins_ms, foresight.notes) == (False, MINUTE_MS, [])
    assert foresight.forecasts == fitted(1, 5.0).forecasts
    foresight.ingest_forecast(fitted(2, 7.0))
    assert (foresight.is_unread, foresight.begins_ms) == (True, 2 * MINUTE_MS)
    assert foresight.forecasts == fitted(2, 7.0).forecasts


def test_a_repeated_answer_counts_once() -> None:
    foresight = PendingForecast()
    foresight.request_forecasts(questions(MINUTE_MS))
    foresight.ingest_forecast(fitted(1, 5.0))
    foresight.is_unread = False
    foresight.ingest_forecast(fitted(1, 9.0))
    assert (foresight.is_unread, foresight.forecasts) == (False, fitted(1, 5.0).forecasts)
