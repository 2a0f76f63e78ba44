"""What the frontends of one model report: rates and lengths over a rolling window."""

from bisect import bisect_left, bisect_right
from math import sqrt
from operator import attrgetter
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from loadline.core.fleet.traffic_totals import TrafficTotals, hit_rate
from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.reasons import Rejection
from loadline.core.vocabulary.samples import TrafficSample
from loadline.core.vocabulary.status import TrafficStatus

BUCKET_MS = 1_000
_OUTLIER: Final = 10.0
"""A report's mean length counts as so many times that of the window before it at most: a slip outweighs nothing, and
where requests do become longer the bound grows by a sixth a second."""
_SHORT_TOKENS: Final = 1_000.0
"""Lengths up to this are no outliers: they are little work."""
_TELLING: Final = 100
"""Requests; of fewer it is not known how long they are."""


class TrafficBucket(Struct):
    """Sums over one second: of a report that speaks for several, the part that falls to it."""

    at_ms: int
    observed_ms: int = 0
    """Time that was heard of: what the arrivals came in."""
    arrivals: int = 0
    isl_sum: float = 0.0
    isl_count: int = 0
    cached_sum: float = 0.0
    osl_sum: float = 0.0
    osl_count: int = 0
    ttft_sum: float = 0.0
    ttft_count: int = 0
    itl_sum: float = 0.0
    itl_count: int = 0

    def add(self, sample: TrafficSample, heard_ms: int, arrivals: int, completed: int) -> None:
        """A part of a report: so much of its time and so many of its requests, of its means."""
        self.observed_ms += heard_ms
        self.arrivals += arrivals
        if sample.isl_tokens is not None and arrivals:
            self.isl_sum += sample.isl_tokens * arrivals
            self.isl_count += arrivals
            self.cached_sum += (sample.kv_hit_rate or 0.0) * sample.isl_tokens * arrivals
        if completed:
            if sample.osl_tokens is not None:
                self.osl_sum += sample.osl_tokens * completed
                self.osl_count += completed
            if sample.ttft_ms is not None:
                self.ttft_sum += sample.ttft_ms * completed
                self.ttft_count += completed
            if sample.itl_ms is not None:
                self.itl_sum += sample.itl_ms * completed
                self.itl_count += completed


_at_ms = attrgetter("at_ms")


class FrontendTraffic(Struct):
    """The newest report of one frontend."""

    incarnation: int
    sequence: int
    seen_at_ms: int
    queued: int
    in_flight: int
    fresh_until_ms: int
    """Its next report is due long before."""


class RecentArrivals(Struct, frozen=True):
    """Arrivals of a short while."""

    observed_ms: int
    """Of this time it is known what arrived."""
    arrivals: int
    isl_sum: float
    isl_count: int
    cached_sum: float
    """Of ``isl_sum``, what prefix caches had."""
    observed_seconds: int
    """Of which something was heard."""
    computed_squares: float
    """Of the prompt tokens to compute that came in each of these, summed up."""

    @property
    def requests_per_s(self) -> float:
        """Rate of arrivals; 0 where nothing is known."""
        return self.arrivals * 1_000.0 / self.observed_ms if self.observed_ms else 0.0

    @property
    def isl_tokens(self) -> float | None:
        """Mean length of the prompts; None where it is not known."""
        return _mean(self.isl_sum, self.isl_count)

    @property
    def kv_hit_rate(self) -> float:
        """Share (0..1) of the prompt tokens that prefix caches had; 0 where nobody says."""
        return hit_rate(self.cached_sum, self.isl_sum)

    @property
    def computed_relative_error(self) -> float:
        """Standard error of the prompt tokens to compute, by their sum, as they differ from second to second.

        Of one second nothing is known, and if all came in one of many it is as large as the sum.
        """
        computed = self.isl_sum - self.cached_sum
        if self.observed_seconds < 2 or computed <= 0.0:  # noqa: PLR2004 - the least that differ
            return 1.0
        n = float(self.observed_seconds)
        return sqrt(max(0.0, self.computed_squares - computed * computed / n) * n / (n - 1.0)) / computed


def _mean(total: float, count: int) -> float | None:
    return total / count if count else None


