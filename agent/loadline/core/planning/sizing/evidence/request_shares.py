"""Shares of the arrivals that pools of one role have, by the requests and latencies that their workers report.

By Little's law, a pool has as many requests as come in the time that one takes. Prefill workers hold a request or two
at a time, so the shares of one second are chance: two pools with half of the arrivals each alternate between none and
all of them. Long requests are the same ones second after second. So the seconds in which ``_REQUESTS`` have arrived
count together, up to a minute.
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
"""Arrivals that tell the shares of the pools: the standard deviation of a half is then 0.03."""
_FADING_MIN: Final = 1.0 / 60.0
"""Least part of the earlier requests that a second drops: a router may have changed a minute ago."""


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
    """Requests that a pool had in the last seconds, earlier ones less."""

    per_worker: float
    """Sum over the seconds of the requests at a worker."""
    latency_ms: float = 0.0
    """Mean TTFT of a prefill pool, ITL of the others; 0: not reported."""

    def add_latency(self, pool: Pool, reported: ReportedLatencies) -> None:
        """Record the latencies of a second."""
        latency = reported.ttft_ms if pool.knobs.role == "prefill" else reported.itl_ms
        if latency.value is not None:
            weight = min(1.0, latency.count / _REQUESTS) if self.latency_ms else 1.0
            self.latency_ms += (latency.value - self.latency_ms) * weight


class RequestShares(Struct):
    """Requests of the pools that share a role, by name."""

    pools: dict[str, PoolRequests] = field(default_factory=dict)
    arrivals: float = 0.0
    """Requests that arrived in the same time."""

    def add(self, model: Model, reported: Mapping[str, ReportedLatencies], arrivals_per_s: float) -> None:
        """Record a second, with what the pools that share a role report, and the present rate of the arrivals."""
        faded = min(1.0, max(_FADING_MIN, arrivals_per_s / _REQUESTS))
        self.arrivals += arrivals_per_s - self.arrivals * faded
        for pools in shared_roles(model):
            known = [pool for pool in pools if pool.fresh]
            if not any(map(_requests, known)):
                continue
            former = [self.pools[pool.name].per_worker for pool in known if pool.name in self.pools]
            for pool in known:
                mean = sum(former) / len(former) if former else 0.0  # as many as at any worker
                one = self.pools.setdefault(pool.name, PoolRequests(mean))
                one.per_worker += _requests(pool) / pool.fresh - one.per_worker * faded
                one.add_latency(pool, reported[pool.name])

    def of(self, model: Model, pool: Pool) -> float:
        """Return the share (0..1) of the arrivals of its role that a pool has."""
        of_role = [one for one in model.pools.values() if one.knobs.role == pool.knobs.role]
        if len(of_role) == 1:
            return 1.0
        known = {one.name: self.pools[one.name] for one in of_role if one.name in self.pools and one.ready}
        latencies = [one.latency_ms for one in known.values() if one.latency_ms]
        usual_ms = sum(latencies) / len(latencies) if latencies else 1.0
        rates = {
            name: one.per_worker * model.pools[name].ready / (one.latency_ms or usual_ms) for name, one in known.items()
        }
        total = sum(rates.values())
        if not total:
            return pool.ready / max(1, sum(one.ready for one in of_role))
        return rates.get(pool.name, 0.0) / total

    def error(self, model: Model, pool: Pool) -> float:
        """Return the relative standard deviation by chance of the share of a pool, at most 1."""
        return 1.0 / sqrt(max(1.0, self.of(model, pool) * self.arrivals))

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
