"""Answers of the predictors to Dynamo's cases."""

from typing import Any

import numpy as np

from loadline.core.vocabulary.forecasts import ForecastKnobs, ForecastQuery, Series
from loadline.forecast import available, forecast
from loadline.forecast.scores import work_error
from tests.vectors.answering import Answer, NotCovered, only

INTERVAL_MS = 180_000
START_MS = 1_704_067_200_000


def next_value(predictor: Any, series: list[float | None], min_points: int) -> float:
    if not available(predictor):
        raise NotCovered(f"{predictor} is not installed here")
    values = Series(tuple(series), INTERVAL_MS, START_MS + len(series) * INTERVAL_MS)
    answer = forecast(ForecastQuery(values, 1, ForecastKnobs(predictor=predictor, min_points=min_points)))
    return answer.mean[0] if answer else 0.0


def newest(given: dict[str, Any]) -> dict[str, Any]:
    only(given, "predictor", "series")
    return {"last": next_value(given["predictor"], given["series"], 5)}


def oldest(given: dict[str, Any]) -> dict[str, Any]:
    """Return the forecast after each value; version 1.0.1 did not wait for five points."""
    only(given, "predictor", "series", "every")
    ends = range(1 if given.get("every") else len(given["series"]), len(given["series"]) + 1)
    found = [next_value(given["predictor"], given["series"][:end], 1) for end in ends]
    return {"predictions": found, "last": found[-1]}


def loss(given: dict[str, Any]) -> float:
    """Return the original's score at one time, from forecast and actual requests, ISL and OSL."""
    only(given, "args")
    values = [np.array([value], dtype=np.float64) for value in given["args"]]
    return work_error(values[3:], values[:3])


ANSWERS: dict[str, Answer] = {"v3.predict": newest, "v1.predict": oldest, "predictors": loss}
