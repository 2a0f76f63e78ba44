"""Demand of a model: from traffic intervals and forecasts to the load that pools are sized for."""

from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from loadline.core.engines.lengths import constant_length
from loadline.core.fleet.fleet import Model
from loadline.core.fleet.traffic_totals import TrafficTotals
from loadline.core.planning.demand.forecast_record import ExpectedArrivals, ForecastRecord
from loadline.core.planning.demand.intervals import Intervals
from loadline.core.planning.demand.knobs import TrafficKnobs
from loadline.core.planning.demand.outlook import Outlook, TrafficLoad
from loadline.core.planning.demand.pending_forecast import PendingForecast
from loadline.core.planning.demand.surge import SurgeDetector, covers
from loadline.core.planning.recommendation import WAKE_MS
from loadline.core.vocabulary.forecasts import History

_SIZING_INTERVAL_MIN_MS: Final = 10_000
"""Minimum time between two sizings: traffic hardly changes within less."""
_NO_LENGTH: Final = constant_length(0.0)


class DemandUpdate(Struct, frozen=True):
    """Result of an update of the demand."""

    ended: TrafficTotals | None = None
    """Totals of the interval that has just ended; None if none has."""
    is_new_forecast: bool = False
    load: TrafficLoad | None = None
    """Load to size the pools for; None: the pools keep their sizes."""


