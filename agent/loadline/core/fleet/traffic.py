"""Traffic of one model, from the reports of its frontends: rates and lengths over a rolling window."""

from bisect import bisect_left, bisect_right
from math import sqrt
from operator import attrgetter
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from loadline.core.fleet.traffic_buckets import BUCKET_MS, TrafficBucket
from loadline.core.fleet.traffic_totals import TrafficTotals, hit_rate
from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.rejections import Rejection
from loadline.core.vocabulary.samples import TrafficSample
from loadline.core.vocabulary.status import TrafficStatus

_OUTLIER_RATIO: Final = 10.0
"""Largest ratio of a reported mean length to the mean of the window before it. It bounds the weight of a wrong report;
if requests do become longer, the bound grows by a sixth per second."""
_SMALL_RATE: Final = 1_000
"""Requests per second up to which a report is never an outlier; above, the same ratio bounds its rate."""
_SHORT_TOKENS: Final = 1_000.0
"""Length in tokens up to which a report is never an outlier, since the work is small."""
_SIGNIFICANT: Final = 100
"""Requests in the window below which its mean length is not significant."""
_at_ms = attrgetter("at_ms")


class FrontendTraffic(Struct):
    """The newest report of one frontend."""

    incarnation: int
    sequence: int
    seen_at_ms: int
    queued: int
    in_flight: int
    fresh_until_ms: int
    """Time until which the frontend counts as reporting."""


class RecentArrivals(Struct, frozen=True):
    """Arrivals within a short span."""

    observed_ms: int
    """Part of the span covered by reports, in ms."""
    arrivals: int
    isl_sum: float
    isl_count: int
    cached_sum: float
    """Part of ``isl_sum`` found in prefix caches."""
    observed_seconds: int
    """Seconds with reports."""
    computed_squares: float
    """Sum over these seconds of the squared prompt tokens to compute."""

    @property
    def requests_per_s(self) -> float:
        """Rate of arrivals; 0 if unknown."""
        return self.arrivals * 1_000.0 / self.observed_ms if self.observed_ms else 0.0

    @property
    def isl_tokens(self) -> float | None:
        """Mean length of the prompts; None if unknown."""
        return _mean(self.isl_sum, self.isl_count)

    @property
    def kv_hit_rate(self) -> float:
        """Fraction (0..1) of prompt tokens found in prefix caches; 0 if unknown."""
        return hit_rate(self.cached_sum, self.isl_sum)

    @property
    def computed_relative_error(self) -> float:
        """Relative standard error of the sum of prompt tokens to compute, from its variance between seconds.

        1 for a single second, for which the variance is unknown, and if all tokens arrived in one of many seconds.
        """
        computed = self.isl_sum - self.cached_sum
        if self.observed_seconds < 2 or computed <= 0.0:  # noqa: PLR2004 - a variance needs two values
            return 1.0
        n = float(self.observed_seconds)
        return sqrt(max(0.0, self.computed_squares - computed * computed / n) * n / (n - 1.0)) / computed


class RecentLatencies(Struct, frozen=True):
    """Means of the requests that completed within a short span; None if unknown."""

    ttft_ms: float | None
    itl_ms: float | None
    osl_tokens: float | None


def _mean(total: float, count: int) -> float | None:
    return total / count if count else None


def _bounded(tokens: float | None, total: float, count: int) -> float | None:
    """Return a mean length, bounded by the ``count`` lengths of the window with a sum of ``total``."""
    if tokens is None or count < _SIGNIFICANT:
        return tokens
    return min(tokens, max(_SHORT_TOKENS, _OUTLIER_RATIO * total / count))


def _reduced(sample: TrafficSample, arrivals: int, completed: int) -> TrafficSample:
    """Return a report of fewer requests, of which as large a part met the objectives."""
    part = completed / sample.completed if sample.completed else 0.0
    met = {
        name: None if count is None else round(count * part)
        for name, count in (("ttft_met", sample.ttft_met), ("itl_met", sample.itl_met), ("both_met", sample.both_met))
    }
    return replace(sample, arrivals=arrivals, completed=completed, **met)


