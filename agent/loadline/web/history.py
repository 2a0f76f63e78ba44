"""History of the charts: the last hour of each model, in rings of fixed size."""

from array import array
from math import nan
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
    """Ring of the points of one model.

    Args:
        points_max: Points that it keeps.
        interval_ms: Time between two points; the last value within an interval is kept.
    """

    def __init__(self, points_max: int, interval_ms: int) -> None:
        self._points_max = points_max
        self._interval_ms = interval_ms
        self._times = array("q")
        self._columns: dict[str, array[float]] = {}
        self._next = 0

    def record(self, at_ms: int, values: dict[str, float | None]) -> None:
        """Record the values of a time; a time before the last one is ignored."""
        last = self._times[self._next - 1] if self._times else None
        if last is not None and at_ms // self._interval_ms <= last // self._interval_ms:
            place = self._next - 1
            if at_ms < last:
                return
        else:
            place = self._take_place()
        self._times[place] = at_ms
        for name in values.keys() - self._columns.keys():
            self._columns[name] = array("d", [nan] * len(self._times))
        for name, column in self._columns.items():
            value = values.get(name)
            column[place] = nan if value is None else value

    def page(self) -> HistoryPage:
        """Return the points, oldest first."""
        cut = self._next if len(self._times) == self._points_max else 0
        return HistoryPage(
            self._interval_ms,
            [*self._times[cut:], *self._times[:cut]],
            {name: [*column[cut:], *column[:cut]] for name, column in sorted(self._columns.items())},
        )

    def _take_place(self) -> int:
        """Return the place of a new point: at the end, or that of the oldest point."""
        if len(self._times) < self._points_max:
            self._times.append(0)
            for column in self._columns.values():
                column.append(nan)
            self._next = len(self._times)
        else:
            self._next = self._next % self._points_max + 1
        return self._next - 1


class FleetHistory:
    """Histories of all models.

    Args:
        models: Number of models, which divide ``FLEET_POINTS_MAX``.
    """

    def __init__(self, models: int) -> None:
        self._points_max = max(POINTS_MIN, min(POINTS_MAX, FLEET_POINTS_MAX // max(1, models)))
        self._interval_ms = SPAN_MS // self._points_max
        self._models: dict[str, ModelHistory] = {}

    def record(self, status: ModelStatus, at_ms: int) -> None:
        """Record the status of a model."""
        history = self._models.get(status.model)
        if history is None:
            history = self._models[status.model] = ModelHistory(self._points_max, self._interval_ms)
        history.record(at_ms, point(status))

    def forget_others(self, models: set[str]) -> None:
        """Forget models that are no longer configured."""
        for name in self._models.keys() - models:
            del self._models[name]

    def page(self, model: str) -> HistoryPage:
        """Return the history of a model; empty if it is unknown."""
        history = self._models.get(model)
        return HistoryPage(self._interval_ms, [], {}) if history is None else history.page()