def _bounded(tokens: float | None, total: float, count: int) -> float | None:
    """A length beside those of the window, so many in total."""
    if tokens is None or count < _TELLING:
        return tokens
    return min(tokens, max(_SHORT_TOKENS, _OUTLIER * total / count))


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
    """When a report last came; -1 before the first."""
    fresh_until_ms: int = -1
    """Until when some frontend counts as one that reports."""
    refused_at_ms: int = -1
    """When a report was last refused; -1: none was."""
    refused_requests_at_ms: int = -1
    """When one last was that spoke of requests."""

    def apply_settings(self, window_ms: int, frontends_max: int, stale_after_ms: int) -> None:
        """Keep so much from now on, of so many."""
        self.window_ms, self.frontends_max, self.stale_after_ms = window_ms, frontends_max, stale_after_ms

    def ingest(self, event: TrafficReported, now: int) -> Rejection | None:
        """Fold a report in, unless it is a repeat or the table of frontends is full of live ones."""
        sample = event.sample
        known = self.frontends.get(event.frontend)
        refused = self._refusal(event, known, now)
        if refused is not None:
            self.refused_at_ms = now
            if sample.arrivals or sample.queued or sample.in_flight:
                self.refused_requests_at_ms = now
            return refused
        sample, covered_ms = self._accepted_part(sample, None if known is None else now - known.seen_at_ms, now)
        # A report may be lost, so two intervals; but a minute is long enough to wait for one.
        fresh_until_ms = now + max(self.stale_after_ms, min(2 * event.sample.interval_ms, self.window_ms))
        self.frontends[event.frontend] = FrontendTraffic(
            event.incarnation, sample.sequence, now, sample.queued, sample.in_flight, fresh_until_ms
        )
        silent_ms = now - self.reported_at_ms
        # After a silence a report speaks for its own interval, and nobody for the time before.
        heard_ms = silent_ms if self.is_reporting(now) else min(covered_ms, silent_ms)
        self.totals, self.reported_at_ms = self.totals.with_report(sample, heard_ms), now
        self.fresh_until_ms = max(self.fresh_until_ms, fresh_until_ms)
        if self.first_reported_at_ms < 0:
            self.first_reported_at_ms = now - max(0, covered_ms - BUCKET_MS)
        self._distribute(sample, heard_ms, max(1, covered_ms // BUCKET_MS), now)
        return None

    def _refusal(self, event: TrafficReported, known: FrontendTraffic | None, now: int) -> Rejection | None:
        """Why a report is not believed. Whatever numbers it has, one is once the frontend's next is overdue.

        A frontend may begin anew with a clock that was set back, or count its reports from 1 again.
        """
        if known is None:
            room = len(self.frontends) < self.frontends_max or self._forget_stale(now)
            return None if room else Rejection.FRONTENDS_FULL
        if now > known.fresh_until_ms:
            return None
        if event.incarnation < known.incarnation:
            return Rejection.STALE_INCARNATION
        repeated = event.incarnation == known.incarnation and event.sample.sequence <= known.sequence
        return Rejection.NOT_NEWER if repeated else None

    def _accepted_part(self, sample: TrafficSample, gap_ms: int | None, now: int) -> tuple[TrafficSample, int]:
        """What counts of a report that came so long after the last one of its frontend, and the ms it speaks for.

        No more than the window: who reports a backlog speaks of a time that is over. And not again for what has been
        reported. Requests that complete without any output have failed: they do not say how long outputs are.
        """
        covered_ms = min(sample.interval_ms, self.window_ms)
        if gap_ms is not None and sample.interval_ms > gap_ms + self.stale_after_ms:
            covered_ms = min(covered_ms, gap_ms)
        if covered_ms < sample.interval_ms:
            share = covered_ms / sample.interval_ms
            arrivals, completed = round(sample.arrivals * share), round(sample.completed * share)
            sample = replace(sample, arrivals=arrivals, completed=completed)
        if sample.osl_tokens == 0.0:
            sample = replace(sample, osl_tokens=None, osl_histogram=None)
        return self._without_outliers(sample, now), covered_ms

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

    def _distribute(self, sample: TrafficSample, heard_ms: int, seconds: int, now: int) -> None:
        """Give each of the last ``seconds`` its part of a report."""
        self._prune(now)
        start, wholes = now - now % BUCKET_MS, (heard_ms, sample.arrivals, sample.completed)
        for part in range(seconds):
            shares = (whole * (part + 1) // seconds - whole * part // seconds for whole in wholes)
            self._bucket(start - part * BUCKET_MS).add(sample, *shares)

    def _forget_stale(self, now: int) -> bool:
        """Make room by forgetting frontends that no longer report; tells whether there is room now."""
        for name in [n for n, f in self.frontends.items() if now - f.seen_at_ms > self.window_ms]:
            del self.frontends[name]
        return len(self.frontends) < self.frontends_max

    def _bucket(self, start: int) -> TrafficBucket:
        """That of the second that begins at ``start``: mostly the last."""
        at = bisect_left(self.buckets, start, key=_at_ms)
        if at == len(self.buckets) or self.buckets[at].at_ms != start:
            self.buckets.insert(at, TrafficBucket(start))
        return self.buckets[at]

    def _prune(self, now: int) -> None:
        del self.buckets[: bisect_left(self.buckets, now - self.window_ms, key=_at_ms)]

    def is_reporting(self, now: int) -> bool:
        """Whether some frontend reports: then no arrivals are none, else they are unknown."""
        return now <= self.fresh_until_ms

    def missing_input(self, now: int) -> str:
        """What is missing to say how many requests come and how long they are, and what helps."""
        totals = self.totals
        if not self.is_reporting(now):
            return (
                "no frontend says how many requests arrive and how long they are: have one report the traffic of the"
                " model"
            )
        if totals.arrivals and totals.isl_tokens.value is None:
            return "requests arrive, and no frontend says how long they are: have it report isl_tokens"
        if totals.arrivals and not totals.completed:
            return "requests arrive and none has completed: see whether workers serve them, or report completed"
        if totals.completed and totals.osl_tokens.value is None:
            return (
                "requests complete, and none has an output that is known: see whether they fail, or report osl_tokens"
            )
        return "it has not been heard for long enough: wait for some seconds"

    def is_complete(self, now: int) -> bool:
        """Whether what is known is all there is: of the window nothing was refused, and who was heard still reports."""
        if self._within(self.refused_at_ms, now):
            return False
        silent = (f.seen_at_ms for f in self.frontends.values() if now > f.fresh_until_ms)
        return self.is_reporting(now) and not any(now - at_ms <= self.window_ms for at_ms in silent)

    def refused_requests(self, now: int) -> bool:
        """Whether a report of the window was refused that spoke of requests: somebody may wait, unseen."""
        return self._within(self.refused_requests_at_ms, now)

    def _within(self, at_ms: int, now: int) -> bool:
        return at_ms >= 0 and now - at_ms <= self.window_ms

    def _live(self, now: int) -> list[FrontendTraffic]:
        return [f for f in self.frontends.values() if now <= f.fresh_until_ms]

    def queued(self, now: int) -> int:
        """Requests that live frontends hold because no worker could take them."""
        return sum(f.queued for f in self._live(now))

    def outstanding(self, now: int) -> int:
        """Requests of live frontends that have come and not ended: they wait, or workers hold them."""
        return sum(f.queued + f.in_flight for f in self._live(now))

    def recent_arrivals(self, span_ms: int, now: int) -> "RecentArrivals":
        """What arrived within the last ``span_ms``, in whole buckets."""
        heard_ms = arrivals = isl_count = 0
        isl_sum = cached_sum = squares = 0.0
        first = bisect_right(self.buckets, now - span_ms, key=_at_ms)
        for bucket in self.buckets[first:]:
            heard_ms += bucket.observed_ms
            arrivals += bucket.arrivals
            isl_sum += bucket.isl_sum
            isl_count += bucket.isl_count
            cached_sum += bucket.cached_sum
            squares += (bucket.isl_sum - bucket.cached_sum) ** 2
        return RecentArrivals(heard_ms, arrivals, isl_sum, isl_count, cached_sum, len(self.buckets) - first, squares)

    def status(self, now: int) -> TrafficStatus:
        """Rates and means over the window; all None while no frontend reports. Changes nothing: a replay never asks."""
        if not self._live(now):
            return TrafficStatus(None, None, None, None, None, 0)
        # Up to the last report: of what came since nobody has spoken yet.
        covered_ms = max(BUCKET_MS, self.reported_at_ms - max(self.first_reported_at_ms, now - self.window_ms))
        b = self._window(now)
        return TrafficStatus(
            requests_per_s=sum(x.arrivals for x in b) * 1000 / covered_ms,
            isl_tokens=_mean(sum(x.isl_sum for x in b), sum(x.isl_count for x in b)),
            osl_tokens=_mean(sum(x.osl_sum for x in b), sum(x.osl_count for x in b)),
            ttft_ms=_mean(sum(x.ttft_sum for x in b), sum(x.ttft_count for x in b)),
            itl_ms=_mean(sum(x.itl_sum for x in b), sum(x.itl_count for x in b)),
            queued=self.queued(now),
        )