class Traffic(Struct):
    """Traffic of one model over ``window_ms``."""

    window_ms: int
    frontends_max: int
    stale_after_ms: int
    first_reported_at_ms: int = -1
    buckets: list[TrafficBucket] = []
    frontends: dict[str, FrontendTraffic] = {}
    totals: TrafficTotals = TrafficTotals()
    reported_at_ms: int = -1
    """Time of the last accepted report; -1 before the first."""
    fresh_until_ms: int = -1
    """Time until which at least one frontend counts as reporting."""
    refused_at_ms: int = -1
    """Time of the last refused report; -1: none."""
    refused_requests_at_ms: int = -1
    """Time of the last refused report that contained requests; -1: none."""

    def apply_settings(self, window_ms: int, frontends_max: int, stale_after_ms: int) -> None:
        """Apply new settings."""
        self.window_ms, self.frontends_max, self.stale_after_ms = window_ms, frontends_max, stale_after_ms

    def ingest(self, event: TrafficReported, now: int) -> Rejection | None:
        """Add a report; return the reason for refusing it if it is repeated or there are too many live frontends."""
        sample = event.sample
        known = self.frontends.get(event.frontend)
        refused = self._refusal(event, known, now)
        if refused is not None:
            self.refused_at_ms = now
            if sample.arrivals or sample.queued or sample.in_flight:
                self.refused_requests_at_ms = now
            return refused
        sample, covered_ms = self._accepted_part(sample, None if known is None else now - known.seen_at_ms, now)
        # Two intervals, since one report may be lost, but at most the window (1 min).
        fresh_until_ms = now + max(self.stale_after_ms, min(2 * event.sample.interval_ms, self.window_ms))
        self.frontends[event.frontend] = FrontendTraffic(
            event.incarnation, sample.sequence, now, sample.queued, sample.in_flight, fresh_until_ms
        )
        silent_ms = now - self.reported_at_ms
        # After a silence, a report covers its own interval and the time before it stays unknown.
        observed_ms = silent_ms if self.is_reporting(now) else min(covered_ms, silent_ms)
        self.totals, self.reported_at_ms = self.totals.with_report(sample, observed_ms), now
        self.fresh_until_ms = max(self.fresh_until_ms, fresh_until_ms)
        if self.first_reported_at_ms < 0:
            self.first_reported_at_ms = now - max(0, covered_ms - BUCKET_MS)
        self._distribute(sample, observed_ms, max(1, covered_ms // BUCKET_MS), now)
        return None

    def _refusal(self, event: TrafficReported, known: FrontendTraffic | None, now: int) -> Rejection | None:
        """Return the reason for refusing a report; None if it is accepted.

        Once the next report of a frontend is overdue, any sequence is accepted: the frontend may have restarted with a
        clock that was set back, or with a sequence that starts at 1.
        """
        if known is None:
            has_room = len(self.frontends) < self.frontends_max or self._remove_stale(now)
            return None if has_room else Rejection.FRONTENDS_FULL
        if now > known.fresh_until_ms:
            return None
        if event.incarnation < known.incarnation:
            return Rejection.STALE_INCARNATION
        repeated = event.incarnation == known.incarnation and event.sample.sequence <= known.sequence
        return Rejection.NOT_NEWER if repeated else None

    def _accepted_part(self, sample: TrafficSample, gap_ms: int | None, now: int) -> tuple[TrafficSample, int]:
        """Return the part of a report that counts, and the time that it covers in ms.

        At most the window counts, since a longer backlog is about the past, and no time twice. Requests that completed
        without output have failed and do not count for the mean output length.

        Args:
            sample: The report.
            gap_ms: Time since the last report of the frontend; None for its first.
            now: Unix time in ms.
        """
        covered_ms = min(sample.interval_ms, self.window_ms)
        if gap_ms is not None and sample.interval_ms > gap_ms + self.stale_after_ms:
            covered_ms = min(covered_ms, gap_ms)
        if covered_ms < sample.interval_ms:
            share = covered_ms / sample.interval_ms
            sample = _reduced(sample, round(sample.arrivals * share), round(sample.completed * share))
        if sample.osl_tokens == 0.0:
            sample = replace(sample, osl_tokens=None, osl_histogram=None)
        return self._without_outliers(self._without_excess(sample, covered_ms, now), now), covered_ms

    def _without_excess(self, sample: TrafficSample, covered_ms: int, now: int) -> TrafficSample:
        """Return a report with its requests bounded by those of the window, and without histograms of more."""
        largest = max(sample.arrivals, sample.completed)
        if largest * BUCKET_MS > _SMALL_RATE * covered_ms:
            observed_ms = arrivals = 0
            for bucket in self._window(now):
                observed_ms += bucket.observed_ms
                arrivals += bucket.arrivals
            usual = arrivals * covered_ms / observed_ms if observed_ms else 0.0
            limit = int(max(_SMALL_RATE * covered_ms / BUCKET_MS, _OUTLIER_RATIO * usual))
            if largest > limit:
                sample = _reduced(sample, min(sample.arrivals, limit), min(sample.completed, limit))
                sample = replace(sample, isl_histogram=None, osl_histogram=None)
        for name, requests in (("isl_histogram", sample.arrivals), ("osl_histogram", sample.completed)):
            histogram = getattr(sample, name)
            if histogram is not None and sum(histogram.counts) > max(_SMALL_RATE, _OUTLIER_RATIO * requests):
                sample = replace(sample, **{name: None})
        return sample

    def _without_outliers(self, sample: TrafficSample, now: int) -> TrafficSample:
        if max(sample.isl_tokens or 0.0, sample.osl_tokens or 0.0) <= _SHORT_TOKENS:
            return sample
        isl_sum = osl_sum = 0.0
        isl_count = osl_count = 0
        for bucket in self._window(now):
            isl_sum += bucket.isl_sum
            isl_count += bucket.isl_count
            osl_sum += bucket.osl_sum
            osl_count += bucket.osl_count
        isl = _bounded(sample.isl_tokens, isl_sum, isl_count)
        osl = _bounded(sample.osl_tokens, osl_sum, osl_count)
        if (isl, osl) == (sample.isl_tokens, sample.osl_tokens):
            return sample
        return replace(sample, isl_tokens=isl, osl_tokens=osl)

    def _window(self, now: int) -> list[TrafficBucket]:
        return self.buckets[bisect_left(self.buckets, now - self.window_ms, key=_at_ms) :]

    def _distribute(self, sample: TrafficSample, observed_ms: int, seconds: int, now: int) -> None:
        """Divide a report among the buckets of the last ``seconds``."""
        self._prune(now)
        start, wholes = now - now % BUCKET_MS, (observed_ms, sample.arrivals, sample.completed)
        for part in range(seconds):
            shares = (whole * (part + 1) // seconds - whole * part // seconds for whole in wholes)
            self._bucket(start - part * BUCKET_MS).add(sample, *shares)

    def _remove_stale(self, now: int) -> bool:
        """Remove silent frontends; return True if there is room for another."""
        for name in [n for n, f in self.frontends.items() if now - f.seen_at_ms > self.window_ms]:
            del self.frontends[name]
        return len(self.frontends) < self.frontends_max

    def _bucket(self, start: int) -> TrafficBucket:
        """Return the bucket of the second that begins at ``start``, usually the last one."""
        at = bisect_left(self.buckets, start, key=_at_ms)
        if at == len(self.buckets) or self.buckets[at].at_ms != start:
            self.buckets.insert(at, TrafficBucket(start))
        return self.buckets[at]

    def _prune(self, now: int) -> None:
        del self.buckets[: bisect_left(self.buckets, now - self.window_ms, key=_at_ms)]

    def is_reporting(self, now: int) -> bool:
        """Return True if at least one frontend reports; otherwise, traffic is unknown."""
        return now <= self.fresh_until_ms

    def missing_input(self, now: int) -> str:
        """Describe the missing input for rates and lengths, and the remedy."""
        totals = self.totals
        if not self.is_reporting(now):
            return (
                "no frontend reports the number and length of requests: have a frontend report the traffic of the model"
            )
        if totals.arrivals and totals.isl_tokens.value is None:
            return "requests arrive, but no frontend reports their length: have it report isl_tokens"
        if totals.arrivals and not totals.completed:
            return "requests arrive, but none has completed: check that workers serve them, or report completed"
        if totals.completed and totals.osl_tokens.value is None:
            return "requests complete, but no output length is known: check whether they fail, or report osl_tokens"
        return "traffic has not been observed for long enough: wait for some seconds"

    def is_complete(self, now: int) -> bool:
        """Return True if no report of the window was refused and all frontends of the window still report."""
        if self._within(self.refused_at_ms, now):
            return False
        silent = (f.seen_at_ms for f in self.frontends.values() if now > f.fresh_until_ms)
        return self.is_reporting(now) and not any(now - at_ms <= self.window_ms for at_ms in silent)

    def refused_requests(self, now: int) -> bool:
        """Return True if a refused report of the window contained requests, so unknown requests may wait."""
        return self._within(self.refused_requests_at_ms, now)

    def _within(self, at_ms: int, now: int) -> bool:
        return at_ms >= 0 and now - at_ms <= self.window_ms

    def _live(self, now: int) -> list[FrontendTraffic]:
        return [f for f in self.frontends.values() if now <= f.fresh_until_ms]

    def queued(self, now: int) -> int:
        """Count the requests that live frontends hold because no worker can take them."""
        return sum(f.queued for f in self._live(now))

    def outstanding(self, now: int) -> int:
        """Count the requests of live frontends that are queued or in flight."""
        return sum(f.queued + f.in_flight for f in self._live(now))

    def recent_arrivals(self, span_ms: int, now: int) -> "RecentArrivals":
        """Sum up the arrivals of the last ``span_ms``, in whole buckets."""
        observed_ms = arrivals = isl_count = 0
        isl_sum = cached_sum = squares = 0.0
        first = bisect_right(self.buckets, now - span_ms, key=_at_ms)
        for bucket in self.buckets[first:]:
            observed_ms += bucket.observed_ms
            arrivals += bucket.arrivals
            isl_sum += bucket.isl_sum
            isl_count += bucket.isl_count
            cached_sum += bucket.cached_sum
            squares += (bucket.isl_sum - bucket.cached_sum) ** 2
        return RecentArrivals(observed_ms, arrivals, isl_sum, isl_count, cached_sum, len(self.buckets) - first, squares)

    def recent_latencies(self, span_ms: int, now: int) -> "RecentLatencies":
        """Compute the means of the requests that completed in the last ``span_ms``, in whole buckets."""
        b = self.buckets[bisect_right(self.buckets, now - span_ms, key=_at_ms) :]
        return RecentLatencies(
            _mean(sum(x.ttft_sum for x in b), sum(x.ttft_count for x in b)),
            _mean(sum(x.itl_sum for x in b), sum(x.itl_count for x in b)),
            _mean(sum(x.osl_sum for x in b), sum(x.osl_count for x in b)),
        )

    def status(self, now: int) -> TrafficStatus:
        """Compute rates and means over the window; all None while no frontend reports. Leaves the state unchanged."""
        live = self._live(now)
        if not live:
            return TrafficStatus(None, None, None, None, None, 0, totals=self.totals.status())
        # Up to the last report: traffic since then is unknown.
        covered_ms = max(BUCKET_MS, self.reported_at_ms - max(self.first_reported_at_ms, now - self.window_ms))
        b = self._window(now)
        return TrafficStatus(
            requests_per_s=sum(x.arrivals for x in b) * 1000 / covered_ms,
            isl_tokens=_mean(sum(x.isl_sum for x in b), sum(x.isl_count for x in b)),
            osl_tokens=_mean(sum(x.osl_sum for x in b), sum(x.osl_count for x in b)),
            ttft_ms=_mean(sum(x.ttft_sum for x in b), sum(x.ttft_count for x in b)),
            itl_ms=_mean(sum(x.itl_sum for x in b), sum(x.itl_count for x in b)),
            queued=sum(f.queued for f in live),
            in_flight=sum(f.in_flight for f in live),
            frontends=len(live),
            ttft_attainment=_mean(sum(x.ttft_met for x in b), sum(x.ttft_judged for x in b)),
            itl_attainment=_mean(sum(x.itl_met for x in b), sum(x.itl_judged for x in b)),
            both_attainment=_mean(sum(x.both_met for x in b), sum(x.both_judged for x in b)),
            totals=self.totals.status(),
        )
