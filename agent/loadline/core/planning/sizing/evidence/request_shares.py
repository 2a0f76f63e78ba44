"""Shares of the arrivals that pools of one role have, by the requests and latencies that their workers report.

By Little's law, a pool has as many requests as come in the time that one takes. Prefill workers hold a request or two
at a time, so the shares of one second are chance: two pools with half of the arrivals each alternate between none and
all of them. The means reach as far back as they need for ``_REQUESTS``.
"""

from collections.abc import Iterator, Mapping
from math import sqrt
from typing import Final

from msgspec import Struct, field

from loadline.core.fleet.estimates import decode_iterations
from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.traffic_totals import NO_MEAN, RunningMean, TrafficTotals

_REQUESTS: Final = 256
"""Requests of a role that tell its shares: the standard deviation of a half is then 0.03."""


class ReportedLatencies(Struct, frozen=True):
    """Means over the running requests of a pool, as its workers report them."""

    itl_ms: RunningMean
    ttft_ms: RunningMean

    @classmethod
    def of(cls, pool: Pool) -> "ReportedLatencies":
        """Return those of the latest reports."""
        itls = ttfts = NO_MEAN
        for worker in pool.workers.values():
            for sample in worker.latest if worker.counted else ():
                if sample is None or not sample.running_requests:
                    continue
                for batch, itl_ms in decode_iterations(sample):
                    itls = itls.plus(sample.itl_ms or itl_ms, int(batch))
                if sample.ttft_ms:
                    ttfts = ttfts.plus(sample.ttft_ms, sample.running_requests)
        return cls(itls, ttfts)


class PoolTraffic(Struct, frozen=True):
    """Traffic of a second as a pool has it."""

    totals: TrafficTotals
    """Requests of its role, and latencies of its own."""
    share: float = 1.0
    """Share (0..1) of the arrivals that it has."""


class PoolRequests(Struct):
    """Exponential means of a pool."""

    per_worker: float
    """Requests at a worker."""
    latency_ms: float = 0.0
    """TTFT of a prefill pool, ITL of the others; 0: not reported."""


class RequestShares(Struct):
    """Means of the pools that share a role, by name."""

    pools: dict[str, PoolRequests] = field(default_factory=dict)

    def add(self, model: Model, reported: Mapping[str, ReportedLatencies]) -> None:
        """Record a second, with what the pools that share a role report."""
        for pools in shared_roles(model):
            known = [pool for pool in pools if pool.fresh]
            of_worker = {pool.name: _requests(pool) / pool.fresh for pool in known}
            weight = min(1.0, sum(map(_requests, known)) / _REQUESTS)
            for pool in known:
                before = self.pools.setdefault(pool.name, PoolRequests(sum(of_worker.values()) / len(known)))
                before.per_worker += (of_worker[pool.name] - before.per_worker) * weight
                one = reported[pool.name]
                latency = one.ttft_ms if pool.knobs.role == "prefill" else one.itl_ms
                if latency.value is not None:
                    weight_of = min(1.0, latency.count / _REQUESTS) if before.latency_ms else 1.0
                    before.latency_ms += (latency.value - before.latency_ms) * weight_of

    def of(self, model: Model, pool: Pool) -> float:
        """Return the share (0..1) of the arrivals of its role that a pool has."""
        of_role = [one for one in model.pools.values() if one.knobs.role == pool.knobs.role]
        if len(of_role) == 1:
            return 1.0
        known = {one.name: self.pools[one.name] for one in of_role if one.name in self.pools and one.ready}
        has_latencies = all(one.latency_ms for one in known.values())
        rates = {
            name: one.per_worker * model.pools[name].ready / (one.latency_ms if has_latencies else 1.0)
            for name, one in known.items()
        }
        total = sum(rates.values())
        return rates.get(pool.name, 0.0) / total if total else 1.0

    def error(self, model: Model, pool: Pool) -> float:
        """Return the relative standard deviation by chance of the share of a pool, at most 1."""
        of_role = [one for one in model.pools.values() if one.knobs.role == pool.knobs.role]
        total = sum(map(self._mean, of_role))
        counted = self._mean(pool) * max(1.0, _REQUESTS / total) if total else 0.0
        return 1.0 / sqrt(max(1.0, counted))

    def _mean(self, pool: Pool) -> float:
        return self.pools[pool.name].per_worker * pool.ready if pool.name in self.pools else 0.0

    def forget_pool(self, pool: str) -> None:
        """Drop what is known of a pool."""
        self.pools.pop(pool, None)


def shared_roles(model: Model) -> Iterator[list[Pool]]:
    """Yield the pools of each role that several pools have."""
    for role in {pool.knobs.role: None for pool in model.pools.values()}:
        pools = [pool for pool in model.pools.values() if pool.knobs.role == role]
        if len(pools) > 1:
            yield pools


def reported_latencies(model: Model) -> dict[str, ReportedLatencies]:
    """Return what the pools report that share a role."""
    return {pool.name: ReportedLatencies.of(pool) for pools in shared_roles(model) for pool in pools}


def _requests(pool: Pool) -> int:
    return pool.load.running + pool.load.waiting
