"""The traffic of a model as series of equal intervals, and the questions about its future."""

from math import sqrt
from typing import Final

from msgspec import Struct, field

from loadline.core.engines.lengths import LengthDistribution, computed_isl, constant_length, lengths_from_histogram
from loadline.core.fleet.traffic import BUCKET_MS, Traffic
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
from loadline.core.vocabulary.samples import Histogram

KEPT: Final = POINTS_MAX
"""Intervals that are remembered, as many as a question holds: eight days of three minutes."""
SERIES: Final = 3
"""Requests, ISL and OSL."""
HEARD_LEAST: Final = 0.5
"""Share of an interval that must have been heard: of less it is not known what it was."""
_BURST_SIGMAS: Final = 3.0
"""The busiest part of an interval is by chance so many standard deviations above its mean at most; above is a burst."""
_FAR_LESS: Final = 0.5
"""Share of what is expected: where less comes than that, a peak that is all there is to go by is over."""
_UNENDED_MAX: Final = 2.0
"""Where fewer than half of the requests have ended, or say so, nothing is concluded of the others."""


class Intervals(Struct):
    """What was, interval by interval: None is unknown, 0 is idle. Lengths are carried through idle intervals."""

    interval_ms: int = 0
    busiest_ms: int = 0
    """An interval counts as busy as this long a part of it was at its busiest."""
    began_ms: int = -1
    """When the interval under way began; -1 before the first."""
    recalled_end_ms: int | None = None
    """Time of day, UTC, at which the past ends that it starts with; None: when the first interval begins."""
    mark: TrafficTotals = TrafficTotals()
    requests: list[float | None] = field(default_factory=list)
    isl_tokens: list[float | None] = field(default_factory=list)
    osl_tokens: list[float | None] = field(default_factory=list)
    kv_hit_rate: float = 0.0
    """Of the newest interval that had prompts."""
    decode_share: float = 1.0
    """Of the newest interval that had requests: see ``Outlook``."""
    decode_peak: float = 1.0
    isl_bins: Histogram = NO_BINS
    osl_bins: Histogram = NO_BINS
    peak_requests_per_s: float = 0.0
    peak_computed_tokens_per_s: float = 0.0
    """Prompt tokens that no prefix cache had."""
    noted_ms: int = -1
    """When these two were last seen to; -1 since the interval began."""

    def recall(self, history: History) -> None:
        """Take this for what was before the first interval, whenever that begins."""
        self.requests = list(history.requests.values[-KEPT:])
        self.isl_tokens = list(history.isl_tokens.values[-KEPT:])
        self.osl_tokens = list(history.osl_tokens.values[-KEPT:])
        self.recalled_end_ms = history.ends_at_ms

    def begin(self, traffic: Traffic, now: int) -> None:
        """Begin the first interval. From the end of the past that was recalled until now load was as a day before."""
        self.began_ms, self.mark = now, traffic.totals
        if self.recalled_end_ms is not None:
            missing = (now - self.recalled_end_ms) % DAY_MS // self.interval_ms
            for series in (self.requests, self.isl_tokens, self.osl_tokens):
                begin = max(0, len(series) - DAY_MS // self.interval_ms)
                series.extend(series[begin : begin + missing])
                del series[:-KEPT]

    def note(self, traffic: Traffic, now: int) -> None:
        """See whether the interval under way is busier now than it was before."""
        since_ms, before_ms = now - self.busiest_ms, self.noted_ms - self.busiest_ms
        if traffic.reported_at_ms < self.noted_ms and since_ms // BUCKET_MS == before_ms // BUCKET_MS:
            return  # the same buckets, and nothing new in them: a model is planned for each report of its workers
        self.noted_ms = now
        recent = traffic.recent_arrivals(self.busiest_ms, now)
        if recent.observed_ms >= self.busiest_ms - BUCKET_MS:
            rate = recent.requests_per_s
            self.peak_requests_per_s = max(self.peak_requests_per_s, rate)
            computed = computed_isl(recent.isl_tokens or 0.0, recent.kv_hit_rate)
            self.peak_computed_tokens_per_s = max(self.peak_computed_tokens_per_s, rate * computed)

    @property
    def ends_ms(self) -> int:
        """When the interval under way ends."""
        return self.began_ms + self.interval_ms

    def so_far(self, traffic: Traffic) -> TrafficTotals:
        """What the interval under way has had."""
        return traffic.totals.since(self.mark)

    def close(self, traffic: Traffic, now: int) -> TrafficTotals:
        """End the interval under way, and all others that have ended; gives what it had.

        Where nobody looked for several intervals, what came belongs to none of them: they are unknown.
        """
        had = self.so_far(traffic)
        over = (now - self.began_ms) // self.interval_ms
        known = over == 1 and had.observed_ms >= HEARD_LEAST * self.interval_ms
        for _ in range(min(over, KEPT)):
            self.requests.append(self._busiest(had) * self.interval_ms / 1_000.0 if known else None)
            self.isl_tokens.append(_carried(self.isl_tokens, had.isl_tokens.value))
            self.osl_tokens.append(_carried(self.osl_tokens, _osl_tokens(had, traffic.outstanding(now))))
        if known and had.arrivals:
            self.isl_bins, self.osl_bins = had.isl_bins, had.osl_bins
            self.kv_hit_rate = had.kv_hit_rate
            most = max(had.requests_per_s, self.peak_requests_per_s)
            # What is beyond chance swings by itself.
            chance = _BURST_SIGMAS / sqrt(max(most * self.busiest_ms / 1_000.0, 1.0))
            usual = max(had.requests_per_s, most * (1.0 - chance))
            self.decode_share, self.decode_peak = most / self._busiest(had), most / usual
        for series in (self.requests, self.isl_tokens, self.osl_tokens):
            del series[:-KEPT]
        self.began_ms += over * self.interval_ms
        self.mark = traffic.totals
        self.peak_requests_per_s = self.peak_computed_tokens_per_s = 0.0
        self.noted_ms = -1
        return had

    def _busiest(self, had: TrafficTotals) -> float:
        """Requests a second of the busiest part, where those of mean prefill work count as one."""
        isl = computed_isl(had.isl_tokens.value or 0.0, had.kv_hit_rate)
        by_tokens = self.peak_computed_tokens_per_s / isl if isl else 0.0
        return max(had.requests_per_s, self.peak_requests_per_s, by_tokens)

    def questions(self, ahead_ms: float, knobs: ForecastKnobs) -> list[ForecastQuery]:
        """How many requests, and of which lengths, in all intervals until ``ahead_ms`` after the last one."""
        horizon = min(HORIZON_MAX, max(1, -int(-ahead_ms // self.interval_ms)))
        return [
            ForecastQuery(Series(tuple(values), self.interval_ms, self.began_ms), horizon, knobs)
            for values in (self.requests, self.isl_tokens, self.osl_tokens)
        ]

    def last(self) -> Outlook | None:
        """As in the newest interval; None where that is not known."""
        if not self.requests or self.requests[-1] is None:
            return None
        return self._outlook(self.requests[-1], self.isl_tokens[-1], self.osl_tokens[-1])

    def measured(self, traffic: Traffic, window_ms: int, before: Outlook | None, now: int) -> Outlook:
        """As it has been for ``window_ms``; what that does not tell is as ``before``.

        In the first interval it is as it was at its busiest, for who has just started knows nothing else. Outputs are
        known when they end: their length is that of the interval. Prompts that are longer than expected count for more,
        as in an interval: what has come for seconds is work for prefill, and little of what decodes.
        """
        recent = traffic.recent_arrivals(window_ms, now)
        osl = _osl_tokens(self.so_far(traffic), traffic.outstanding(now))
        isl, hit_rate = recent.isl_tokens, recent.kv_hit_rate
        if before is None:
            return Outlook(recent.requests_per_s, isl, osl, hit_rate)
        if isl is None:
            isl, hit_rate = before.isl_tokens, before.kv_hit_rate
        if not self.requests:
            # Of the first interval its busiest part counts at its end: until then nothing less does.
            most = max(recent.requests_per_s, self.peak_requests_per_s or before.requests_per_s)
            return Outlook(most, isl, osl or before.osl_tokens, hit_rate)
        longer = max(1.0, (isl or 0.0) / (before.isl_tokens or isl or 1.0))
        isl = isl and isl / longer
        osl = before.osl_tokens or osl
        return Outlook(recent.requests_per_s * longer, isl, osl, hit_rate, 1.0 / longer, self.decode_peak)

    def is_peak_over(self, expected: Outlook, traffic: Traffic, window_ms: int, now: int) -> bool:
        """Whether far less has come for ``window_ms`` than at the peak of the one interval by which it is expected."""
        recent, seen = traffic.recent_arrivals(window_ms, now), self.last() if self.requests else expected
        if seen is None or len(self.requests) > 1 or recent.observed_ms < window_ms - BUCKET_MS:
            return False
        return recent.requests_per_s < _FAR_LESS * min(expected.requests_per_s, seen.requests_per_s)

    def outlook(self, forecasts: list[Forecast | None], first: int, last: int, *, upper: bool) -> Outlook | None:
        """The busiest of the forecast intervals ``first`` to ``last``; None where it is not known.

        Beyond the end of the forecast its last interval stands for all.
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
        """ISL and OSL as distributions of those means, where frontends report any; None where a mean is not known."""
        if outlook.isl_tokens is None or outlook.osl_tokens is None:
            return None
        now = self.so_far(traffic) if not self.isl_bins.bounds else None
        isl_bins, osl_bins = (now.isl_bins, now.osl_bins) if now is not None else (self.isl_bins, self.osl_bins)
        isl = lengths_from_histogram(isl_bins, outlook.isl_tokens) or constant_length(outlook.isl_tokens)
        osl = lengths_from_histogram(osl_bins, outlook.osl_tokens) or constant_length(outlook.osl_tokens)
        return isl, osl


def _osl_tokens(had: TrafficTotals, under_way: int) -> float | None:
    """Mean length of the outputs of an interval; None where none ended.

    Outputs that last are not among those that have ended yet: while more requests come than end, as they do after a
    start, what has ended is too short. What is still under way is taken for as long so far, for at most as many as have
    ended. What was cancelled has not ended, and is not under way either.
    """
    ended = had.osl_tokens.value
    if ended is None:
        return None
    unended = max(0, min(had.arrivals - had.completed, under_way))
    return ended * min(1.0 + unended / had.completed, _UNENDED_MAX)


def _carried(before: list[float | None], value: float | None) -> float | None:
    if value is not None:
        return value
    return before[-1] if before else None
