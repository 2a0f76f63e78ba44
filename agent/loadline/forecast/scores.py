"""How far off forecasts were. Truths that are not known (NaN) do not count; without any, a score is NaN."""

import numpy as np

from loadline.forecast.base import Values


def mae(truth: Values, mean: Values) -> float:
    """Mean absolute error, in the unit of the values."""
    return _mean(np.abs(truth - mean))


def smape(truth: Values, mean: Values) -> float:
    """Symmetric mean absolute percentage error as a share, 0..2; 0 where truth and forecast both are 0."""
    size = np.abs(truth) + np.abs(mean)
    return _mean(np.where(size == 0.0, 0.0, 2.0 * np.abs(truth - mean) / np.where(size == 0.0, 1.0, size)))


def pinball(truth: Values, upper: Values, quantile: float) -> float:
    """The loss that the true quantile makes least: too low costs ``quantile`` a unit, too high the rest of 1."""
    off = truth - upper
    return _mean(np.maximum(quantile * off, (quantile - 1.0) * off))


def coverage(truth: Values, upper: Values) -> float:
    """The share of truths that are not above the upper forecast; as large as the quantile where that is right."""
    return _mean(np.where(np.isfinite(truth), (truth <= upper).astype(float), np.nan))


def _mean(values: Values) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if known.size else float("nan")
