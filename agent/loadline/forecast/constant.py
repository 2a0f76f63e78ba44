"""Constant predictor: the last value, with the upper forecast from past rises over as many intervals."""

import numpy as np

from loadline.forecast.base import Prediction, PredictionTask, Values, error_quantile


def constant(history: Values, task: PredictionTask) -> Prediction:
    """Predict the last value; the upper forecast adds the quantile of past rises over as many steps."""
    last = history[-1]
    spans = range(1, min(task.steps, history.size - 1) + 1)
    rises = [error_quantile(history[span:] - history[:-span], task.knobs.quantile) for span in spans]
    rises += [rises[-1] if rises else 0.0] * (task.steps - len(rises))
    # Quantiles of few cases may fall with the horizon, but the uncertainty does not.
    return Prediction(np.full(task.steps, last), last + np.maximum.accumulate(np.array(rises)))
