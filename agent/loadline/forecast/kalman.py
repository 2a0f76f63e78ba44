"""Kalman predictor: a local linear trend, estimated by a Kalman filter.

Each forecast runs the filter anew, so that no bad value can corrupt its state for later forecasts.
"""

import math
from statistics import NormalDist
from typing import Any, Final

import numpy as np

from loadline.core.vocabulary.forecasts import KalmanKnobs
from loadline.forecast.base import Prediction, PredictionTask, Values

# Newest points to filter: with the default variances the weight of an older one is below 1e-30. 2 ms instead of 15 ms.
POINTS: Final = 288
_INITIAL_VARIANCE: Final = 1_000.0  # of level and trend, both unknown
# Change of the gain below which it has converged. The gain is independent of the values and converges in 50 steps; a
# step with a fixed gain takes a tenth of the time.
_GAIN_CHANGE_MAX: Final = 1e-13


def kalman(history: Values, task: PredictionTask) -> Prediction:
    """Extrapolate the filtered level and trend; an unknown value is a step without a measurement.

    The variance grows with the steps as in the model; the past errors determine its scale.
    """
    knobs = task.knobs.kalman
    newest = history[-POINTS:]
    newest = newest[np.isfinite(newest).argmax() :]
    model = _filter(knobs, newest[0])
    variance_ratio = _run_filter(model, newest[1:])
    mean, deviation = np.empty(task.steps), np.empty(task.steps)
    for step in range(task.steps):
        model.predict()
        mean[step] = model.x[0, 0]
        deviation[step] = np.sqrt(variance_ratio * (model.P[0, 0] + knobs.r))
    return Prediction(mean, mean + NormalDist().inv_cdf(task.knobs.quantile) * deviation)


def _filter(knobs: KalmanKnobs, first: float) -> Any:
    from filterpy.kalman import KalmanFilter  # noqa: PLC0415 - imports SciPy, 1 s

    model = KalmanFilter(dim_x=2, dim_z=1)
    model.x = np.array([[first], [0.0]])
    model.F = np.array([[1.0, 1.0], [0.0, 1.0]])
    model.H = np.array([[1.0, 0.0]])
    model.P *= _INITIAL_VARIANCE
    model.Q = np.diag([knobs.q_level, knobs.q_trend])
    model.R = np.array([[knobs.r]])
    return model


def _run_filter(model: Any, values: Values) -> float:
    """Run the filter over the values; return the mean ratio of squared errors to the variances of the model."""
    squares: list[float] = []
    gain, converged = np.zeros((2, 1)), False
    for value in values.tolist():
        if math.isnan(value):
            model.predict()
            converged = False
            continue
        if converged:
            model.x = model.F @ model.x
            error = value - model.x[0, 0]
            model.x = model.x + model.K * error
        else:
            model.predict()
            model.update(value)
            error = model.y[0, 0]
            converged = bool(np.abs(model.K - gain).max() < _GAIN_CHANGE_MAX)
            gain = model.K
        squares.append(error**2 / model.S[0, 0])
    return float(np.mean(squares)) if squares else 0.0
