"""History of the charts: the last hour of each model, in rings of fixed size."""

from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from math import isnan, nan
from typing import Final

from msgspec import Struct

from loadline.core.vocabulary.status import ModelStatus
from loadline.web.page_data import point

SPAN_MS: Final = 3_600_000
"""Length of the history."""
POINTS_MAX: Final = 720
"""Points of a model: one each 5 s."""
POINTS_MIN: Final = 60
FLEET_POINTS_MAX: Final = 72_000
"""Points of all models: 100 models have 720 each, and more models have fewer, in some 10 MB."""


class HistoryPage(Struct, frozen=True):
    """History of a model's charts, oldest first."""

    interval_ms: int
    times_ms: list[int]
    series: dict[str, list[float]]
    """Values by series; NaN, which is null in JSON: unknown."""


class ModelHistory:
    """Ring of the points of one model, with all of its memory from the start.

    Arrays that grow for an hour move again and again, and each place that they leave is too small for the next array:
    the agent grew by 2.5 MiB/h, of which 60 arrays of four models hold 0.3 MiB.

    Args:
        points_max: Points that it keeps.
        interval_ms: Time between two points; the last value within an interval is kept.
    """

    def __init__(self, points_max: int, interval_ms: int) -> None:
        self._points_max = points_max
        self._interval_ms = interval_ms
        self._times = array("q", bytes(8 * points_max))
        self._columns: dict[str, array[float]] = {}
        self._taken = 0
        """Points so far; point k is in place ``k % points_max``."""

    def record(self, at_ms: int, values: dict[str, float | None]) -> None:
        """Record the values of a time; a time before the last one is ignored."""
        last_ms = self._times[(self._taken - 1) % self._points_max] if self._taken else None
        if last_ms is None or at_ms // self._interval_ms > last_ms // self._interval_ms:
            self._taken += 1
        elif at_ms < last_ms:
            return
        place = (self._taken - 1) % self._points_max
        self._times[place] = at_ms
        for name in values.keys() - self._columns.keys():
            self._columns[name] = array("d", [nan]) * self._points_max
        for name, column in self._columns.items():
            value = values.get(name)
            column[place] = nan if value is None else value

    @property
    def points_max(self) -> int:
        """Points that it keeps."""
        return self._points_max

    def resize(self, points_max: int, interval_ms: int) -> None:
        """Keep another number of points at another interval, of which the present ones become points.

        Of a longer interval the last point is kept. A point is repeated for each shorter interval that it stands for:
        points that are farther apart look like a time in which the agent did not run.
        """
        page = self.page()
        points = list(_lengthened(page.times_ms, interval_ms))
        if interval_ms < self._interval_ms:
            points = list(_shortened(page.times_ms, self._interval_ms, interval_ms))
        points = points[-points_max:]
        unused = points_max - len(points)
        self._times = array("q", [*(at_ms for at_ms, _ in points), *[0] * unused])
        columns = {name: [column[place] for _, place in points] for name, column in page.series.items()}
        self._columns = {
            name: array("d", [*column, *[nan] * unused])
            for name, column in columns.items()
            if not all(map(isnan, column))
        }
        self._points_max, self._interval_ms, self._taken = points_max, interval_ms, len(points)

    def page(self) -> HistoryPage:
        """Return the points, oldest first."""
        cut = self._taken % self._points_max if self._taken > self._points_max else 0
        end = min(self._taken, self._points_max)
        return HistoryPage(
            self._interval_ms,
            [*self._times[cut:end], *self._times[:cut]],
            {name: [*column[cut:end], *column[:cut]] for name, column in sorted(self._columns.items())},
        )


def _lengthened(times_ms: Sequence[int], interval_ms: int) -> Iterator[tuple[int, int]]:
    """Yield the last point of each interval, with its place among the times."""
    places = {at_ms // interval_ms: place for place, at_ms in enumerate(times_ms)}
    return ((times_ms[place], place) for place in places.values())


def _shortened(times_ms: Sequence[int], before_ms: int, interval_ms: int) -> Iterator[tuple[int, int]]:
    """Yield points at a shorter interval, with the place among the times of the point that each repeats."""
    for place, (earlier_ms, at_ms) in enumerate(pairwise((0, *times_ms))):
        since_ms = max(earlier_ms, at_ms - before_ms)
        repeats = (at_ms - since_ms - 1) // interval_ms
        yield from ((at_ms - back * interval_ms, place) for back in range(repeats, -1, -1))


class FleetHistory:
    """Histories of all models.

    Args:
        models: Number of models, which divide ``FLEET_POINTS_MAX``.
    """

    def __init__(self, models: int) -> None:
        self._models: dict[str, ModelHistory] = {}
        self.divide_among(models)

    def divide_among(self, models: int) -> None:
        """Divide the points among another number of models: if these are more, each keeps them farther apart."""
        self._points_max = max(POINTS_MIN, min(POINTS_MAX, FLEET_POINTS_MAX // max(1, models)))
        self._interval_ms = SPAN_MS // self._points_max

    @property
    def interval_ms(self) -> int:
        """Time between two points of a model."""
        return self._interval_ms

    def record(self, status: ModelStatus, at_ms: int) -> None:
        """Record the status of a model."""
        history = self._models.get(status.model)
        if history is None:
            history = self._models[status.model] = ModelHistory(self._points_max, self._interval_ms)
        elif history.points_max != self._points_max:
            history.resize(self._points_max, self._interval_ms)
        history.record(at_ms, point(status))

    def forget_others(self, models: set[str]) -> None:
        """Forget models that are no longer configured."""
        for name in self._models.keys() - models:
            del self._models[name]

    def page(self, model: str) -> HistoryPage:
        """Return the history of a model; empty if it is unknown."""
        history = self._models.get(model)
        return HistoryPage(self._interval_ms, [], {}) if history is None else history.page()
