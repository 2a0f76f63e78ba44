"""Traffic of a model as series of equal intervals, and the outlooks derived from them."""

from math import sqrt
from typing import Final

from msgspec import Struct, field

from loadline.core.engines.lengths import LengthDistribution, computed_isl, constant_length, lengths_from_histogram
from loadline.core.fleet.traffic import Traffic
from loadline.core.fleet.traffic_buckets import BUCKET_MS
from loadline.core.fleet.traffic_totals import NO_BINS, TrafficTotals
from loadline.core.planning.demand.outlook import Outlook
from loadline.core.vocabulary.forecasts import (
    DAY_MS,
    HORIZON_MAX,
    POINTS_MAX,
    Forecast,
    ForecastKnobs,
    ForecastQuery,
    History,
    Series,
)
from loadline.core.vocabulary.samples import Bins

INTERVALS_MAX: Final = POINTS_MAX
"""Number of recorded intervals, as many as a forecast query holds: eight days of three minutes."""
SERIES: Final = 3
"""Number of series: requests, ISL and OSL."""
_OBSERVED_SHARE_MIN: Final = 0.5
"""Fraction of an interval that must be observed; below it, the interval is unknown."""
_BURST_SIGMAS: Final = 3.0
"""Standard deviations above the mean at which the busiest part of an interval is a burst instead of chance."""
_PEAK_OVER_RATIO: Final = 0.5
"""Ratio of recent to expected traffic below which a peak known from one interval only is over."""
_UNFINISHED_RATIO_MAX: Final = 2.0
"""Limit on the ratio of all to finished requests in estimates of output lengths: finished ones must be half of all."""
_FALL_MAX: Final = 0.5
"""Forecast length relative to the shortest mean length of the last day, below which it is no trend that goes on."""


