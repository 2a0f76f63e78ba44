"""A local linear trend, followed by a Kalman filter.

The filter is run over the whole window at every question: there is no state that one bad value could spoil for ever.
"""

import math
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from loadline.core.vocabulary.forecasts import KalmanKnobs
from loadline.forecast.base import Prediction, PredictionTask, Values

_VARIANCE_AT_FIRST: Final = 1_000.0  # of level and trend: nothing is known of either
# The gain depends on no value and settles within some fifty steps; a settled step takes a tenth of the time.
_SETTLED: Final = 1e-13


def kalman(history: Values, task: PredictionTask) -> Prediction:
    """Level and trend go on as the filter has them; an unknown value is a step without a measurement.

    The model says how the variance grows with the steps, the errors of the past say how large it is.
    """
    knobs = task.knobs.kalman
    model = _filter(knobs, history[0])
    variance_ratio = _follow(model, history[1:])
    mean, deviation = np.empty(task.steps), np.empty(task.steps)
    for step in range(task.steps):
        model.predict()
        mean[step] = model.x[0, 0]
        deviation[step] = np.sqrt(variance_ratio * (model.P[0, 0] + knobs.r))
    return Prediction(mean, mean + NormalDist().inv_cdf(task.knobs.quantile) * deviation)


def _filter(knobs: KalmanKnobs, first: float) -> Any:
    from filterpy.kalman import KalmanFilter  # noqa: PLC0415 - an extra, 2 s to import

    model = KalmanFilter(dim_x=2, dim_z=1)
    model.x = np.array([[first], [0.0]])
    model.F = np.array([[1.0, 1.0], [0.0, 1.0]])
    model.H = np.array([[1.0, 0.0]])
    model.P *= _VARIANCE_AT_FIRST
    model.Q = np.diag([knobs.q_level, knobs.q_trend])
    model.R = np.array([[knobs.r]])
    return model


def _follow(model: Any, values: Values) -> float:
    """Take the values in; gives the squared errors as a share of the variances that the model expected."""
    squares: list[float] = []
    gain, settled = np.zeros((2, 1)), False
    for value in values.tolist():
        if math.isnan(value):
            model.predict()
            settled = False
            continue
        if settled:
            model.x = model.F @ model.x
            error = value - model.x[0, 0]
            model.x = model.x + model.K * error
        else:
            model.predict()
            model.update(value)
            error = model.y[0, 0]
            settled = bool(np.abs(model.K - gain).max() < _SETTLED)
            gain = model.K
        squares.append(error**2 / model.S[0, 0])
    return float(np.mean(squares)) if squares else 0.0
