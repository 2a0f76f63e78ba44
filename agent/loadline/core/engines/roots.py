"""Roots of rising functions: false position with the corrections of Anderson and Bjorck (1973).

The root stays bracketed. Every third step bisects if the last three did not halve the bracket. The worst case is three
times the steps of bisection (60 instead of 20); smooth functions take about 6.
"""

from collections.abc import Callable
from typing import Final

_BISECT_EVERY: Final = 3
_END_DISTANCE: Final = 0.25
"""Smallest distance of a step from the ends of the bracket, as a fraction of the precision; both ends converge."""


def last_below(
    function: Callable[[float], float], low: tuple[float, float], high: tuple[float, float], precision: float
) -> float:
    """Return the largest argument at which a function is at most 0: at most ``precision`` too low, never too high.

    Args:
        function: Rising function, possibly with jumps.
        low: Argument above 0 and its value, at most 0.
        high: Higher argument and its value, above 0.
        precision: Precision relative to the argument.
    """
    (left, at_left), (right, at_right) = low, high
    steps, width, side = 0, right - left, 0
    while right - left > precision * right:
        steps += 1
        place = (left * at_right - right * at_left) / (at_right - at_left)
        if steps % _BISECT_EVERY == 0:
            halved = width / 2.0
            width = right - left
            if width > halved:
                place, width = (left + right) / 2.0, width / 2.0
        nearest = _END_DISTANCE * precision * right
        place = min(right - nearest, max(left + nearest, place))
        value = function(place)
        if value > 0.0:
            if side > 0:
                at_left *= _end_factor(value, at_right)
            right, at_right, side = place, value, 1
        else:
            if side < 0:
                at_right *= _end_factor(value, at_left)
            left, at_left, side = place, value, -1
    return left


def _end_factor(value: float, before: float) -> float:
    """Return the factor for the value at the other end after two steps to the same side."""
    factor = 1.0 - value / before if before else 0.5
    return factor if factor > 0.0 else 0.5
