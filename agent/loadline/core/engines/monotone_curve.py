"""Monotone cubic interpolation.

The curve is the cubic spline with not-a-knot ends wherever it is monotone between two neighbouring points. Elsewhere,
the slopes of the piece are limited until it is (Fritsch and Carlson, 1980), so that values stay between those of the
two points.
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from loadline.core.engines.arrays import FloatArray

_SPLINE_POINTS_MIN: Final = 4
"""Points below which not-a-knot ends are not determined; slopes are then means of the secants."""
_SLOPE_MAX: Final = 3.0
"""Largest end slope of a monotone cubic piece, as a multiple of its secant (de Boor and Swartz, 1977)."""


class MonotoneCurve:
    """A monotone cubic curve, constant outside its points.

    Args:
        positions: Positions of the points, ascending.
        values: Values at these positions.
    """

    def __init__(self, positions: Sequence[float], values: Sequence[float]) -> None:
        self.positions: FloatArray = np.asarray(positions, dtype=np.float64)
        self.values: FloatArray = np.asarray(values, dtype=np.float64)
        steps = np.diff(self.positions)
        secants = np.diff(self.values) / steps
        slopes = _spline_slopes(steps.tolist(), secants.tolist())
        low, high = self.values[:-1], self.values[1:]
        d0, d1, rise = (
            _limit_slopes(slopes[:-1], secants) * steps,
            _limit_slopes(slopes[1:], secants) * steps,
            high - low,
        )
        # For each piece: start, length, Hermite cubic in Horner form, lower and upper bound.
        second, third = 3.0 * rise - 2.0 * d0 - d1, d0 + d1 - 2.0 * rise
        self._pieces: FloatArray = np.stack(
            [self.positions[:-1], steps, low, d0, second, third, np.minimum(low, high), np.maximum(low, high)]
        )

    def __call__(self, positions: FloatArray) -> FloatArray:
        """Return the values at positions."""
        inside = np.minimum(np.maximum(positions, self.positions[0]), self.positions[-1])
        piece = np.minimum(self.positions.searchsorted(inside, side="right") - 1, len(self.positions) - 2)
        begin, step, low, first, second, third, lower, upper = self._pieces.take(piece, axis=1)
        t = (inside - begin) / step
        value = low + t * (first + t * (second + t * third))
        # Rounding at the ends of a piece must not exceed its bounds.
        bounded: FloatArray = np.minimum(np.maximum(value, lower), upper)
        return bounded


def _limit_slopes(slopes: FloatArray, secants: FloatArray) -> FloatArray:
    """Return the end slopes of pieces, limited so that each piece is monotone."""
    upper = _SLOPE_MAX * secants
    limited: FloatArray = np.minimum(np.maximum(slopes, np.minimum(upper, 0.0)), np.maximum(upper, 0.0))
    return limited


def _spline_slopes(steps: list[float], secants: list[float]) -> FloatArray:
    """Return the slopes of the not-a-knot spline at the points.

    Solved here and not by LAPACK, whose result differs in the last bit between processors; a replay must not.
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
    """Return the tridiagonal system: a row (lower, diagonal, upper, right side) per point."""
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


def _mean_slopes(steps: list[float], secants: list[float]) -> FloatArray:
    """Return the slopes at two or three points: secants at the ends, their weighted mean in the middle."""
    if len(steps) == 1:
        return np.asarray([secants[0], secants[0]])
    middle = (steps[0] * secants[0] + steps[1] * secants[1]) / (steps[0] + steps[1])
    return np.asarray([secants[0], middle, secants[1]])
