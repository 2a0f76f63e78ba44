"""The queue in front of a full batch: states whose weights are a geometric series, summed in closed form.

``step`` is the log of their quotient. Where it is above 0 the weights rise, and all are taken by that of the last one,
so that no sum overflows. At 0 nothing is divided by 0: the sums go over into ``count`` without a jump.
"""

from math import copysign, exp, expm1
from typing import Final

_SMALL: Final = 0.3
"""Below it the series of the mean is exact to 1e-9, and above it the closed form loses less than that."""


def geometric_sum(step: float, count: int) -> float:
    """Sum of ``exp(step * i)``: for i of 0 to count - 1 where it falls, of -count to -1 where it rises."""
    return -expm1(-abs(step) * count) / abs(expm1(step)) if step else float(count)


def queue_weights(step: float, count: int) -> tuple[float, float, float, float]:
    """Weights of ``count`` states after a full batch: of that batch, of the last state, their sum, and of their places.

    The batch's weight is 1 where weights fall, the last state's where they rise. A place is how many wait: 1 to count.
    """
    total = exp(step) * geometric_sum(step, count)
    span = step * count
    return exp(min(0.0, -span)), exp(min(0.0, span)), total, total * _mean_place(step, count, span)


def _mean_place(step: float, count: int, span: float) -> float:
    if abs(span) > _SMALL:
        return copysign(count * exp(min(0.0, span)) / -expm1(-abs(span)), span) - 1.0 / expm1(step)
    # Bernoulli's series of the difference of the two, which both become infinite.
    square, steps = float(count) * count, step * step
    third = (square * square - 1.0) * steps / 720.0 - (square * square * square - 1.0) * steps * steps / 30_240.0
    return (count + 1.0) / 2.0 + step * ((square - 1.0) / 12.0 - third)
