"""What a predictor is, and what is done with its answer before anybody believes it."""

from collections.abc import Callable

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from loadline.core.vocabulary.forecasts import Fallback, ForecastKnobs

Values = NDArray[np.float64]

# Load may grow by this factor over all that was ever seen; a forecast of more is an error of the model.
GROWTH_MAX = 10.0
# Relative; below it a series is constant but for the rounding of its floats.
_FLAT = 1e-9
_RESIDUALS = 288  # a day of five minutes: the newest errors say most, and fewer tell no quantile of 0.99


class PredictionTask(Struct, frozen=True):
    """What a predictor has to do, but for the values."""

    steps: int
    """How many intervals after the last value are wanted."""
    interval_ms: int
    last_index: int
    """Number of the last value's interval since the epoch: it tells the same interval in two questions."""
    knobs: ForecastKnobs


class Prediction(Struct, frozen=True):
    """A mean and an upper quantile for each step."""

    mean: Values
    upper: Values


Predictor = Callable[[Values, PredictionTask], Prediction]
"""Takes the known past: oldest first, the first and the last value known, NaN where one is not, at least one value."""


class PredictionRefused(Exception):
    """A predictor's answer cannot be used.

    Args:
        fallback: Why, as a forecast says it.
    """

    def __init__(self, fallback: Fallback) -> None:
        super().__init__(fallback)
        self.fallback = fallback


def check_prediction(band: Prediction, history: Values) -> Prediction:
    """The band, never negative and the upper never below the mean.

    Raises:
        Refused: A value is not finite, or absurd: more than ten times all that was ever seen.
    """
    if not (np.isfinite(band.mean).all() and np.isfinite(band.upper).all()):
        raise PredictionRefused("not_finite")
    mean = np.maximum(band.mean, 0.0)
    upper = np.maximum(band.upper, mean)
    if upper.max() > GROWTH_MAX * np.nanmax(history):
        raise PredictionRefused("absurd")
    return Prediction(mean, upper)


def is_flat(history: Values) -> bool:
    """Whether all known values are the same."""
    most = float(np.nanmax(history))
    return most - float(np.nanmin(history)) <= _FLAT * most


def interpolate_gaps(history: Values) -> Values:
    """The history with a straight line over what is not known."""
    known = np.isfinite(history)
    if known.all():
        return history
    at = np.arange(history.size)
    return np.interp(at, at[known], history[known])


def error_quantile(errors: Values, quantile: float) -> float:
    """How much above a forecast the truth lay in all but ``1 - quantile`` of the newest cases; at least 0."""
    known = errors[np.isfinite(errors)][-_RESIDUALS:]
    return max(0.0, float(np.quantile(known, quantile))) if known.size else 0.0
