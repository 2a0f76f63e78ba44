"""The last value stays. What it may rise to is what it rose in as many intervals before."""

import numpy as np

from loadline.forecast.base import Prediction, PredictionTask, Values, error_quantile


def constant(history: Values, task: PredictionTask) -> Prediction:
    """The last value, and that plus the quantile of the rises over as many steps; over none, no more than it."""
    last = history[-1]
    spans = range(1, min(task.steps, history.size - 1) + 1)
    rises = [error_quantile(history[span:] - history[:-span], task.knobs.quantile) for span in spans]
    rises += [rises[-1] if rises else 0.0] * (task.steps - len(rises))
    # The further, the wider: quantiles of few cases may say the opposite.
    return Prediction(np.full(task.steps, last), last + np.maximum.accumulate(np.array(rises)))
