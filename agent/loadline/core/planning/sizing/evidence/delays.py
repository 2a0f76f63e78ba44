"""Latencies of requests that the load at which they complete did not cause: they waited, or ran beside a backlog.

Frontends report the latencies of a request when it completes, which may be long after what delayed it.
"""

from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.traffic_totals import NO_MEAN, TrafficTotals
from loadline.core.planning.sizing.decode_queues import waits_for_prefill
from loadline.core.planning.sizing.evidence.saturation import SaturationEvidence
from loadline.core.planning.sizing.request_lengths import Lengths

_DECODE_WAIT_SHARE: Final = 0.1
"""Part of the TTFT objective from which on a wait for decode workers is one."""
_ITL_SHARE: Final = 0.2
"""Ratio of a wait for decode workers to the duration of a request from which on the ITL contains it."""
_LONG_REQUESTS: Final = 2.0
"""Mean durations in which most requests end: with exponential lengths, one in seven takes longer."""


class RequestDelays(Struct):
    """Times at which requests of a pool were delayed."""

    delayed_ms: int = -1
    """Last time at which a backlog of some workers, or a wait for decode workers, delayed the ITL; -1: never."""
    decode_wait_ms: int = -1
    """Last time at which requests of a prefill pool waited for decode workers; -1: never."""
    queued_since_ms: int = -1
    """Time since which requests wait for the workers of a decode pool; -1: they do not."""

    def add(
        self, model: Model, pool: Pool, queues: SaturationEvidence, lengths: Lengths, now: int, *, has_points: bool
    ) -> None:
        """Record a second.

        Args:
            model: The model.
            pool: The pool.
            queues: Queues of its workers.
            lengths: Lengths of requests.
            now: Unix time in ms.
            has_points: True if the pool has points of the ITL. Without any, a late one is better than none.
        """
        request_ms = lengths.osl_tokens * queues.itl_ms
        if pool.knobs.role == "prefill" and _waits_for_decode(model, request_ms):
            self.decode_wait_ms = now
        is_queued = pool.knobs.role == "decode" and queues.waiting[-1] > pool.ready
        if not is_queued:
            self.queued_since_ms = -1
        elif self.queued_since_ms < 0:
            self.queued_since_ms = now
        is_in_itl = is_queued and has_points and self._is_in_itl(pool, request_ms, now)
        if queues.is_unbalanced or queues.drains_backlog or is_in_itl:
            self.delayed_ms = now

    def _is_in_itl(self, pool: Pool, request_ms: float, now: int) -> bool:
        """Return True if requests wait for decode workers so long that it shows in their ITL.

        By Little's law they wait as long as a request takes, times the ratio of waiting to running ones, but no longer
        than there are any.
        """
        is_long = now - self.queued_since_ms >= _ITL_SHARE * request_ms
        return is_long and pool.load.waiting >= _ITL_SHARE * pool.load.running

    def without_delayed(
        self, interval: TrafficTotals, queues: SaturationEvidence, lengths: Lengths, now: int
    ) -> TrafficTotals:
        """Return an interval without latencies of requests that began before the last delay ended.

        The ITL of a request is the mean over its output. The last requests of a backlog had a full batch for most of
        it, while the pool has nearly no load when they complete. They complete among others that take less, so the mean
        of a second suggests that they began later. The TTFT of requests that waited for decode workers is dropped too.
        """
        request_ms = (interval.osl_tokens.value or 0.0) * (interval.itl_ms.value or 0.0)
        if now - max(request_ms, _LONG_REQUESTS * lengths.osl_tokens * queues.itl_ms) < self.delayed_ms:
            interval = replace(interval, itl_ms=NO_MEAN)
        if now - request_ms < self.decode_wait_ms:
            interval = replace(interval, ttft_ms=NO_MEAN)
        return interval


def _waits_for_decode(model: Model, request_ms: float) -> bool:
    """Return True if requests wait for decode workers, so that their TTFT tells nothing of the prefill workers.

    By Little's law, they wait as long as a request decodes, times the ratio of waiting to running ones. Where outputs
    are short, some always wait for the next iteration.
    """
    shortest_ms = _DECODE_WAIT_SHARE * model.objectives.ttft_ms
    pools = [pool for pool in model.pools.values() if pool.knobs.role == "decode"]
    return any(
        pool.load.waiting > pool.ready
        and pool.load.waiting * request_ms >= shortest_ms * pool.load.running
        and not waits_for_prefill(model, pool)
        for pool in pools
    )
