"""Loads of an engine's ranks at one time, and the traffic since the time before."""

from typing import Final

from msgspec import Struct

from loadline.core.vocabulary.samples import Histogram, TrafficSample, WorkerSample

_INTERVAL_MS_MAX: Final = 3_600_000


class RankLoad(Struct, frozen=True, kw_only=True):
    """Load of one data-parallel rank. None: the engine does not say, or its value is impossible.

    Attributes:
        ttft_ms: Mean time to first token of the last interval that had any; so are the other latencies and the ISL.
        queue_ms: Mean time in the queue.
    """

    rank: int = 0
    waiting_requests: int | None = None
    running_requests: int | None = None
    decode_batch_requests: int | None = None
    decode_tokens: int | None = None
    kv_usage_ratio: float | None = None
    kv_blocks_used: int | None = None
    kv_blocks_total: int | None = None
    ttft_ms: float | None = None
    itl_ms: float | None = None
    queue_ms: float | None = None
    isl_tokens: float | None = None

    def sample(self) -> WorkerSample:
        """Return the sample of this rank; the worker client adds sequence and time."""
        return WorkerSample(
            sequence=0,
            timestamp_ms=0,
            rank=self.rank,
            kv_blocks_used=self.kv_blocks_used,
            kv_blocks_total=self.kv_blocks_total,
            kv_usage_ratio=self.kv_usage_ratio,
            waiting_requests=self.waiting_requests,
            running_requests=self.running_requests,
            decode_tokens=self.decode_tokens,
            decode_batch_requests=self.decode_batch_requests,
            ttft_ms=self.ttft_ms,
            itl_ms=self.itl_ms,
            isl_tokens=self.isl_tokens,
        )


class EngineTraffic(Struct, frozen=True, kw_only=True):
    """Requests of all ranks in one interval. Means are None if there was nothing to average, or it is unknown."""

    interval_ms: int
    arrivals: int
    completed: int
    isl_tokens: float | None = None
    osl_tokens: float | None = None
    ttft_ms: float | None = None
    itl_ms: float | None = None
    queue_ms: float | None = None
    prefix_hit_ratio: float | None = None
    isl_histogram: Histogram | None = None
    osl_histogram: Histogram | None = None


class EngineReading(Struct, frozen=True, kw_only=True):
    """One page of an engine.

    Attributes:
        model: Name under which it serves its model; empty if the page does not say.
        ranks: At least one, sorted.
        traffic: Requests since the page before; None for the first page and after a restart.
        restarted: True if the engine was started again since the page before.
        max_batch_requests: Batch slots of one rank.
    """

    model: str
    ranks: tuple[RankLoad, ...]
    traffic: EngineTraffic | None = None
    restarted: bool = False
    started_ms: int | None = None
    kv_blocks_total: int | None = None
    block_size_tokens: int | None = None
    max_batch_requests: int | None = None

    @property
    def requests(self) -> int | None:
        """Requests that wait or run; None if the engine does not tell both of every rank."""
        requests = 0
        for load in self.ranks:
            if load.waiting_requests is None or load.running_requests is None:
                return None
            requests += load.waiting_requests + load.running_requests
        return requests

    def samples(self) -> list[WorkerSample]:
        """Return a sample for each rank."""
        return [load.sample() for load in self.ranks]

    def traffic_sample(self, sequence: int) -> TrafficSample | None:
        """Return the traffic as a frontend reports it; None if it is unknown."""
        seen = self.traffic
        if seen is None:
            return None
        return TrafficSample(
            sequence=sequence,
            interval_ms=min(max(seen.interval_ms, 1), _INTERVAL_MS_MAX),
            arrivals=seen.arrivals,
            completed=seen.completed,
            in_flight=self.requests or 0,
            isl_tokens=seen.isl_tokens,
            kv_hit_rate=seen.prefix_hit_ratio,
            osl_tokens=seen.osl_tokens,
            ttft_ms=seen.ttft_ms,
            itl_ms=seen.itl_ms,
            isl_histogram=seen.isl_histogram,
            osl_histogram=seen.osl_histogram,
        )
