"""Sums over the queue in front of a full batch, whose states have geometric weights, in closed form.

``step`` is the log of the ratio of successive weights. If it is above 0, weights are relative to the last one, so that
sums do not overflow. The sums are continuous at 0.
"""

from math import copysign, exp, expm1
from typing import Final

_SERIES_MAX: Final = 0.3
"""Bound below which the series of the mean is exact to 1e-9; above it, the closed form is."""


def geometric_sum(step: float, count: int) -> float:
    """Return the sum of ``exp(step * i)`` for i = 0..count - 1 if ``step`` <= 0, otherwise for i = -count..-1."""
    return -expm1(-abs(step) * count) / abs(expm1(step)) if step else float(count)


def queue_weights(step: float, count: int) -> tuple[float, float, float, float]:
    """Return the weights of the full batch, of the last of ``count`` queue states, their sum, and their first moment.

    Weights are relative to the full batch if ``step`` <= 0, otherwise to the last state. State i = 1..count has i
    waiting requests; the first moment is the sum of i times its weight.
    """
    total = exp(step) * geometric_sum(step, count)
    span = step * count
    return exp(min(0.0, -span)), exp(min(0.0, span)), total, total * _mean_place(step, count, span)


def _mean_place(step: float, count: int, span: float) -> float:
    if abs(span) > _SERIES_MAX:
        return copysign(count * exp(min(0.0, span)) / -expm1(-abs(span)), span) - 1.0 / expm1(step)
    # Bernoulli series of the difference of two terms that both diverge at 0.
    square, steps = float(count) * count, step * step
    third = (square * square - 1.0) * steps / 720.0 - (square * square * square - 1.0) * steps * steps / 30_240.0
    return (count + 1.0) / 2.0 + step * ((square - 1.0) / 12.0 - third)