class DemandTracker(Struct):
    """Intervals of the traffic, forecasts of the next ones, and the outlook that the pools are sized for."""

    intervals: Intervals = field(default_factory=Intervals)
    forecast: PendingForecast = field(default_factory=PendingForecast)
    surge: SurgeDetector = field(default_factory=SurgeDetector)
    record: ForecastRecord = field(default_factory=ForecastRecord)
    start_up_ms: int = -1
    """Longest start-up time of all pools, each as observed or else as configured; -1 before the first update."""
    size_at_ms: int = 0
    """Time of the next sizing for the newest forecast."""
    next_ms: int = 0
    """Time of the next update."""

    def configure(self, knobs: TrafficKnobs) -> None:
        """Apply knobs; another interval length starts a new series, while the pools keep their sizes."""
        if self.start_up_ms < 0:
            self.start_up_ms = knobs.start_up_ms
        interval_ms = knobs.throughput_adjustment_interval_ms
        self.intervals.busiest_ms = knobs.busiest_ms
        if self.intervals.interval_ms != interval_ms:
            self.intervals = Intervals(interval_ms, knobs.busiest_ms)
            self.forecast = PendingForecast(request=self.forecast.request)  # its pending request is for the old series
            self.record.restart()

    def warm_up(self, history: History) -> None:
        """Use a history as the intervals before the first one."""
        self.intervals.load_history(history)

    @property
    def outlook(self) -> Outlook | None:
        """Traffic that the pools are sized for; None before the first sizing."""
        return self.surge.outlook

    @property
    def next_sizing_ms(self) -> int:
        """Time of the next sizing, or of the next forecast before the first; surges and forecasts may come earlier."""
        return self.size_at_ms if self.forecast.begins_ms >= 0 else self.intervals.ends_ms

    @property
    def inputs(self) -> dict[str, float]:
        """Start-up time and outlook, for the inputs of a recommendation."""
        return {"start_up_ms": float(self.start_up_ms)} | ({} if self.outlook is None else self.outlook.inputs)

    def update(self, model: Model, knobs: TrafficKnobs, now: int) -> DemandUpdate:
        """Record the traffic until ``now`` (ms), and return the load if a sizing is due."""
        self.next_ms = now + WAKE_MS
        self.start_up_ms = max(pool.start_up_ms(knobs.start_up_ms) for pool in model.pools.values())
        intervals = self.intervals
        if intervals.began_ms < 0:
            intervals.begin(model.traffic, now)
            if intervals.requests:  # there is a history to forecast from
                self._request_forecast(knobs)
        intervals.observe(model.traffic, now)
        ended = None
        if now >= intervals.ends_ms:
            ended = intervals.close(model.traffic, now)
            self._compare_forecasts()
            self._request_forecast(knobs)
        self.next_ms = min(self.next_ms, intervals.ends_ms)
        if not model.traffic.is_reporting(now):
            return DemandUpdate(ended)
        is_new = self.forecast.is_unread
        if is_new:
            self._record_forecast(now)
            self.forecast.raise_lengths(*intervals.plausible_minimums())
        if is_new or (self.forecast.begins_ms >= 0 and now >= self.size_at_ms):
            outlook = self._forecast_outlook(model, knobs, now)
            return DemandUpdate(ended, is_new, None if outlook is None else self._load(outlook, model, now))
        if self.surge.is_surge(model.traffic, knobs.surge_window_ms, now, is_first_interval=not intervals.requests):
            before = self.outlook or intervals.last_outlook()
            outlook = intervals.measured_outlook(model.traffic, knobs.surge_window_ms, before, now)
            return DemandUpdate(ended, load=self._load(outlook, model, now, is_surge=True))
        return DemandUpdate(ended)

    def current_load(self, model: Model, now: int) -> TrafficLoad | None:
        """Return the load of the last sizing as a surge, which only adds workers; None before the first sizing."""
        return None if self.outlook is None else self._load(self.outlook, model, now, is_surge=True)

    def is_peak_over(self, model: Model, window_ms: int, now: int) -> bool:
        """Return True if the pools are sized for a peak that has passed, so that no pool should grow for it."""
        return self.outlook is not None and self.intervals.is_peak_over(self.outlook, model.traffic, window_ms, now)

    def sizing_interval_ms(self, knobs: TrafficKnobs) -> int:
        """Return the time between sizings: the start-up time, as earlier requests for workers gain nothing."""
        return min(knobs.throughput_adjustment_interval_ms, max(_SIZING_INTERVAL_MIN_MS, self.start_up_ms))

    def _request_forecast(self, knobs: TrafficKnobs) -> None:
        """Request forecasts for the horizon of all sizings before the next answer."""
        ahead_ms = self.intervals.interval_ms + self._horizon_ms(knobs)
        self.forecast.request_forecasts(self.intervals.queries(ahead_ms, knobs.forecast))

    def _horizon_ms(self, knobs: TrafficKnobs) -> int:
        """Return the time until the workers of the next sizing are ready, which this sizing must cover."""
        return self.start_up_ms + self.sizing_interval_ms(knobs)

    def _forecast_outlook(self, model: Model, knobs: TrafficKnobs, now: int) -> Outlook | None:
        """Return the outlook of the newest forecast, or of the last interval; None if neither is known."""
        forecast, intervals = self.forecast, self.intervals
        forecast.is_unread, self.size_at_ms = False, now + self.sizing_interval_ms(knobs)
        first, last = forecast.interval_range(now, self._horizon_ms(knobs), intervals.interval_ms)
        outlook = intervals.forecast_outlook(forecast.forecasts, first, last, upper=knobs.demand == "upper")
        outlook = outlook or intervals.last_outlook()
        if outlook is None:
            return None
        # The rate over the whole window of a minute is at least as good a prediction as a lower forecast.
        recent = model.traffic.recent_arrivals(model.traffic.window_ms, now)
        if covers(recent, knobs.surge_window_ms) and recent.requests_per_s > outlook.requests_per_s:
            return replace(outlook, requests_per_s=recent.requests_per_s)
        return outlook

    def _record_forecast(self, now: int) -> None:
        """Record the newest forecast for the interval in which a worker requested now is ready."""
        requests = next(iter(self.forecast.forecasts), None)
        if requests is not None:
            interval_ms = self.intervals.interval_ms
            _, ready = self.forecast.interval_range(now, self.start_up_ms, interval_ms)
            index = min(max(ready, 0), len(requests.mean) - 1)
            from_ms = self.forecast.begins_ms + index * interval_ms
            rate = requests.mean[index] * 1_000.0 / interval_ms
            self.record.expect(ExpectedArrivals(from_ms, from_ms + interval_ms, rate), self.start_up_ms)

    def _compare_forecasts(self) -> None:
        """Compare the forecast for the interval that has just ended, if the interval was observed."""
        intervals = self.intervals
        for forecast in self.record.ended(intervals.began_ms):
            observed = intervals.requests[-1]
            if observed is not None:  # it is None if several intervals have ended
                self.record.compare(forecast, observed * 1_000.0 / intervals.interval_ms)

    def _load(self, outlook: Outlook, model: Model, now: int, *, is_surge: bool = False) -> TrafficLoad | None:
        """Return the load of an outlook; None while its lengths are unknown, since no request has finished."""
        lengths = self.intervals.lengths(outlook, model.traffic)
        if lengths is None and outlook.requests_per_s > 0.0:
            return None
        self.surge.record_sizing(outlook, None if lengths is None else lengths[0], now)
        isl, osl = lengths or (_NO_LENGTH, _NO_LENGTH)
        return TrafficLoad(outlook, isl, osl, is_surge)
