"""Interface of predictors, and checks of their answers."""

from collections.abc import Callable

import numpy as np
from msgspec import Struct

from loadline.core.engines.arrays import FloatArray
from loadline.core.vocabulary.forecasts import Fallback, ForecastKnobs

Values = FloatArray

# A forecast above this multiple of the highest known value is an error of the model.
GROWTH_MAX = 10.0
# Relative range below which a series is constant up to rounding.
_FLAT = 1e-9
_RESIDUALS = 288  # a day at intervals of five minutes; fewer do not determine a quantile of 0.99


class PredictionTask(Struct, frozen=True):
    """Parameters of a prediction, without the values."""

    steps: int
    """Number of intervals to predict after the last value."""
    interval_ms: int
    last_index: int
    """Index of the last value's interval since the epoch, which identifies an interval across requests."""
    knobs: ForecastKnobs


class Prediction(Struct, frozen=True):
    """Mean and upper quantile of each step."""

    mean: Values
    upper: Values


Predictor = Callable[[Values, PredictionTask], Prediction]
"""Takes at least one value, oldest first; unknown values are NaN, but the first and the last are known."""


class PredictionRefused(Exception):
    """Error of a predictor whose answer cannot be used.

    Args:
        fallback: Reason to report in the forecast.
    """

    def __init__(self, fallback: Fallback) -> None:
        super().__init__(fallback)
        self.fallback = fallback


def check_prediction(prediction: Prediction, history: Values) -> Prediction:
    """Clip a prediction to non-negative values with the upper quantile not below the mean.

    Raises:
        PredictionRefused: A value is not finite, or more than ten times the highest known value.
    """
    if not (np.isfinite(prediction.mean).all() and np.isfinite(prediction.upper).all()):
        raise PredictionRefused("not_finite")
    mean = np.maximum(prediction.mean, 0.0)
    upper = np.maximum(prediction.upper, mean)
    if upper.max() > GROWTH_MAX * np.nanmax(history):
        raise PredictionRefused("absurd")
    return Prediction(mean, upper)


def is_flat(history: Values) -> bool:
    """Return True if all known values are equal, up to rounding."""
    highest = float(np.nanmax(history))
    return highest - float(np.nanmin(history)) <= _FLAT * highest


def interpolate_gaps(history: Values) -> Values:
    """Fill unknown values by linear interpolation."""
    known = np.isfinite(history)
    if known.all():
        return history
    at = np.arange(history.size)
    return np.interp(at, at[known], history[known])


def error_quantile(errors: Values, quantile: float) -> float:
    """Return the quantile of the newest errors (actual minus forecast), at least 0."""
    known = errors[np.isfinite(errors)][-_RESIDUALS:]
    return max(0.0, float(np.quantile(known, quantile))) if known.size else 0.0
