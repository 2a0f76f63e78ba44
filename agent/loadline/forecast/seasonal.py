"""Seasonal regression: one linear model per step, with the upper forecast from the quantile of its errors.

``y(t + h) - y(t)`` is regressed on the change of the seasonal profile over those steps, on the current distance to the
profile, and on the last two changes; until two seasons are known, on the changes alone. Values are square roots, which
make the noise of counts independent of the rate and keep forecasts proportional when all values are scaled.
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

_LAGS: Final = 2  # a third one does not improve scores on the public traces
_NEWEST_SHARE: Final = 0.5  # weight of the newest season in the profile; 0.3 to 0.7 score the same within 1%
_SMOOTHED: Final = 5  # intervals of the moving average, since a profile of few days is noisy
_CASES_MIN: Final = 3  # cases per coefficient
_RIDGE: Final = 1e-3  # relative to the mean square of a column; keeps coefficients of nearly constant columns small
# Weight of a prior of no change, in cases, in proportion to the unexplained share: prevents fits by chance.
_PRIOR: Final = 30
# With one season of history the profile raises the loss by 6% over a constant; without it, it is 6% lower.
_SEASONS_MIN: Final = 2


def seasonal(history: Values, task: PredictionTask) -> Prediction:
    """Solve one least-squares problem per step.

    O(n h) for n points and h steps: 0.3 ms per step with 1,000 points.

    Raises:
        PredictionRefused: There are too few points for the steps.
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
    """Return the smoothed mean of past seasons for each point from the second season on, and for ``steps`` more."""
    size = values.size
    if period <= _LAGS or size < _SEASONS_MIN * period + 2 * steps:
        return None
    profile = np.full(size + steps, np.nan)
    profile[period : 2 * period] = values[:period][: size + steps - period]
    for start in range(2 * period, size + steps, period):
        stop = min(start + period, size + steps)
        before = profile[start - period : stop - period]
        # More than a season after the last value, the profile repeats.
        newest = np.concatenate([values[start - period : stop - period], before[max(0, size - start + period) :]])
        profile[start:stop] = before + _NEWEST_SHARE * (newest - before)
    half = _SMOOTHED // 2
    padded = np.pad(profile[period:], half, mode="edge")
    profile[period:] = np.convolve(padded, np.full(_SMOOTHED, 1.0 / _SMOOTHED), "valid")
    return profile


def _cases(values: Values, profile: Values | None, step: int) -> tuple[Values, Values]:
    """Return regressors at each time, now last, and the changes over the following steps, which exclude now."""
    first = _LAGS if profile is None else max(_LAGS, int(np.isnan(profile).sum()))
    now = np.arange(first, values.size)
    columns = [values[now] - values[now - lag] for lag in range(1, _LAGS + 1)]
    if profile is not None:
        columns += [profile[now + step] - profile[now], profile[now] - values[now]]
    past = now[: max(0, now.size - step)]
    return np.column_stack(columns), values[past + step] - values[past]


def _solved(rows: Values, rises: Values) -> Values:
    """Solve for the coefficients, shrunk in proportion to the unexplained part of the changes."""
    scale = np.sqrt(np.square(rows).mean(axis=0))
    scale[scale == 0.0] = 1.0
    scaled = rows / scale
    unit = np.eye(rows.shape[1])
    normal, products = scaled.T @ scaled + _RIDGE * len(rises) * unit, scaled.T @ rises
    unexplained = np.square(rises - scaled @ np.linalg.solve(normal, products)).sum()
    share = unexplained / max(np.square(rises).sum(), np.finfo(float).tiny)
    coefficients: Values = np.linalg.solve(normal + _PRIOR * share * unit, products) / scale
    return coefficients
