"""Entry point to all predictors; handles unknown values, short histories and failures."""

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
from loadline.forecast.scoring_time import ScoringTime
from loadline.forecast.seasonal import seasonal

PREDICTORS: Final[dict[PredictorName, Predictor]] = {
    "constant": constant,
    "kalman": kalman,
    "arima": arima,
    "prophet": prophet,
    "seasonal": seasonal,
}

# With more unknown intervals at the end, a day at five minutes each, the history does not predict the future.
GAP_MAX: Final = 288
_DETAIL_MAX: Final = 200


def forecast(query: ForecastQuery, scoring_time: ScoringTime | None = None) -> Forecast | None:
    """Forecast a series; return None if no value, or none of the last 288 intervals, is known.

    Never raises: the last value replaces a failed forecast, with the reason. Unknown intervals at the end are predicted
    too, and left out of the answer.

    Args:
        query: The series and the predictor.
        scoring_time: Limits the scoring of slow candidates of the predictor ``auto``; None: there is no time limit.
    """
    history, gap = trim_unknown(query.series)
    if not history.size or gap > GAP_MAX:
        return None
    series, knobs = query.series, query.knobs
    last_index = series.end_ms // series.interval_ms - 1 - gap
    task = PredictionTask(query.horizon + gap, series.interval_ms, last_index, knobs)
    name: PredictorName
    if knobs.predictor == "auto":
        name = choose_predictor(history, task, lambda *attempted: _attempt(*attempted)[0], scoring_time)
    else:
        name = knobs.predictor
    prediction, fallback, detail = _attempt(name, history, task)
    mean, upper = prediction.mean[gap:].tolist(), prediction.upper[gap:].tolist()
    return Forecast(tuple(mean), tuple(upper), "constant" if fallback else name, fallback, detail)


def last_value(query: ForecastQuery, fallback: Fallback, detail: str = "") -> Forecast | None:
    """Forecast the last value in place of a forecast that failed; takes 0.5 ms, and 0.1 ms for each interval."""
    history, gap = trim_unknown(query.series)
    if not history.size or gap > GAP_MAX:
        return None
    prediction = constant(history, PredictionTask(query.horizon + gap, query.series.interval_ms, 0, query.knobs))
    mean, upper = prediction.mean[gap:].tolist(), prediction.upper[gap:].tolist()
    return Forecast(tuple(mean), tuple(upper), "constant", fallback, detail)


def trim_unknown(series: Series) -> tuple[Values, int]:
    """Return the values from the first to the last known one, and the number of unknown ones after it.

    NaN, infinite and negative values count as unknown.
    """
    values = np.array(series.values, dtype=np.float64)
    values[~(np.isfinite(values) & (values >= 0.0))] = np.nan
    at = np.flatnonzero(np.isfinite(values))
    if not at.size:
        return values[:0], 0
    return values[at[0] : at[-1] + 1], int(values.size - 1 - at[-1])


def _attempt(name: PredictorName, history: Values, task: PredictionTask) -> tuple[Prediction, Fallback, str]:
    """Predict with one predictor; fall back to the last value with the reason."""
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
        except Exception as error:  # noqa: BLE001 - three libraries raise arbitrary exceptions
            fallback, detail = "failed", f"{type(error).__name__}: {error}"[:_DETAIL_MAX]
    return constant(history, task), fallback, detail


def _predicted(name: PredictorName, history: Values, task: PredictionTask) -> Prediction:
    """Predict, on logarithms of the values if ``log1p`` is set; the result is in the unit of the values."""
    if not task.knobs.log1p:
        return PREDICTORS[name](history, task)
    prediction = PREDICTORS[name](np.log1p(history), task)
    with np.errstate(over="ignore"):  # infinite values are refused later
        return Prediction(np.expm1(prediction.mean), np.expm1(prediction.upper))
