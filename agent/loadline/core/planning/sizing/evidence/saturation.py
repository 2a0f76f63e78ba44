"""Rate that a pool serves while it is saturated, from reports of workers and frontends.

While requests wait for every worker and the batches do not grow, the rate that the pool serves is its capacity, whether
batch slots, KV caches or computation limit it. No model of the engine is needed.
"""

from functools import cached_property
from typing import Final

from msgspec import Struct, field

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.traffic_totals import TrafficTotals
from loadline.core.planning.sizing.decode_queues import waits_for_prefill
from loadline.core.planning.sizing.need import Need
from loadline.core.planning.sizing.request_lengths import Lengths
from loadline.core.vocabulary.reasons import Reason, ReasonCode

_RECENT: Final = 5
"""Seconds of which the queues are kept."""
_SATURATED_SAMPLES: Final = 3
_BACKLOG_MIN: Final = 3
"""Waiting requests of a worker up to which it has no backlog."""
_UNBALANCED: Final = 3
"""Ratio of the longest to the shortest queue from which on workers differ."""
_UNBALANCED_MIN: Final = 8
"""Longest queue up to which queues differ by chance."""
_LATENCIES_MS: Final = 4_000
_QUEUED_MS: Final = 5_000
_COUNTED_MS: Final = 10_000
"""Shortest times over which requests are counted, those taken out of queues and those served: within 10 s, a few
prompts of some seconds each are served."""
_COUNTED_MIN: Final = 10
"""Completed requests below which those since all workers have had a queue tell more: a second may have none."""


class QueuedSpan(Struct):
    """Requests since all workers of a pool have had a queue."""

    since_ms: int = 0
    """Time since then, or of the last sample if they have none."""
    waiting_before: int = 0
    """Waiting requests at that time."""
    observed_ms: int = 0
    """Part of the time since then that is covered by reports."""
    arrivals: int = 0
    completed: int = 0

    def add(self, interval: TrafficTotals, waiting: int, now: int, *, lasts: bool) -> None:
        """Add a second, or begin anew with the next one."""
        if not lasts:
            self.since_ms, self.waiting_before = now, waiting
            self.observed_ms = self.arrivals = self.completed = 0
            return
        self.observed_ms += interval.observed_ms
        self.arrivals += interval.arrivals
        self.completed += interval.completed

    def span_ms(self, now: int) -> int:
        """Return the time since then."""
        return now - self.since_ms

    def completed_per_s(self, share: float) -> float:
        """Return the requests/s that a pool with a share (0..1) of them completed; 0 if unknown."""
        return share * self.completed * 1_000.0 / self.observed_ms if self.observed_ms else 0.0

    def taken_per_s(self, pool: Pool, share: float, now: int) -> float:
        """Return the requests/s that arrived at a pool and do not wait; 0 if unknown.

        Args:
            pool: The pool.
            share: Share (0..1) of the arrivals that it has.
            now: Unix time in ms.
        """
        span_ms = self.span_ms(now)
        if not span_ms or not self.observed_ms:
            return 0.0
        arrived = share * self.arrivals * span_ms / self.observed_ms
        return max(0.0, arrived - pool.load.waiting + self.waiting_before) * 1_000.0 / span_ms


