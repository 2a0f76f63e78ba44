"""Base of planners that size for the traffic of a model."""

from typing import Any

from msgspec import field

from loadline.core.planning.demand.knobs import TrafficKnobs
from loadline.core.planning.demand.tracker import DemandTracker
from loadline.core.planning.planner import ForecastRequest, Planner
from loadline.core.vocabulary.events import ForecastFailed, ForecastFitted
from loadline.core.vocabulary.forecasts import History


class TrafficPlanner(Planner):
    """Planner with a ``DemandTracker``, to which it passes settings, the history and forecasts.

    A subclass updates ``demand`` in ``plan``, and sizes the pools when the update contains a load.
    """

    demand: DemandTracker = field(default_factory=DemandTracker)

    def __post_init__(self) -> None:
        self.demand.configure(self._traffic_knobs)

    @property
    def _traffic_knobs(self) -> TrafficKnobs:
        knobs = self.traffic_knobs(self.knobs)
        assert knobs is not None  # noqa: S101 - every subclass returns them
        return knobs

    def on_settings_change(self, before: Any) -> None:  # noqa: ARG002 - the tracker compares them itself
        """Apply the knobs to the tracker."""
        self.demand.configure(self._traffic_knobs)

    def warm_up(self, history: History) -> None:
        """Use a history for the forecasts of the first update."""
        self.demand.warm_up(history)

    def next_wake(self) -> int:
        """Return the end of the interval, or the next check for stale workers."""
        return self.demand.next_ms

    def resume_requests_from(self, requests: int) -> None:
        """Number forecast requests after those of an earlier planner."""
        self.demand.forecast.request = requests

    def forecast_request(self) -> ForecastRequest | None:
        """Return the request for forecasts of the next intervals, if it was not returned before."""
        return self.demand.forecast.forecast_request()

    def ingest_forecast(self, answer: ForecastFitted | ForecastFailed) -> None:
        """Record the answer to the pending request; ignore outdated answers."""
        self.demand.forecast.ingest_forecast(answer)
