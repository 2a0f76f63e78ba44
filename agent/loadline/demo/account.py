"""Account of the demo's requests: counts, latencies in virtual time, and SLO attainment."""

import math

from msgspec import Struct

from loadline.core.engines.profile import ObjectiveKnobs

# Bucket bounds differ by 1%: a percentile is exact to 1%, and 2,500 buckets reach ten thousand hours.
_RATIO = math.log(1.01)


class Latencies:
    """Distribution in buckets whose bounds differ by 1%."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0

    def add(self, value_ms: float) -> None:
        """Count one value."""
        bucket = math.ceil(math.log(max(value_ms, 1e-3)) / _RATIO)
        self._counts[bucket] = self._counts.get(bucket, 0) + 1
        self.count += 1

    def percentile_ms(self, share: float) -> float | None:
        """Return the percentile ``share`` (0..1), exact to 1%; None without values."""
        rank = math.ceil(share * self.count)
        for bucket in sorted(self._counts):
            rank -= self._counts[bucket]
            if rank <= 0:
                return round(math.exp(bucket * _RATIO), 2)
        return None


class FinishedRequest(Struct, frozen=True):
    """Finished request, with latencies in virtual time."""

    osl_tokens: int
    ttft_ms: float
    itl_ms: float | None
    ttft_met: bool
    itl_met: bool


class DemoSummary(Struct, frozen=True):
    """Account of a run. Times are virtual."""

    arrived: int
    finished: int
    in_flight: int
    """Requests that workers hold."""
    queued: int
    """Requests that wait for a worker."""
    lost: int
    """Requests that arrived and are not finished, in flight or queued."""
    refused: int
    """Lost requests that do not fit into any worker."""
    retried: int
    """Restarts of requests after a worker or a message was lost."""
    preempted: int
    """Preemptions by engines that ran out of blocks."""
    migrated: int
    """Migrations of requests."""
    ttft_attainment: float | None
    itl_attainment: float | None
    slo_attainment: float | None
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    ttft_p99_ms: float | None
    itl_p50_ms: float | None
    itl_p95_ms: float | None
    itl_p99_ms: float | None
    virtual_s: float
    speed: float


class RequestAccount:
    """Counters of requests and latencies."""

    def __init__(self, objectives: ObjectiveKnobs) -> None:
        self.arrived = 0
        self.retried = 0
        self.finished = 0
        self.refused = 0
        self.preempted = 0
        self.migrated = 0
        self._objectives = objectives
        self._ttft = Latencies()
        self._itl = Latencies()
        self._ttft_met = self._itl_met = self._both_met = 0
        self._unreported: list[FinishedRequest] = []

    def finish(self, osl_tokens: int, ttft_ms: float, itl_ms: float | None) -> None:
        """Count a finished request. A single token has no ITL, so it meets that objective."""
        ttft_met = ttft_ms <= self._objectives.ttft_ms
        itl_met = itl_ms is None or itl_ms <= self._objectives.itl_ms
        self.finished += 1
        self._ttft.add(ttft_ms)
        if itl_ms is not None:
            self._itl.add(itl_ms)
        self._ttft_met += ttft_met
        self._itl_met += itl_met
        self._both_met += ttft_met and itl_met
        self._unreported.append(FinishedRequest(osl_tokens, ttft_ms, itl_ms, ttft_met, itl_met))

    def take_unreported(self) -> list[FinishedRequest]:
        """Return the requests that finished since the last call."""
        finished, self._unreported = self._unreported, []
        return finished

    def summary(self, *, in_flight: int, queued: int, virtual_s: float, speed: float) -> DemoSummary:
        """Return the account so far."""

        def share(met: int) -> float | None:
            return round(met / self.finished, 4) if self.finished else None

        return DemoSummary(
            arrived=self.arrived,
            finished=self.finished,
            in_flight=in_flight,
            queued=queued,
            lost=self.arrived - self.finished - in_flight - queued,
            refused=self.refused,
            retried=self.retried,
            preempted=self.preempted,
            migrated=self.migrated,
            ttft_attainment=share(self._ttft_met),
            itl_attainment=share(self._itl_met),
            slo_attainment=share(self._both_met),
            ttft_p50_ms=self._ttft.percentile_ms(0.50),
            ttft_p95_ms=self._ttft.percentile_ms(0.95),
            ttft_p99_ms=self._ttft.percentile_ms(0.99),
            itl_p50_ms=self._itl.percentile_ms(0.50),
            itl_p95_ms=self._itl.percentile_ms(0.95),
            itl_p99_ms=self._itl.percentile_ms(0.99),
            virtual_s=round(virtual_s, 3),
            speed=speed,
        )
