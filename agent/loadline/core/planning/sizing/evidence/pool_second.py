"""Second of a pool, as its workers without a backlog show it.

After a step of the load, the workers that were there before have all requests that came until new ones were ready. They
may take minutes for these, in which frontends report the latencies of both kinds of workers together.
"""

from msgspec import Struct
from msgspec.structs import replace

from loadline.core.fleet.pool import Pool
from loadline.core.fleet.traffic_totals import NO_MEAN, TrafficTotals
from loadline.core.fleet.worker import MICRO
from loadline.core.planning.sizing.evidence.saturation import SaturationEvidence


class PoolSecond(Struct, frozen=True):
    """Load and latencies of the workers without a backlog that the others do not have."""

    ready: int
    """Workers of the pool."""
    free_workers: int
    """Workers without a backlog."""
    running: float
    """Running requests of one of them."""
    kv: float
    """KV usage (0..1) of one of them."""
    is_queued: bool
    """True if more requests wait than there are workers."""
    traffic: TrafficTotals
    """Arrivals at all workers. Latencies are unknown while some workers have a backlog."""

    @classmethod
    def of(cls, pool: Pool, queues: SaturationEvidence, traffic: TrafficTotals) -> "PoolSecond":
        """Return the second.

        Args:
            pool: The pool, all of whose workers report.
            queues: Queues of its workers.
            traffic: Reports of its frontends of the second.
        """
        if not queues.is_unbalanced:
            kv = pool.load.kv_micro / MICRO / pool.ready
            return cls(pool.ready, pool.ready, queues.running[-1], kv, min(queues.waiting) > pool.ready, traffic)
        counted = (worker.load for worker in pool.workers.values() if worker.counted)
        free = [load for load in counted if not queues.is_behind(load.waiting)]
        running, kv = sum(load.running for load in free), sum(load.kv_micro for load in free) / MICRO
        is_queued = sum(load.waiting for load in free) > len(free)
        traffic = replace(traffic, itl_ms=NO_MEAN, ttft_ms=NO_MEAN)
        return cls(pool.ready, len(free), running / len(free), kv / len(free), is_queued, traffic)
