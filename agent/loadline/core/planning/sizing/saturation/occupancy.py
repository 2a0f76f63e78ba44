"""Occupancy of the workers of a pool: the load that they hold, over a short window and over a long one.

Load is counted in workers or in KV tokens. In workers, a saturated worker counts 1, and waiting requests add the
workers that would hold them. In tokens, the KV tokens in use count, and those that waiting requests will need. Silent
workers are missing in the lower bound, and count as full in the upper bound.
"""

from collections.abc import Iterable
from statistics import median
from typing import Final

from msgspec import Struct, field

from loadline.core.engines.token_capacity import (
    DEFAULT_BATCHED_TOKENS,
    DEFAULT_SEQUENCES,
    ObservedCapacity,
    TokenLimits,
    WorkerKv,
    derived_tokens,
    request_tokens,
    worker_tokens,
)
from loadline.core.fleet.estimates import NOMINAL_BLOCKS, kv_tokens_total, kv_tokens_used
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.windows import RollingSamples
from loadline.core.fleet.worker import MICRO, WorkerState
from loadline.core.vocabulary.scalars import Role

SAMPLE_MS: Final = 1_000
"""Longest time between two samples of the windows; the short window has at least ten."""
_SPIKE_FACTOR: Final = 1.5
"""Divisor of the present load where its mean is lower: a spike has little weight, a flood counts at once."""
_NOMINAL_TOKENS: Final = 16.0 * NOMINAL_BLOCKS
"""KV tokens of a worker that reports none, while the lengths of requests are unknown too."""


class ObservedLengths(Struct, frozen=True):
    """Mean lengths of prompts and outputs; 0 where unknown."""

    isl_tokens: float = 0.0
    osl_tokens: float = 0.0


def worker_share(role: Role, worker: WorkerState, limits: TokenLimits) -> float | None:
    """Return the occupied share of a worker, 1 if it is saturated; None without the necessary reports.

    A prefill or encode worker is occupied while it computes, and by its queue. Other workers are occupied by the KV
    cache or the queue, whichever is closer to its threshold. The queue adds to that, as a waiting request needs as much
    as a running one.
    """
    load, ranks = worker.load, len(worker.latest)
    waiting = load.waiting / ranks
    if role in {"prefill", "encode"}:
        return None if not load.queue_reporting else min(1.0, load.running / ranks) + waiting / limits.queue_threshold
    if not load.kv_reporting or (role == "aggregated" and not load.queue_reporting):
        return None
    full = max(load.kv_micro / MICRO / limits.kv_threshold, min(1.0, waiting / limits.queue_threshold))
    return full * (1.0 + waiting / max(load.running / ranks, limits.queue_threshold))


def worker_kv(worker: WorkerState) -> WorkerKv | None:
    """Return the KV tokens of a worker, total and in use; None if it does not report them."""
    total, used, waiting = 0, 0.0, 0
    for sample in worker.latest:
        in_use = None if sample is None else kv_tokens_used(sample, worker.record)
        if sample is None or in_use is None:
            return None
        total += kv_tokens_total(sample, worker.record)
        used += in_use
        waiting += sample.waiting_requests or 0
    return WorkerKv(float(total), used, waiting / len(worker.latest)) if total else None


