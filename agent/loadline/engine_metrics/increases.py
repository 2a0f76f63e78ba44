"""Increases of counters and histograms between two pages of one program."""

from collections.abc import KeysView
from typing import Final

from msgspec import Struct

from loadline.engine_metrics.exposition import Exposition

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

    A series that is new counts from 0 if the page before declared its metric: the program had not counted anything yet.
    Otherwise it counts from its first sight, so a metric that appears late or is missing for a while never yields what
    the program counted in its whole life. Neither does a metric all of whose series get another label. A counter that
    falls belongs to a program that was started again.
    """

    __slots__ = ("_known", "_labels", "_last", "_page", "fell")

    def __init__(self) -> None:
        self._last: dict[str, dict[str, float]] = {}
        self._labels: dict[str, KeysView[str]] = {}
        """Labels of each metric on the last page that had it."""
        self._page = _NO_PAGE
        self._known: frozenset[str] = frozenset()
        self.fell = False
        """True if a counter fell since the last call of ``begin``."""

    def begin(self, page: Exposition) -> None:
        """Start a page."""
        before, self._page = self._page, page
        if sum(map(len, self._last.values())) > _SERIES_MAX:
            before = _NO_PAGE
        if self.fell or before is _NO_PAGE:  # series that are not there again belong to the program that has gone
            self._last = {metric: dict(series) for metric, series in before.series.items()}
            self._labels = {metric: series.keys() for metric, series in before.series.items()}
        for metric in page.declared - page.series.keys():  # series do not end before their program
            self._last.pop(metric, None)
            self._labels.pop(metric, None)
        self._known = before.declared
        self.fell = False

    def increases(self, metric: str) -> list[tuple[str, float]]:
        """Return the increase of each series of a metric whose last value is known, by its labels."""
        found = []
        values = self._last.setdefault(metric, {})
        series = self._page.series.get(metric, {})
        is_renamed = self._labels.get(metric, series.keys()).isdisjoint(series)
        first = 0.0 if metric in self._known else None
        if series:
            self._labels[metric] = series.keys()
        for labels, value in series.items():
            last = None if is_renamed else values.get(labels, first)
            values[labels] = value
            if last is not None:
                self.fell |= value < last
                found.append((labels, value - last))
        return found


_NO_PAGE: Final = Exposition({}, 0, frozenset())
