"""What the frontends of one model report: rates and lengths over a rolling window."""

from bisect import bisect_left, bisect_right
from operator import attrgetter

from msgspec import Struct

from loadline.core.belief.totals import Totals, cached_tokens, hit_rate
from loadline.core.events import TrafficReported
from loadline.core.report import Rejection, TrafficStatus

BUCKET_MS = 1_000


class Bucket(Struct):
    """Sums over all reports that arrived in one second."""

    at_ms: int
    heard_ms: int = 0
    """Time since the report before, for each report: what its arrivals came in."""
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


_at_ms = attrgetter("at_ms")


class Frontend(Struct):
    """The newest report of one frontend."""

    incarnation: int
    sequence: int
    seen_at_ms: int
    queued: int
    in_flight: int


class Recent(Struct, frozen=True):
    """Arrivals of a short while."""

    span_ms: int
    """Of this time it is known what arrived."""
    arrivals: int
    isl_sum: float
    isl_count: int
    cached_sum: float
    """Of ``isl_sum``, what prefix caches had."""

    @property
    def requests_per_s(self) -> float:
        """Rate of arrivals; 0 where nothing is known."""
        return self.arrivals * 1_000.0 / self.span_ms if self.span_ms else 0.0

    @property
    def isl_tokens(self) -> float | None:
        """Mean length of the prompts; None where it is not known."""
        return _mean(self.isl_sum, self.isl_count)

    @property
    def kv_hit_rate(self) -> float:
        """Share (0..1) of the prompt tokens that prefix caches had; 0 where nobody says."""
        return hit_rate(self.cached_sum, self.isl_sum)


def _mean(total: float, count: int) -> float | None:
    return total / count if count else None


class Traffic(Struct):
    """Traffic of one model over ``window_ms``."""

    window_ms: int
    frontends_max: int
    stale_after_ms: int
    first_at_ms: int = -1
    buckets: list[Bucket] = []
    frontends: dict[str, Frontend] = {}
    totals: Totals = Totals()
    heard_at_ms: int = -1
    """When a report last came; -1 before the first."""

    def apply(self, event: TrafficReported, now: int) -> Rejection | None:
        """Fold a report in, unless it is a repeat or the table of frontends is full of live ones."""
        sample = event.sample
        known = self.frontends.get(event.frontend)
        if known is None:
            if len(self.frontends) >= self.frontends_max and not self._forget_stale(now):
                return Rejection.FRONTENDS_FULL
        elif event.incarnation < known.incarnation:
            return Rejection.STALE_INCARNATION
        elif event.incarnation == known.incarnation and sample.sequence <= known.sequence:
            return Rejection.NOT_NEWER
        self.frontends[event.frontend] = Frontend(
            event.incarnation, sample.sequence, now, sample.queued, sample.in_flight
        )
        silent_ms = now - self.heard_at_ms
        # After a silence a report speaks for its own interval, and nobody for the time before.
        heard_ms = silent_ms if self.heard(now) else min(sample.interval_ms, self.stale_after_ms)
        self.totals, self.heard_at_ms = self.totals.plus(sample, heard_ms), now
        bucket = self._bucket(now)
        bucket.heard_ms += heard_ms
        bucket.arrivals += sample.arrivals
        if sample.isl_tokens is not None and sample.arrivals:
            bucket.isl_sum += sample.isl_tokens * sample.arrivals
            bucket.isl_count += sample.arrivals
            bucket.cached_sum += cached_tokens(sample)
        if sample.completed:
            if sample.osl_tokens is not None:
                bucket.osl_sum += sample.osl_tokens * sample.completed
                bucket.osl_count += sample.completed
            if sample.ttft_ms is not None:
                bucket.ttft_sum += sample.ttft_ms * sample.completed
                bucket.ttft_count += sample.completed
            if sample.itl_ms is not None:
                bucket.itl_sum += sample.itl_ms * sample.completed
                bucket.itl_count += sample.completed
        return None

    def _forget_stale(self, now: int) -> bool:
        """Make room by forgetting frontends that no longer report; tells whether there is room now."""
        for name in [n for n, f in self.frontends.items() if now - f.seen_at_ms > self.window_ms]:
            del self.frontends[name]
        return len(self.frontends) < self.frontends_max

    def _bucket(self, now: int) -> Bucket:
        start = now - now % BUCKET_MS
        if not self.buckets or self.buckets[-1].at_ms != start:
            self._prune(now)
            self.buckets.append(Bucket(start))
        if self.first_at_ms < 0:
            self.first_at_ms = now
        return self.buckets[-1]

    def _prune(self, now: int) -> None:
        del self.buckets[: bisect_left(self.buckets, now - self.window_ms, key=_at_ms)]

    def heard(self, now: int) -> bool:
        """Whether some frontend reports: then no arrivals are none, else they are unknown."""
        return self.heard_at_ms >= 0 and now - self.heard_at_ms <= self.stale_after_ms

    def complete(self, now: int) -> bool:
        """Whether every frontend that was heard in the window still reports: then what is known is all there is."""
        silent = [now - frontend.seen_at_ms for frontend in self.frontends.values()]
        return self.heard(now) and not any(self.stale_after_ms < ms <= self.window_ms for ms in silent)

    def queued(self, now: int) -> int:
        """Requests that live frontends hold because no worker could take them."""
        return sum(f.queued for f in self.frontends.values() if now - f.seen_at_ms <= self.stale_after_ms)

    def under_way(self, now: int) -> int:
        """Requests of live frontends that have come and not ended: they wait, or workers hold them."""
        live = (f for f in self.frontends.values() if now - f.seen_at_ms <= self.stale_after_ms)
        return sum(f.queued + f.in_flight for f in live)

    def recent(self, span_ms: int, now: int) -> "Recent":
        """What arrived within the last ``span_ms``, in whole buckets."""
        heard_ms = arrivals = isl_count = 0
        isl_sum = cached_sum = 0.0
        for bucket in self.buckets[bisect_right(self.buckets, now - span_ms, key=_at_ms) :]:
            heard_ms += bucket.heard_ms
            arrivals += bucket.arrivals
            isl_sum += bucket.isl_sum
            isl_count += bucket.isl_count
            cached_sum += bucket.cached_sum
        return Recent(heard_ms, arrivals, isl_sum, isl_count, cached_sum)

    def status(self, now: int) -> TrafficStatus:
        """Rates and means over the window; all None while no frontend reports. Changes nothing: a replay never asks."""
        live = [f for f in self.frontends.values() if now - f.seen_at_ms <= self.stale_after_ms]
        if not live:
            return TrafficStatus(None, None, None, None, None, 0)
        covered_ms = max(BUCKET_MS, min(self.window_ms, now - self.first_at_ms))
        b = [bucket for bucket in self.buckets if bucket.at_ms >= now - self.window_ms]
        return TrafficStatus(
            requests_per_s=sum(x.arrivals for x in b) * 1000 / covered_ms,
            isl_tokens=_mean(sum(x.isl_sum for x in b), sum(x.isl_count for x in b)),
            osl_tokens=_mean(sum(x.osl_sum for x in b), sum(x.osl_count for x in b)),
            ttft_ms=_mean(sum(x.ttft_sum for x in b), sum(x.ttft_count for x in b)),
            itl_ms=_mean(sum(x.itl_sum for x in b), sum(x.itl_count for x in b)),
            queued=self.queued(now),
        )
