"""Bounds of what a report may hold."""

from typing import Any, Final, get_args

from msgspec import Struct

from loadline.core.vocabulary import scalars
from loadline.core.vocabulary.scalars import LENGTH_MIN


class Bounds(Struct, frozen=True):
    """Bounds of the values of one kind, of which 0 is always one. ``msgspec.convert`` takes three times as long.

    Attributes:
        whole: True if the values are integers.
        smallest: Smallest value above 0.
        largest: Largest value.
    """

    whole: bool
    smallest: float
    largest: float

    def accept(self, value: float) -> Any:
        """Return the value, rounded if it must be whole; None if agents refuse it."""
        if self.whole and abs(value) <= self.largest + 1:  # rounding infinity or NaN fails
            value = round(value)
        return value if value == 0 or self.smallest <= value <= self.largest else None


def _bounds(kind: Any) -> Bounds:
    number, bounds = get_args(kind)
    # Agents refuse a length or latency that is almost 0.
    return Bounds(number is int, 0.0 if kind is scalars.Ratio else LENGTH_MIN, bounds.le)


ARRIVAL_COUNT: Final = _bounds(scalars.ArrivalCount)
BATCH_COUNT: Final = _bounds(scalars.BatchCount)
BLOCK_COUNT: Final = _bounds(scalars.BlockCount)
MILLISECONDS: Final = _bounds(scalars.Milliseconds)
QUEUE_COUNT: Final = _bounds(scalars.QueueCount)
RATIO: Final = _bounds(scalars.Ratio)
TOKEN_COUNT: Final = _bounds(scalars.TokenCount)
TOKENS: Final = _bounds(scalars.Tokens)
