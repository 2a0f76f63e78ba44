"""Choice between predictors: the one with the lowest loss at past times.

The loss is the sum of the pinball losses of the mean (as quantile 0.5) and of the upper forecast. The upper forecast
alone does not suffice: a constant with a wide upper forecast covers a rise as well as a predictor that predicts it.

ARIMA takes 50 ms and 1 s for a new order, so the losses of slow predictors are kept: most past times are those of the
last forecast.
"""

from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from math import ceil, log2
from typing import Final

import msgspec
import numpy as np
from msgspec import Struct

from loadline.core.vocabulary.forecasts import ForecastKnobs, PredictorName
from loadline.forecast import kalman
from loadline.forecast.base import Prediction, PredictionTask, Values, interpolate_gaps
from loadline.forecast.scores import pinball
from loadline.forecast.scoring_time import ScoringTime

Attempt = Callable[[PredictorName, Values, PredictionTask], Prediction]
"""Predicts with one predictor, or with its fallback if it fails."""

_MEDIAN: Final = 0.5
# Ratio of losses below which a predictor is better: over two dozen forecasts they differ by some percent by chance.
_LOSS_RATIO_MAX: Final = 0.95
_PAST_SHARE: Final = 0.5  # fraction of the history before the first forecast
# Values that each candidate forecasts for its score; seasonal takes 0.3 ms for each, 1 ms with 4,096 points. 200 past
# times of 288 steps took 28 s, which is above the deadline of a forecast, 20 s, on each one.
_SCORED_MAX: Final = 2_400
_KEPT_MAX: Final = 65_536  # losses of 24 times, three series, three predictors and 300 models; 15 MB


def choose_predictor(
    history: Values, task: PredictionTask, attempt: Attempt, scoring_time: ScoringTime | None = None
) -> PredictorName:
    """Choose the candidate with the lowest mean loss; prefer the first one unless another is at least 5% better.

    Args:
        history: Known values.
        task: Parameters of the forecast to choose for.
        attempt: Makes the forecasts at past times.
        scoring_time: Limits slow candidates, which are not chosen before they are scored; None: no limit.
    """
    candidates = task.knobs.auto.candidates
    moments = _moments(history, task)
    if len(candidates) == 1 or not moments:
        return candidates[0]
    past = _Past(history, task, attempt, scoring_time)
    losses = {name: past.mean_loss(name, moments) for name in candidates}
    scored = {name: loss for name, loss in losses.items() if loss is not None}
    best = min(scored, key=scored.__getitem__, default=candidates[0])
    first = losses[candidates[0]]
    return best if first is None or scored[best] < _LOSS_RATIO_MAX * first else candidates[0]


def _moments(history: Values, task: PredictionTask) -> list[int]:
    """Return the history lengths to forecast from, over the newest season, up to ``steps`` before its end.

    The numbers of their intervals are multiples of a power of two, so that later forecasts have the same moments.
    """
    newest = history.size - task.steps
    season = round(task.knobs.seasonal.season_s * 1_000 / task.interval_ms)
    oldest = max(int(history.size * _PAST_SHARE), newest - season, task.knobs.min_points)
    if newest < oldest:
        return []
    origins = min(task.knobs.auto.origins, max(2, _SCORED_MAX // task.steps))
    stride = 2 ** ceil(log2(max(1.0, (newest - oldest + 1) / origins)))
    first = oldest + (history.size - oldest - task.last_index - 1) % stride
    return [size for size in range(first, newest + 1, stride) if np.isfinite(history[size - 1])]


class _Past(Struct, frozen=True):
    """A history whose past forecasts are compared with what followed."""

    history: Values
    task: PredictionTask
    attempt: Attempt
    scoring_time: ScoringTime | None

    def mean_loss(self, name: PredictorName, moments: list[int]) -> float | None:
        """Return the mean loss over the moments with known values, 0 without any; None if the time did not suffice."""
        losses = []
        for size in moments:
            loss = self._loss(name, size)
            if loss is None:
                return None
            losses.append(loss)
        known = [loss for loss in losses if np.isfinite(loss)]
        return float(np.mean(known)) if known else 0.0

    def _loss(self, name: PredictorName, size: int) -> float | None:
        """Return the loss after so many values, kept from an earlier call if the predictor is slow."""
        steps, knobs = self.task.steps, self.task.knobs
        before, truth = self.history[:size], self.history[size : size + steps]
        then = PredictionTask(steps, self.task.interval_ms, self.task.last_index - self.history.size + size, knobs)

        def loss() -> float:
            band = self.attempt(name, before, then)
            return pinball(truth, band.upper, knobs.quantile) + pinball(truth, band.mean, _MEDIAN)

        points = _points_read(name, knobs)
        if points is None:
            return loss()
        digest = blake2b(msgspec.msgpack.encode((name, then)), digest_size=16)
        for values in (before[-points:], interpolate_gaps(before)[-points:], truth):
            digest.update(values.tobytes())
        kept = _cell(digest.digest())
        if not kept:
            found = loss() if self.scoring_time is None else self.scoring_time.run(loss)
            if found is None:
                return None
            kept.append(found)
        return kept[0]


@lru_cache(maxsize=_KEPT_MAX)
def _cell(_digest: bytes) -> list[float]:
    """Return the place of a loss, empty at first."""
    return []


def _points_read(name: PredictorName, knobs: ForecastKnobs) -> int | None:
    """Return the number of newest points that a slow predictor reads; None for a fast one."""
    match name:
        case "kalman":
            return kalman.POINTS
        case "arima":
            return knobs.arima.points + knobs.arima.order_intervals
        case "prophet":
            return knobs.prophet.points
    return None