class Occupancy(Struct):
    """Load that the workers of one pool hold, in workers or in KV tokens."""

    short: RollingSamples
    """Lower bounds of the load."""
    long: RollingSamples
    """Upper bounds of the load."""
    loads: dict[str, float] = field(default_factory=dict)
    """Load by worker, of those that report it."""
    low: float = 0.0
    high: float = 0.0
    capacity: float | None = None
    """KV tokens that one worker can hold, or all of them if load is counted in workers; None while unknown."""
    observed: ObservedCapacity = field(default_factory=ObservedCapacity)
    sampled_ms: int = -1

    @property
    def sample_ms(self) -> int:
        """Time between two samples."""
        return max(1, min(SAMPLE_MS, self.short.window_ms // 10))

    def update(self, pool: Pool, limits: TokenLimits, lengths: ObservedLengths | None, now: int) -> None:
        """Record the newest reports; load is counted in KV tokens if ``lengths`` is given, and otherwise in workers."""
        if pool.fresh == 0:
            self.loads.clear()
            self.short.clear()
            self.long.clear()
            self.low = self.high = 0.0
            return
        due = now - self.sampled_ms >= self.sample_ms or self.sampled_ms < 0
        for name in pool.changed:
            self._record(name, pool, limits, lengths)
        if due or len(self.loads) > pool.fresh:
            workers = pool.workers
            self.loads = {name: load for name, load in self.loads.items() if name in workers and workers[name].counted}
        if due or (self.capacity is None and self._median_capacity(pool, pool.changed, limits, lengths)):
            self.capacity = self._median_capacity(pool, pool.workers, limits, lengths) or self.capacity
        self.low = sum(self.loads.values(), 0.0)
        full = 1.0 if lengths is None else self.capacity or 0.0
        self.high = self.low + max(0, pool.ready - len(self.loads)) * full
        if due:
            self.sampled_ms = now
            self.short.push(now, self.low)
            self.long.push(now, self.present_load)

    @property
    def scale_up_load(self) -> float:
        """Lower bound of the load: the mean of the short window, or the present load by the spike factor if higher."""
        return max(self.short.mean_with(self.low), self.low / _SPIKE_FACTOR)

    @property
    def present_load(self) -> float:
        """Upper bound of the load: the same with silent workers as full."""
        return self.scale_up_load + self.high - self.low

    @property
    def scale_down_load(self) -> float:
        """Peak of the upper bounds in the long window."""
        return max((*self.long.values, self.present_load))

    def _record(self, name: str, pool: Pool, limits: TokenLimits, lengths: ObservedLengths | None) -> None:
        worker = pool.workers.get(name)
        load = worker_share(pool.knobs.role, worker, limits) if worker is not None and worker.counted else None
        if worker is not None and load is not None and lengths is not None:
            load = self._record_tokens(worker, load, limits, lengths)
        if load is None:
            self.loads.pop(name, None)
        else:
            self.loads[name] = load

    def _record_tokens(self, worker: WorkerState, share: float, limits: TokenLimits, lengths: ObservedLengths) -> float:
        """Return the load of a worker in KV tokens, and learn its capacity if requests queue."""
        kv, role = worker_kv(worker), worker.record.role
        if kv is None:
            return share * _assumed_capacity(worker, lengths)
        if kv.is_queueing(limits.queue_threshold) and kv.is_informative(limits.kv_threshold):
            self.observed.record(lengths.osl_tokens, kv.tokens_in_use)
        tokens = kv.tokens_in_use + kv.waiting_requests * request_tokens(role, lengths.isl_tokens, lengths.osl_tokens)
        if role == "prefill":  # its cache is nearly empty however busy it is
            return max(tokens, share * self._worker_capacity(worker, kv, limits, lengths))
        return tokens

    def _median_capacity(
        self, pool: Pool, names: Iterable[str], limits: TokenLimits, lengths: ObservedLengths | None
    ) -> float | None:
        """Return the median capacity of some workers of a pool; None if none reports it."""
        capacities: list[float] = []
        for worker in (pool.workers[name] for name in names if name in pool.workers):
            kv = worker_kv(worker) if worker.counted else None
            if kv is None and lengths is not None and worker.load.kv_reporting:
                capacities.append(_assumed_capacity(worker, lengths))
            elif kv is not None:
                capacity = kv.kv_tokens if lengths is None else self._worker_capacity(worker, kv, limits, lengths)
                capacities.append(capacity)
        return median(capacities) if capacities else None

    def _worker_capacity(
        self, worker: WorkerState, kv: WorkerKv, limits: TokenLimits, lengths: ObservedLengths
    ) -> float:
        derived = _derived_capacity(worker, lengths) or None
        return worker_tokens(kv, limits, self.observed, lengths.osl_tokens, derived)


def _derived_capacity(worker: WorkerState, lengths: ObservedLengths) -> float:
    """Return the KV tokens of a worker's largest batch; 0 while the lengths of requests are unknown."""
    batched, sequences = worker.record.max_batched_tokens, worker.record.max_batch_requests
    return derived_tokens(
        lengths.isl_tokens, lengths.osl_tokens, batched or DEFAULT_BATCHED_TOKENS, sequences or DEFAULT_SEQUENCES
    )


def _assumed_capacity(worker: WorkerState, lengths: ObservedLengths) -> float:
    """Return the capacity of a worker that reports no KV tokens: its load in tokens is its occupied share of it."""
    return _derived_capacity(worker, lengths) or _NOMINAL_TOKENS
