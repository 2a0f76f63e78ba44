"""Window of some seconds in which a pool is settled: a point of its curves."""

from typing import Final

from msgspec import Struct

from loadline.core.fleet.pool import Pool
from loadline.core.fleet.traffic_totals import NO_MEAN, RunningMean
from loadline.core.planning.sizing.evidence.pool_second import PoolSecond

_VARIATION_COUNT: Final = 8
"""Requests of a second up to which its mean TTFT varies by chance; above, by the load they share."""


class EvidenceWindow(Struct):
    """Sums over the seconds of a window."""

    since_ms: int = 0
    ready: int = -1
    """Workers of the pool."""
    free_workers: int = -1
    """Workers whose load it is: those without a backlog."""
    first_running: float = 0.0
    running: float = 0.0
    samples: int = 0
    kv: float = 0.0
    """Sum over the seconds of the KV usage of a worker."""
    waiting: int = 0
    """Waiting requests at its begin."""
    observed_ms: int = 0
    """Time that the reports of frontends cover: the first may reach back to before the window, as one of 10 s does."""
    arrivals: float = 0.0
    """Arrivals at the pool: its share of those of its role."""
    completed: int = 0
    isl_tokens: RunningMean = NO_MEAN
    itl_ms: RunningMean = NO_MEAN
    ttft_ms: RunningMean = NO_MEAN
    ttft_spread: float = 0.0
    """Sum over the seconds of the squared relative deviations of their mean TTFT, by requests."""
    ttft_seconds: int = 0

    def admitted_per_s(self, pool: Pool, now: int) -> float:
        """Return the requests/s that arrived at the pool and do not wait."""
        if not self.observed_ms:
            return 0.0
        arrived_per_s = self.arrivals * 1_000.0 / self.observed_ms
        queued_per_s = (pool.load.waiting - self.waiting) * 1_000.0 / (now - self.since_ms)
        return max(0.0, arrived_per_s - queued_per_s)

    @property
    def completed_per_s(self) -> float:
        """Requests/s that completed; 0 if unknown."""
        return self.completed * 1_000.0 / self.observed_ms if self.observed_ms else 0.0

    def is_of(self, second: PoolSecond) -> bool:
        """Return True if a second is one of the same workers: of as many, with as many that have a backlog."""
        return (self.ready, self.free_workers) == (second.ready, second.free_workers)

    def add(self, second: PoolSecond, share: float) -> None:
        """Add a second, of whose arrivals the pool has a share (0..1)."""
        interval = second.traffic
        self.samples, self.running, self.kv = self.samples + 1, self.running + second.running, self.kv + second.kv
        self.observed_ms += interval.observed_ms
        self.arrivals += share * interval.arrivals
        self.completed += interval.completed
        self.isl_tokens = _joined(self.isl_tokens, interval.isl_tokens)
        self.itl_ms = _joined(self.itl_ms, interval.itl_ms)
        self.ttft_ms = _joined(self.ttft_ms, interval.ttft_ms)
        ttft_ms, mean = interval.ttft_ms.value, self.ttft_ms.value
        if ttft_ms is not None and mean:
            if self.ttft_seconds:
                self.ttft_spread += min(_VARIATION_COUNT, interval.ttft_ms.count) * (ttft_ms / mean - 1.0) ** 2
            self.ttft_seconds += 1


def _joined(mean: RunningMean, more: RunningMean) -> RunningMean:
    return RunningMean(mean.thousandths + more.thousandths, mean.count + more.count)
