"""Scores of forecasts. Unknown actual values (NaN) do not count; without any, a score is NaN."""

from collections.abc import Sequence

import numpy as np

from loadline.forecast.base import Values


def mae(truth: Values, mean: Values) -> float:
    """Return the mean absolute error, in the unit of the values."""
    return _mean(np.abs(truth - mean))


def smape(truth: Values, mean: Values) -> float:
    """Return the symmetric mean absolute percentage error as a ratio, 0..2; 0 where both values are 0."""
    size = np.abs(truth) + np.abs(mean)
    return _mean(np.where(size == 0.0, 0.0, 2.0 * np.abs(truth - mean) / np.where(size == 0.0, 1.0, size)))


def pinball(truth: Values, upper: Values, quantile: float) -> float:
    """Return the pinball loss, which the true quantile minimises."""
    off = truth - upper
    return _mean(np.maximum(quantile * off, (quantile - 1.0) * off))


def coverage(truth: Values, upper: Values) -> float:
    """Return the fraction of actual values not above the upper forecast; ideally the quantile."""
    return _mean(np.where(np.isfinite(truth), (truth <= upper).astype(float), np.nan))


def work_error(truth: Sequence[Values], mean: Sequence[Values]) -> float:
    """Return the log error of the work, the score by which Dynamo 1.6 chooses predictors in simulations.

    Args:
        truth: Actual requests, ISL and OSL.
        mean: Their forecasts.

    Returns:
        The mean of ``|log1p(truth) - log1p(mean)|``: of prompt and of output tokens 0.4 each, of both lengths 0.1 each.
    """
    errors = [
        weight * np.abs(np.log1p(true) - np.log1p(forecast))
        for weight, true, forecast in zip((0.4, 0.4, 0.1, 0.1), _work(truth), _work(mean), strict=True)
    ]
    return _mean(np.sum(errors, axis=0))


def _work(parts: Sequence[Values]) -> tuple[Values, ...]:
    requests, isl, osl = parts
    return requests * isl, requests * osl, isl, osl


def _mean(values: Values) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else float("nan")
