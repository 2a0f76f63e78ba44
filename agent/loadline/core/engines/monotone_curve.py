"""A smooth curve through measured points that never turns between two of them.

It is the cubic spline with *not-a-knot* ends wherever that one is monotone between two neighbours. Where it would turn
around, and so claim a value that nobody measured, the slopes of the piece between the two are drawn in until it does
not. So the curve rises wherever the points rise, and stays between the two points that
it connects.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

_SPLINE_POINTS_MIN: Final = 4
"""Fewer points than this determine no cubic with not-a-knot ends; lines connect them."""
_SLOPE_MAX: Final = 3.0
"""A cubic piece is monotone if its end slopes are between 0 and this many times its secant (de Boor, Swartz)."""


class MonotoneCurve:
    """See the module. Outside its points it holds the first and the last value.

    Args:
        at: Where the points are, rising.
        values: Their values.
    """

    def __init__(self, at: Sequence[float], values: Sequence[float]) -> None:
        self.at: Numbers = np.asarray(at, dtype=np.float64)
        self.values: Numbers = np.asarray(values, dtype=np.float64)
        steps = np.diff(self.at)
        secants = np.diff(self.values) / steps
        slopes = _spline_slopes(steps.tolist(), secants.tolist())
        low, high = self.values[:-1], self.values[1:]
        d0, d1, rise = _limited(slopes[:-1], secants) * steps, _limited(slopes[1:], secants) * steps, high - low
        # Of each piece: where it begins, its length, a Hermite cubic in Horner's form, and what it must not leave.
        second, third = 3.0 * rise - 2.0 * d0 - d1, d0 + d1 - 2.0 * rise
        self._pieces: Numbers = np.stack(
            [self.at[:-1], steps, low, d0, second, third, np.minimum(low, high), np.maximum(low, high)]
        )

    def __call__(self, places: Numbers) -> Numbers:
        """Values at many places."""
        inside = np.minimum(np.maximum(places, self.at[0]), self.at[-1])
        piece = np.minimum(self.at.searchsorted(inside, side="right") - 1, len(self.at) - 2)
        begin, step, low, first, second, third, least, most = self._pieces.take(piece, axis=1)
        t = (inside - begin) / step
        value = low + t * (first + t * (second + t * third))
        # What rounding adds at the ends of a piece must not leave it.
        bounded: Numbers = np.minimum(np.maximum(value, least), most)
        return bounded


def _limited(slopes: Numbers, secants: Numbers) -> Numbers:
    """End slopes of pieces: as they are where the piece is monotone with them, else drawn in until it is."""
    most = _SLOPE_MAX * secants
    drawn_in: Numbers = np.minimum(np.maximum(slopes, np.minimum(most, 0.0)), np.maximum(most, 0.0))
    return drawn_in


def _spline_slopes(steps: list[float], secants: list[float]) -> Numbers:
    """Slopes of the not-a-knot spline at the points.

    Solved here and not by LAPACK: its answer differs in the last bit from one processor to the next, and a replay must
    not.
    """
    if len(steps) + 1 < _SPLINE_POINTS_MIN:
        return _mean_slopes(steps, secants)
    rows = _not_a_knot(steps, secants)
    for row in range(1, len(rows)):
        above, here = rows[row - 1], rows[row]
        share = here[0] / above[1]
        rows[row] = (0.0, here[1] - share * above[2], here[2], here[3] - share * above[3])
    slopes = [0.0] * len(rows)
    slopes[-1] = rows[-1][3] / rows[-1][1]
    for row in range(len(rows) - 2, -1, -1):
        _, diagonal, upper, right = rows[row]
        slopes[row] = (right - upper * slopes[row + 1]) / diagonal
    return np.asarray(slopes)


def _not_a_knot(steps: list[float], secants: list[float]) -> list[tuple[float, float, float, float]]:
    """The tridiagonal system, a row (lower, diagonal, upper, right side) for each point's slope."""
    h, s = steps, secants
    ends = h[0] + h[1]
    first = ((h[0] + 2.0 * ends) * h[1] * s[0] + h[0] * h[0] * s[1]) / ends
    rows = [(0.0, h[1], ends, first)]
    rows += [
        (h[i], 2.0 * (h[i - 1] + h[i]), h[i - 1], 3.0 * (h[i] * s[i - 1] + h[i - 1] * s[i])) for i in range(1, len(h))
    ]
    ends = h[-1] + h[-2]
    last = (h[-1] * h[-1] * s[-2] + (2.0 * ends + h[-1]) * h[-2] * s[-1]) / ends
    rows.append((ends, h[-2], 0.0, last))
    return rows


def _mean_slopes(steps: list[float], secants: list[float]) -> Numbers:
    """Two or three points: at the ends the slope of the line there, in the middle the mean by length."""
    if len(steps) == 1:
        return np.asarray([secants[0], secants[0]])
    middle = (steps[0] * secants[0] + steps[1] * secants[1]) / (steps[0] + steps[1])
    return np.asarray([secants[0], middle, secants[1]])
