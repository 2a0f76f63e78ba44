"""A regression on the season and on the last changes, one for each step, and the quantile of its own errors.

``y(t + h) - y(t)`` is explained by what the season does in those steps, by how far off the season we are, and by the
last two changes; until two seasons are known, by the changes alone. It works on square roots: those make the
noise of counts the same at every rate, and keep the forecast in proportion when all values are multiplied.
"""

from typing import Final

import numpy as np

from loadline.forecast.base import (
    Prediction,
    PredictionRefused,
    PredictionTask,
    Values,
    error_quantile,
    interpolate_gaps,
)

_LAGS: Final = 2  # a third one makes nothing better on the public traces
_NEWEST_SHARE: Final = 0.5  # of the newest season in the profile: 0.3 and 0.7 do as well to a hundredth
_SMOOTHED: Final = 5  # intervals; a profile of few days is noisy
_CASES_MIN: Final = 3  # for each coefficient
_RIDGE: Final = 1e-3  # of the mean square of a column: coefficients of what hardly varies stay small
# Where the rows explain nothing, so many cases of no change are added: a hundred points would find a rule by chance.
_PRIOR: Final = 30
# One day is no profile: on the second day such a forecast loses 6 % more than a constant one, without it 6 % less.
_SEASONS_MIN: Final = 2


def seasonal(history: Values, task: PredictionTask) -> Prediction:
    """Solve one least-squares problem for each step.

    With n points and h steps: O(n h), 0.3 ms a step for 1,000 points.

    Raises:
        Refused: There are too few points for so many steps.
    """
    unknown = ~np.isfinite(history)
    values = np.sqrt(interpolate_gaps(history))
    points = task.knobs.seasonal.points
    profile = _profile(values, round(task.knobs.seasonal.season_s * 1_000 / task.interval_ms), task.steps)
    last = values[-1]
    means, uppers = np.empty(task.steps), np.empty(task.steps)
    for step in range(1, task.steps + 1):
        rows, rises = _cases(values, profile, step)
        known = np.flatnonzero(~unknown[values.size - rises.size :])[-points:]
        if known.size < _CASES_MIN * rows.shape[1]:
            raise PredictionRefused("points")
        coefficients = _solved(rows[known], rises[known])
        errors = rises[known] - rows[known] @ coefficients
        means[step - 1] = last + rows[-1] @ coefficients
        uppers[step - 1] = means[step - 1] + error_quantile(errors, task.knobs.quantile)
    return Prediction(np.square(np.maximum(means, 0.0)), np.square(np.maximum(uppers, 0.0)))


def _profile(values: Values, period: int, steps: int) -> Values | None:
    """For each point from the second season on, and for ``steps`` after the last, what the seasons before it say."""
    size = values.size
    if period <= _LAGS or size < _SEASONS_MIN * period + 2 * steps:
        return None
    profile = np.full(size + steps, np.nan)
    profile[period : 2 * period] = values[:period][: size + steps - period]
    for start in range(2 * period, size + steps, period):
        stop = min(start + period, size + steps)
        before = profile[start - period : stop - period]
        # What lies more than a season ahead of the last value repeats the profile.
        newest = np.concatenate([values[start - period : stop - period], before[max(0, size - start + period) :]])
        profile[start:stop] = before + _NEWEST_SHARE * (newest - before)
    half = _SMOOTHED // 2
    padded = np.pad(profile[period:], half, mode="edge")
    profile[period:] = np.convolve(padded, np.full(_SMOOTHED, 1.0 / _SMOOTHED), "valid")
    return profile


def _cases(values: Values, profile: Values | None, step: int) -> tuple[Values, Values]:
    """What was known at each moment, and the rise in the steps after it; the last row is now, its rise is unknown."""
    first = _LAGS if profile is None else max(_LAGS, int(np.isnan(profile).sum()))
    now = np.arange(first, values.size)
    columns = [values[now] - values[now - lag] for lag in range(1, _LAGS + 1)]
    if profile is not None:
        columns += [profile[now + step] - profile[now], profile[now] - values[now]]
    past = now[: max(0, now.size - step)]
    return np.column_stack(columns), values[past + step] - values[past]


def _solved(rows: Values, rises: Values) -> Values:
    """Coefficients of least squares; the smaller, the less of the rises they explain."""
    scale = np.sqrt(np.square(rows).mean(axis=0))
    scale[scale == 0.0] = 1.0
    scaled = rows / scale
    unit = np.eye(rows.shape[1])
    normal, products = scaled.T @ scaled + _RIDGE * len(rises) * unit, scaled.T @ rises
    unexplained = np.square(rises - scaled @ np.linalg.solve(normal, products)).sum()
    share = unexplained / max(np.square(rises).sum(), np.finfo(float).tiny)
    coefficients: Values = np.linalg.solve(normal + _PRIOR * share * unit, products) / scale
    return coefficients
