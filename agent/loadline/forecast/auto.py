"""Choice between predictors: the one with the lowest loss at past times.

The loss is the sum of the pinball losses of the mean (as quantile 0.5) and of the upper forecast. The upper forecast
alone does not suffice: a constant with a wide upper forecast covers a rise as well as a predictor that predicts it.
"""

from collections.abc import Callable

import numpy as np

from loadline.core.vocabulary.forecasts import PredictorName
from loadline.forecast.base import Prediction, PredictionTask, Values
from loadline.forecast.scores import pinball

Attempt = Callable[[PredictorName, Values, PredictionTask], Prediction]
"""Predicts with one predictor, or with its fallback if it fails."""

_MEDIAN = 0.5
# Ratio of losses below which a predictor is better: over two dozen forecasts they differ by some percent by chance.
_LOSS_RATIO_MAX = 0.95
_PAST_SHARE = 0.5  # fraction of the history before the first forecast


def choose_predictor(history: Values, task: PredictionTask, attempt: Attempt) -> PredictorName:
    """Choose the candidate with the lowest mean loss; prefer the first one unless another is at least 5% better."""
    knobs = task.knobs.auto
    moments = _moments(history, task)
    if len(knobs.candidates) == 1 or not moments:
        return knobs.candidates[0]
    losses = [_loss(name, moments, history, task, attempt) for name in knobs.candidates]
    is_better = min(losses) < _LOSS_RATIO_MAX * losses[0]
    return knobs.candidates[losses.index(min(losses)) if is_better else 0]


def _moments(history: Values, task: PredictionTask) -> list[int]:
    """Return the history lengths to forecast from: evenly over the newest season, up to ``steps`` before its end."""
    newest = history.size - task.steps
    season = round(task.knobs.seasonal.season_s * 1_000 / task.interval_ms)
    oldest = max(int(history.size * _PAST_SHARE), newest - season, task.knobs.min_points)
    if newest < oldest:
        return []
    evenly = np.linspace(oldest, newest, min(task.knobs.auto.origins, newest - oldest + 1))
    return [size for size in np.unique(evenly.astype(int)).tolist() if np.isfinite(history[size - 1])]


def _loss(name: PredictorName, moments: list[int], history: Values, task: PredictionTask, attempt: Attempt) -> float:
    losses = []
    for size in moments:
        then = PredictionTask(task.steps, task.interval_ms, task.last_index - history.size + size, task.knobs)
        truth = history[size : size + task.steps]
        band = attempt(name, history[:size], then)
        losses.append(pinball(truth, band.upper, task.knobs.quantile) + pinball(truth, band.mean, _MEDIAN))
    known = [loss for loss in losses if np.isfinite(loss)]
    return float(np.mean(known)) if known else 0.0
