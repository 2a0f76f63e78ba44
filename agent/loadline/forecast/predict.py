"""The one door to all predictors: what is not known, what is too little and what failed is dealt with here."""

from typing import Final

import numpy as np

from loadline.core.vocabulary.forecasts import Fallback, Forecast, ForecastQuery, PredictorName, Series
from loadline.forecast.arima import arima
from loadline.forecast.auto import choose_predictor
from loadline.forecast.base import (
    Prediction,
    PredictionRefused,
    PredictionTask,
    Predictor,
    Values,
    check_prediction,
    is_flat,
)
from loadline.forecast.constant import constant
from loadline.forecast.kalman import kalman
from loadline.forecast.prophet import prophet
from loadline.forecast.seasonal import seasonal

PREDICTORS: Final[dict[PredictorName, Predictor]] = {
    "constant": constant,
    "kalman": kalman,
    "arima": arima,
    "prophet": prophet,
    "seasonal": seasonal,
}

# More unknown intervals than this at the end, and the past tells nothing of the future: a day of five minutes.
GAP_MAX: Final = 288
_DETAIL_MAX: Final = 200


def forecast(question: ForecastQuery) -> Forecast | None:
    """Forecast a series; None where nothing is known of it, or nothing of its last 288 intervals.

    It raises nothing, whatever a predictor does: the last value stands in for a forecast that failed, with the reason.
    Unknown intervals at the end are forecast too, and left out of the answer. It takes as long as the predictor does.
    """
    history, gap = trim_unknown(question.series)
    if not history.size or gap > GAP_MAX:
        return None
    series, knobs = question.series, question.knobs
    last_index = series.end_ms // series.interval_ms - 1 - gap
    task = PredictionTask(question.horizon + gap, series.interval_ms, last_index, knobs)
    name: PredictorName
    if knobs.predictor == "auto":
        name = choose_predictor(history, task, lambda name, values, task: _attempt(name, values, task)[0])
    else:
        name = knobs.predictor
    band, fallback, detail = _attempt(name, history, task)
    mean, upper = band.mean[gap:].tolist(), band.upper[gap:].tolist()
    return Forecast(tuple(mean), tuple(upper), "constant" if fallback else name, fallback, detail)


def last_value(question: ForecastQuery, fallback: Fallback, detail: str = "") -> Forecast | None:
    """The forecast that stands in for one that could not be had, in some microseconds."""
    history, gap = trim_unknown(question.series)
    if not history.size or gap > GAP_MAX:
        return None
    band = constant(history, PredictionTask(question.horizon + gap, question.series.interval_ms, 0, question.knobs))
    mean, upper = band.mean[gap:].tolist(), band.upper[gap:].tolist()
    return Forecast(tuple(mean), tuple(upper), "constant", fallback, detail)


def trim_unknown(series: Series) -> tuple[Values, int]:
    """The values from the first to the last that is known, and how many follow that are not.

    What is no number, infinite or negative is not known.
    """
    values = np.array(series.values, dtype=np.float64)
    values[~(np.isfinite(values) & (values >= 0.0))] = np.nan
    at = np.flatnonzero(np.isfinite(values))
    if not at.size:
        return values[:0], 0
    return values[at[0] : at[-1] + 1], int(values.size - 1 - at[-1])


def _attempt(name: PredictorName, history: Values, task: PredictionTask) -> tuple[Prediction, Fallback, str]:
    """What a predictor answers, or the last value with the reason."""
    fallback: Fallback = ""
    detail = ""
    if is_flat(history):
        fallback = "flat"
    elif np.count_nonzero(np.isfinite(history)) < task.knobs.min_points:
        fallback = "points"
    else:
        try:
            return check_prediction(_predicted(name, history, task), history), "", ""
        except PredictionRefused as refused:
            fallback = refused.fallback
        except Exception as error:  # noqa: BLE001 - fits of three libraries raise whatever they like
            fallback, detail = "failed", f"{type(error).__name__}: {error}"[:_DETAIL_MAX]
    return constant(history, task), fallback, detail


def _predicted(name: PredictorName, history: Values, task: PredictionTask) -> Prediction:
    """What a predictor answers, of logarithms where that is asked for: what it says of those is judged by the load."""
    if not task.knobs.log1p:
        return PREDICTORS[name](history, task)
    band = PREDICTORS[name](np.log1p(history), task)
    with np.errstate(over="ignore"):  # infinite is refused
        return Prediction(np.expm1(band.mean), np.expm1(band.upper))
