"""Time limit of the scoring of slow predictors, so that hundreds of models do not wait for each other's scores."""

from collections.abc import Callable
from typing import Final

_SHARE: Final = 0.25  # of the time that passes: ARIMA of 100 models at intervals of 180 s needs a tenth
_AT_ONCE_S: Final = 4.0  # with one more fit on a busy machine, below the deadline of a forecast, 20 s


class ScoringTime:
    """Time that accrues while nothing is scored, as a quarter of the time that passes, up to 4 s.

    Args:
        clock: Returns a monotonic time in s.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._at_s = clock()
        self._left_s = _AT_ONCE_S

    def run(self, work: Callable[[], float]) -> float | None:
        """Do the work if time is left; return its result, or None."""
        began_s = self._clock()
        self._left_s = min(_AT_ONCE_S, self._left_s + _SHARE * (began_s - self._at_s))
        self._at_s = began_s
        if self._left_s <= 0.0:
            return None
        result = work()
        self._at_s = self._clock()
        self._left_s -= self._at_s - began_s
        return result
