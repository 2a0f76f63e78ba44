"""Window of some seconds in which a pool is settled: a point of its curves."""

from typing import Final

from msgspec import Struct

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.traffic_totals import NO_MEAN, RunningMean
from loadline.core.planning.sizing.evidence.pool_second import PoolSecond
from loadline.core.planning.sizing.evidence.saturation import request_share

_VARIATION_COUNT: Final = 8
"""Requests of a second up to which its mean TTFT varies by chance; above, by the load they share."""


class EvidenceWindow(Struct):
    """Sums over the seconds of a window."""

    since_ms: int = 0
    workers: int = -1
    """Workers whose load it is: those without a backlog."""
    first_running: float = 0.0
    running: float = 0.0
    samples: int = 0
    kv: float = 0.0
    """Sum over the seconds of the KV usage of a worker."""
    waiting: int = 0
    """Waiting requests at its begin."""
    arrivals: int = 0
    isl_tokens: RunningMean = NO_MEAN
    itl_ms: RunningMean = NO_MEAN
    ttft_ms: RunningMean = NO_MEAN
    ttft_spread: float = 0.0
    """Sum over the seconds of the squared relative deviations of their mean TTFT, by requests."""
    ttft_seconds: int = 0

    def admitted_per_s(self, model: Model, pool: Pool, now: int) -> float:
        """Return the requests/s that arrived at the pool and do not wait."""
        admitted = request_share(model, pool) * self.arrivals - (pool.load.waiting - self.waiting)
        return max(0.0, admitted) * 1_000.0 / (now - self.since_ms)

    def add(self, second: PoolSecond) -> None:
        """Add a second."""
        interval = second.traffic
        self.samples, self.running, self.kv = self.samples + 1, self.running + second.running, self.kv + second.kv
        self.arrivals += interval.arrivals
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