class Intervals(Struct):
    """Series of intervals: None is unknown, 0 is idle. An idle interval repeats the lengths of the one before."""

    interval_ms: int = 0
    busiest_ms: int = 0
    """Length of the busiest part of an interval, whose load is the load of the interval."""
    began_ms: int = -1
    """Start of the current interval, Unix ms; -1 before the first."""
    history_ends_ms: int | None = None
    """Time of day (UTC) at which the loaded history ends; None: it ends at the start of the first interval."""
    begin_totals: TrafficTotals = TrafficTotals()
    """Traffic totals at the start of the current interval."""
    requests: list[float | None] = field(default_factory=list)
    isl_tokens: list[float | None] = field(default_factory=list)
    osl_tokens: list[float | None] = field(default_factory=list)
    kv_hit_rate: float = 0.0
    """Hit rate of the newest interval with prompts."""
    decode_share: float = 1.0
    """Share of the newest interval with requests; see ``Outlook``."""
    decode_peak: float = 1.0
    """Peak of the newest interval with requests; see ``Outlook``."""
    isl_bins: Bins = NO_BINS
    osl_bins: Bins = NO_BINS
    peak_requests_per_s: float = 0.0
    """Rate of requests in the busiest part of the current interval so far."""
    peak_computed_tokens_per_s: float = 0.0
    """Rate of uncached prompt tokens in the busiest part of the current interval so far."""
    observed_at_ms: int = -1
    """Time of the last update of both peaks, Unix ms; -1 since the start of the interval."""

    def load_history(self, history: History) -> None:
        """Use a history as the intervals before the first one."""
        self.requests = list(history.requests.values[-INTERVALS_MAX:])
        self.isl_tokens = list(history.isl_tokens.values[-INTERVALS_MAX:])
        self.osl_tokens = list(history.osl_tokens.values[-INTERVALS_MAX:])
        self.history_ends_ms = history.ends_at_ms

    def begin(self, traffic: Traffic, now: int) -> None:
        """Begin the first interval; fill the time since the end of the history with the load of the day before."""
        self.began_ms, self.begin_totals = now, traffic.totals
        if self.history_ends_ms is not None:
            missing = (now - self.history_ends_ms) % DAY_MS // self.interval_ms
            for series in (self.requests, self.isl_tokens, self.osl_tokens):
                begin = max(0, len(series) - DAY_MS // self.interval_ms)
                series.extend(series[begin : begin + missing])
                del series[:-INTERVALS_MAX]

    def observe(self, traffic: Traffic, now: int) -> None:
        """Update the peaks of the current interval at ``now`` (ms)."""
        since_ms, before_ms = now - self.busiest_ms, self.observed_at_ms - self.busiest_ms
        if traffic.reported_at_ms < self.observed_at_ms and since_ms // BUCKET_MS == before_ms // BUCKET_MS:
            return  # the buckets are unchanged: a model is planned at each report of a worker
        self.observed_at_ms = now
        recent = traffic.recent_arrivals(self.busiest_ms, now)
        if recent.observed_ms >= self.busiest_ms - BUCKET_MS:
            rate = recent.requests_per_s
            self.peak_requests_per_s = max(self.peak_requests_per_s, rate)
            computed = computed_isl(recent.isl_tokens or 0.0, recent.kv_hit_rate)
            self.peak_computed_tokens_per_s = max(self.peak_computed_tokens_per_s, rate * computed)

    @property
    def ends_ms(self) -> int:
        """End of the current interval, Unix ms."""
        return self.began_ms + self.interval_ms

    def current_totals(self, traffic: Traffic) -> TrafficTotals:
        """Return the totals of the current interval so far."""
        return traffic.totals.since(self.begin_totals)

    def close(self, traffic: Traffic, now: int) -> TrafficTotals:
        """End the current interval and all others before ``now`` (ms).

        After a pause over several intervals the traffic cannot be divided among them: they are unknown.

        Returns:
            The totals of the current interval.
        """
        totals = self.current_totals(traffic)
        ended = (now - self.began_ms) // self.interval_ms
        known = ended == 1 and totals.observed_ms >= _OBSERVED_SHARE_MIN * self.interval_ms
        for _ in range(min(ended, INTERVALS_MAX)):
            self.requests.append(self._peak_rate(totals) * self.interval_ms / 1_000.0 if known else None)
            self.isl_tokens.append(_known_or_last(totals.isl_tokens.value, self.isl_tokens))
            self.osl_tokens.append(_known_or_last(_osl_tokens(totals, traffic.outstanding(now)), self.osl_tokens))
        if known and totals.arrivals:
            self.isl_bins, self.osl_bins = totals.isl_bins, totals.osl_bins
            self.kv_hit_rate = totals.kv_hit_rate
            highest = max(totals.requests_per_s, self.peak_requests_per_s)
            # The part of the peak that chance does not explain is a variation of the load itself.
            chance = _BURST_SIGMAS / sqrt(max(highest * self.busiest_ms / 1_000.0, 1.0))
            usual = max(totals.requests_per_s, highest * (1.0 - chance))
            self.decode_share, self.decode_peak = highest / self._peak_rate(totals), highest / usual
        for series in (self.requests, self.isl_tokens, self.osl_tokens):
            del series[:-INTERVALS_MAX]
        self.began_ms += ended * self.interval_ms
        self.begin_totals = traffic.totals
        self.peak_requests_per_s = self.peak_computed_tokens_per_s = 0.0
        self.observed_at_ms = -1
        return totals

    def _peak_rate(self, totals: TrafficTotals) -> float:
        """Return the rate of the busiest part in requests/s, where one request is one mean prefill."""
        isl = computed_isl(totals.isl_tokens.value or 0.0, totals.kv_hit_rate)
        by_tokens = self.peak_computed_tokens_per_s / isl if isl else 0.0
        return max(totals.requests_per_s, self.peak_requests_per_s, by_tokens)

    def queries(self, ahead_ms: float, knobs: ForecastKnobs) -> list[ForecastQuery]:
        """Return forecast queries for requests, ISL and OSL until ``ahead_ms`` after the last interval."""
        horizon = min(HORIZON_MAX, max(1, -int(-ahead_ms // self.interval_ms)))
        return [
            ForecastQuery(Series(tuple(values), self.interval_ms, self.began_ms), horizon, knobs)
            for values in (self.requests, self.isl_tokens, self.osl_tokens)
        ]

    def last_outlook(self) -> Outlook | None:
        """Return the newest interval as an outlook; None if it is unknown."""
        if not self.requests or self.requests[-1] is None:
            return None
        return self._outlook(self.requests[-1], self.isl_tokens[-1], self.osl_tokens[-1])

    def measured_outlook(self, traffic: Traffic, window_ms: int, before: Outlook | None, now: int) -> Outlook:
        """Return the traffic of the last ``window_ms`` as an outlook; what it leaves unknown is taken from ``before``.

        During the first interval, the rate is that of its busiest part, since no other is known. The output length is
        that of the current interval, since it is known only after a request has finished. Prompts longer than expected
        raise the rate, as in an interval: recent arrivals are work for prefill, and few of them decode yet.
        """
        recent = traffic.recent_arrivals(window_ms, now)
        osl = _osl_tokens(self.current_totals(traffic), traffic.outstanding(now))
        isl, hit_rate = recent.isl_tokens, recent.kv_hit_rate
        if before is None:
            return Outlook(recent.requests_per_s, isl, osl, hit_rate)
        if isl is None:
            isl, hit_rate = before.isl_tokens, before.kv_hit_rate
        if not self.requests:
            # The first interval ends with the rate of its busiest part, so no lower rate is used before.
            highest = max(recent.requests_per_s, self.peak_requests_per_s or before.requests_per_s)
            return Outlook(highest, isl, osl or before.osl_tokens, hit_rate)
        isl_ratio = max(1.0, (isl or 0.0) / (before.isl_tokens or isl or 1.0))
        isl = isl and isl / isl_ratio
        osl = before.osl_tokens or osl
        return Outlook(recent.requests_per_s * isl_ratio, isl, osl, hit_rate, 1.0 / isl_ratio, self.decode_peak)

    def is_peak_over(self, expected: Outlook, traffic: Traffic, window_ms: int, now: int) -> bool:
        """Return True if traffic of the last ``window_ms`` is far below an outlook that is based on one interval."""
        recent = traffic.recent_arrivals(window_ms, now)
        newest = self.last_outlook() if self.requests else expected
        if newest is None or len(self.requests) > 1 or recent.observed_ms < window_ms - BUCKET_MS:
            return False
        return recent.requests_per_s < _PEAK_OVER_RATIO * min(expected.requests_per_s, newest.requests_per_s)

    def plausible_minimums(self) -> tuple[float, float]:
        """Return the ISL and OSL (tokens) below which a forecast is implausible; 0 for one that is unknown."""
        newest = slice(-max(1, DAY_MS // self.interval_ms), None)
        isl, osl = (
            min((tokens for tokens in series[newest] if tokens is not None and tokens > 0.0), default=0.0)
            for series in (self.isl_tokens, self.osl_tokens)
        )
        return _FALL_MAX * isl, _FALL_MAX * osl

    def forecast_outlook(
        self, forecasts: list[Forecast | None], first: int, last: int, *, upper: bool
    ) -> Outlook | None:
        """Return the busiest of the forecast intervals ``first`` to ``last``; None without a forecast.

        After the end of the forecast, its last interval continues.
        """
        requests, *lengths = forecasts if len(forecasts) == SERIES else (None,)
        if requests is None:
            return None
        values = requests.upper if upper else requests.mean
        busiest = max(range(min(first, len(values) - 1), min(last + 1, len(values))), key=values.__getitem__)
        isl, osl = (None if one is None else one.mean[busiest] for one in lengths)
        return self._outlook(values[busiest], isl, osl)

    def _outlook(self, requests: float, isl: float | None, osl: float | None) -> Outlook:
        return Outlook(
            requests * 1_000.0 / self.interval_ms, isl, osl, self.kv_hit_rate, self.decode_share, self.decode_peak
        )

    def lengths(self, outlook: Outlook, traffic: Traffic) -> tuple[LengthDistribution, LengthDistribution] | None:
        """Return the distributions of ISL and OSL with the means of an outlook; None if a mean is unknown.

        Without reported histograms, all lengths equal the mean.
        """
        if outlook.isl_tokens is None or outlook.osl_tokens is None:
            return None
        bins = self if self.isl_bins.bounds else self.current_totals(traffic)
        isl_bins, osl_bins = bins.isl_bins, bins.osl_bins
        isl = lengths_from_histogram(isl_bins, outlook.isl_tokens) or constant_length(outlook.isl_tokens)
        osl = lengths_from_histogram(osl_bins, outlook.osl_tokens) or constant_length(outlook.osl_tokens)
        return isl, osl


def _osl_tokens(totals: TrafficTotals, outstanding: int) -> float | None:
    """Return the mean output length of an interval; None if no request finished.

    While more requests arrive than finish, as after a start, those that have finished are the shorter ones. Each
    outstanding request adds the mean to their sum, for at most as many requests as have finished. Cancelled requests
    are neither finished nor outstanding.
    """
    mean = totals.osl_tokens.value
    if mean is None:
        return None
    unfinished = max(0, min(totals.arrivals - totals.completed, outstanding))
    return mean * min(1.0 + unfinished / totals.completed, _UNFINISHED_RATIO_MAX)


def _known_or_last(value: float | None, series: list[float | None]) -> float | None:
    if value is not None:
        return value
    return series[-1] if series else None
