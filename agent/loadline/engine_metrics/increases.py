"""Increases of counters and histograms between two pages of one program."""

from collections.abc import Iterable
from typing import Final

from msgspec import Struct

# Groups come and go with the workers of a router; a program with as many series as this has lost its bounds.
_SERIES_MAX: Final = 200_000


class Increase(Struct):
    """Increase of a histogram between two pages.

    Attributes:
        count: Number of values.
        total: Their sum.
        bins: Cumulative counts by upper bound.
    """

    count: float = 0.0
    total: float = 0.0
    bins: dict[float, float] = {}

    @property
    def mean(self) -> float | None:
        """Mean of the values; None if there is none."""
        return self.total / self.count if self.count > 0 and self.total >= 0 else None

    def add(self, other: "Increase") -> None:
        """Add what another histogram with the same bounds counted."""
        self.count += other.count
        self.total += other.total
        for bound, count in other.bins.items():
            self.bins[bound] = self.bins.get(bound, 0.0) + count


class Counters:
    """Last values of counters.

    A series counts from its first sight, not from 0, so a metric that appears late or is missing for a while never
    yields what the program counted in its whole life. A counter that falls belongs to a program that was started again.
    """

    __slots__ = ("_last", "fell")

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], float] = {}
        self.fell = False
        """True if a counter fell since the last call of ``begin``."""

    def begin(self) -> None:
        """Start a page."""
        self.fell = False
        if len(self._last) > _SERIES_MAX:
            self._last.clear()

    def increases(self, metric: str, series: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
        """Return the increase of each series that was seen before, by its labels."""
        found = []
        for labels, value in series:
            last = self._last.get((metric, labels))
            self._last[metric, labels] = value
            if last is not None:
                self.fell |= value < last
                found.append((labels, value - last))
        return found