class SaturationEvidence(Struct, dict=True):
    """Queues and batches of the workers of a pool in the last seconds, and the requests since it is saturated.

    A plan asks for the mean ITL six times, so it is kept until the next second. It is no field: a snapshot does not
    have it.
    """

    ready: int = -1
    """Ready workers at the last sample."""
    running: list[float] = []
    """Running requests per worker in the last seconds."""
    waiting: list[int] = []
    """Waiting requests in the last seconds."""
    longest_queue: int = 0
    shortest_queue: int = 0
    behind: int = 0
    """Workers with a backlog similar to the longest one."""
    drains_backlog: bool = False
    """True if a draining worker has a backlog that those that stay do not exceed.

    A shrink takes such workers first. Until they are done, which may be minutes, frontends report their latencies.
    """
    latencies: list[tuple[int, float, int]] = []
    """Time, mean ITL and number of requests of the last seconds."""
    saturated: QueuedSpan = field(default_factory=QueuedSpan)
    """Time since which the pool has been saturated."""
    queued: QueuedSpan = field(default_factory=QueuedSpan)
    """Time since which all workers have had a queue, also while their batches grow."""

    def add(self, model: Model, pool: Pool, interval: TrafficTotals, now: int) -> None:
        """Record a second. Requests that wait for prefill workers are no queue of a decode pool."""
        own = not waits_for_prefill(model, pool)
        queues = [worker.load.waiting for worker in pool.workers.values() if worker.counted and own]
        self.longest_queue, self.shortest_queue = max(queues, default=0), min(queues, default=0)
        self.behind = sum(map(self.is_behind, queues))
        draining = (worker for worker in pool.workers.values() if worker.draining and not worker.drain_ended and own)
        self.drains_backlog = any(self.is_behind(worker.measure_load().waiting) for worker in draining)
        self.running = [*self.running[1 - _RECENT :], pool.load.running / max(pool.fresh, 1)]
        self.waiting = [*self.waiting[1 - _RECENT :], pool.load.waiting if own else 0]
        if interval.itl_ms.value is not None:
            self.latencies = [*self.latencies[-9:], (now, interval.itl_ms.value, interval.itl_ms.count)]
            self.__dict__.clear()
        changed, self.ready = pool.ready != self.ready, pool.ready
        queued = not changed and self.is_queued(pool)
        self.queued.add(interval, pool.load.waiting, now, lasts=queued)
        self.saturated.add(interval, pool.load.waiting, now, lasts=queued and self.is_saturated(pool))

    @cached_property
    def itl_ms(self) -> float:
        """Mean ITL of the requests that completed last; 0 if unknown."""
        total = sum(count for _, _, count in self.latencies)
        return sum(itl_ms * count for _, itl_ms, count in self.latencies) / total if total else 0.0

    @property
    def is_unbalanced(self) -> bool:
        """True if some workers have a backlog that others do not have."""
        return self.longest_queue > _UNBALANCED_MIN and self.shortest_queue * _UNBALANCED < self.longest_queue

    def is_behind(self, waiting: int) -> bool:
        """Return True if the queue of a worker is a backlog similar to the longest one."""
        return waiting > _BACKLOG_MIN and waiting * _UNBALANCED > self.longest_queue

    def is_queued(self, pool: Pool) -> bool:
        """Return True if all workers have had a queue for three seconds."""
        if not self.behind == pool.ready == self.ready > 0:
            return False
        waiting = self.waiting[-_SATURATED_SAMPLES:]
        return len(waiting) == _SATURATED_SAMPLES and min(waiting) >= pool.ready

    def is_saturated(self, pool: Pool) -> bool:
        """Return True if all workers have had a queue for three seconds without a growing batch."""
        if not self.is_queued(pool):
            return False
        running = self.running[-_SATURATED_SAMPLES:]
        # The number of prompts in a prefill pass changes with their lengths.
        return pool.knobs.role == "prefill" or max(running) <= 1.15 * min(running) + 1.0

    def served(self, model: Model, pool: Pool, lengths: Lengths, now: int) -> float:
        """Return the requests/s that the pool serves now, by Little's law, or by those completed; 0 if unknown.

        The ITL of requests that waited for a decode worker contains the wait, so the law alone says too little. Of
        requests that began together, few complete at first.
        """
        counted = self.saturated if self.saturated.completed >= _COUNTED_MIN else self.queued
        completed = counted.completed_per_s(request_share(model, pool))
        recent = [(itl_ms, count) for at_ms, itl_ms, count in self.latencies if now - at_ms < _LATENCIES_MS]
        total = sum(itl_ms * count for itl_ms, count in recent)
        if not total or not lengths.osl_tokens:
            return 0.0
        itl_ms = total / sum(count for _, count in recent)
        return max(completed, pool.load.running * 1_000.0 / (itl_ms * lengths.osl_tokens))

    def need(self, model: Model, pool: Pool, lengths: Lengths, requests_per_s: float, now: int) -> Need | None:
        """Return the workers that a rate needs; None if the pool is not saturated, or serves an unknown rate."""
        if not self.is_saturated(pool):
            return None
        prefill = pool.knobs.role == "prefill"
        served = 0.0 if prefill else self.served(model, pool, lengths, now)
        return _need(pool, served or self._counted(pool, request_share(model, pool), now), requests_per_s)

    def need_by_queues(self, model: Model, pool: Pool, requests_per_s: float, now: int) -> Need | None:
        """Return the workers that a rate needs while all queues grow; None if they do not, or not for long enough.

        A pool serves at most what it takes out of its queues, so more workers are needed before the first of its
        requests has completed, which takes as long as an answer.
        """
        if not self.is_queued(pool) or self.queued.span_ms(now) < _QUEUED_MS:
            return None
        return _need(pool, self.queued.taken_per_s(pool, request_share(model, pool), now), requests_per_s)

    def _counted(self, pool: Pool, share: float, now: int) -> float:
        """Return the requests/s that the pool has served since it is saturated; 0 while too few.

        A prefill pool has served those that arrived and do not wait. Others have served those that completed, once
        these are as many as the batches hold: engines that started together also complete together.
        """
        span = self.saturated
        if span.span_ms(now) < _COUNTED_MS or not span.observed_ms:
            return 0.0
        if pool.knobs.role == "prefill":
            return span.taken_per_s(pool, share, now)
        enough = share * span.completed >= max(1, pool.load.running)
        return span.completed_per_s(share) if enough else 0.0


def _need(pool: Pool, served: float, requests_per_s: float) -> Need | None:
    if not served:
        return None
    numbers = {"ready": pool.ready, "served": served, "requests_per_s": requests_per_s}
    workers = pool.ready * max(1.0, requests_per_s / served)
    return Need(workers, Reason.of(ReasonCode.SATURATED_TARGET, pool.name, **numbers))


def request_share(model: Model, pool: Pool) -> float:
    """Return the share (0..1) of the role's requests that a pool has."""
    of_role = [one for one in model.pools.values() if one.knobs.role == pool.knobs.role]
    total = sum(one.load.running + one.load.waiting for one in of_role)
    return (pool.load.running + pool.load.waiting) / total if len(of_role) > 1 and total else 1.0
