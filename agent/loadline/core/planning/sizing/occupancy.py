"""What the workers of a pool hold of what they can hold, worker by worker, over a short while and over a longer one.

By percent a worker that is saturated counts 1, and what waits beyond that as many more as would hold it. By tokens it
counts the KV tokens in use and those that what waits will take. Who does not report is not in the lower bound, and is
full in the upper one.
"""

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
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.windows import RollingSamples
from loadline.core.fleet.worker import MICRO, WorkerState
from loadline.core.vocabulary.scalars import Role

SAMPLE_MS: Final = 1_000
"""Most time between two samples of the windows; the short one has at least ten."""
_SPIKE: Final = 1.5
"""What is held now counts by so much less while its mean is lower: a spike is none, and a flood is one at once."""


class ObservedLengths(Struct, frozen=True):
    """Mean lengths of prompts and of outputs; 0 where nobody says."""

    isl_tokens: float = 0.0
    osl_tokens: float = 0.0


def share(role: Role, worker: WorkerState, limits: TokenLimits) -> float | None:
    """How much of a worker is taken, 1 for a saturated one; None where it does not say what it is judged by.

    A prefill worker is taken while it computes, and by its queue. The others are taken by their KV cache or by their
    queue, whichever is nearer to its threshold; and as a request that waits takes as much as one that runs, a queue
    adds to that.
    """
    load, ranks = worker.load, len(worker.latest)
    waiting = load.waiting / ranks
    if role == "prefill":
        return None if not load.queue_reporting else min(1.0, load.running / ranks) + waiting / limits.queue_threshold
    if not load.kv_reporting or (role == "aggregated" and not load.queue_reporting):
        return None
    full = max(load.kv_micro / MICRO / limits.kv_threshold, min(1.0, waiting / limits.queue_threshold))
    return full * (1.0 + waiting / max(load.running / ranks, limits.queue_threshold))


def holding(worker: WorkerState) -> WorkerKv | None:
    """The KV tokens that a worker has and holds; None where it does not say."""
    block_tokens, total, used, waiting = worker.record.block_size_tokens, 0, 0, 0
    for sample in worker.latest:
        if sample is None or sample.kv_blocks_used is None or not block_tokens:
            return None
        total += sample.kv_blocks_total or worker.record.kv_blocks_total or 0
        used += sample.kv_blocks_used
        waiting += sample.waiting_requests or 0
    if not total or not block_tokens:
        return None
    return WorkerKv(float(total * block_tokens), float(used * block_tokens), waiting / len(worker.latest))


class Occupancy(Struct):
    """One pool: what is held, in workers or in KV tokens."""

    short: RollingSamples
    """Lower bounds."""
    long: RollingSamples
    """Upper bounds."""
    held: dict[str, float] = field(default_factory=dict)
    """By worker, of those that say it."""
    low: float = 0.0
    high: float = 0.0
    capacity: float | None = None
    """KV tokens of a worker, all or those that it can hold; None while no worker has said."""
    observed: ObservedCapacity = field(default_factory=ObservedCapacity)
    sampled_ms: int = -1

    @property
    def sample_ms(self) -> int:
        """Time between two samples."""
        return max(1, min(SAMPLE_MS, self.short.window_ms // 10))

    def look(self, pool: Pool, limits: TokenLimits, lengths: ObservedLengths | None, now: int) -> None:
        """Take in what is new; with ``lengths`` it is held in KV tokens, else in workers."""
        if pool.fresh == 0:
            self.held.clear()
            self.short.clear()
            self.long.clear()
            self.low = self.high = 0.0
            return
        due = now - self.sampled_ms >= self.sample_ms or self.sampled_ms < 0
        for name in pool.changed:
            self._take(name, pool, limits, lengths)
        if due or len(self.held) > pool.fresh:
            self.held = {name: value for name, value in self.held.items() if _counts(pool, name)}
        if due or self.capacity is None:
            self.capacity = self._measured(pool, limits, lengths) or self.capacity
        self.low = sum(self.held.values())
        full = 1.0 if lengths is None else self.capacity or 0.0
        self.high = self.low + max(0, pool.ready - len(self.held)) * full
        if due:
            self.sampled_ms = now
            self.short.push(now, self.low)
            self.long.push(now, self.rising + self.high - self.low)

    @property
    def rising(self) -> float:
        """What is surely held: the mean of the short while, or much of what it is now."""
        return max(self.short.mean_with(self.low), self.low / _SPIKE)

    @property
    def falling(self) -> float:
        """The most that may have been held over any short while of the longer one."""
        return max((*self.long.values, self.rising + self.high - self.low))

    def _take(self, name: str, pool: Pool, limits: TokenLimits, lengths: ObservedLengths | None) -> None:
        worker = pool.workers.get(name)
        taken = share(pool.knobs.role, worker, limits) if worker is not None and worker.counted else None
        if worker is not None and taken is not None and lengths is not None:
            taken = self._tokens(worker, taken, limits, lengths)
        if taken is None:
            self.held.pop(name, None)
        else:
            self.held[name] = taken

    def _tokens(self, worker: WorkerState, taken: float, limits: TokenLimits, lengths: ObservedLengths) -> float | None:
        """The tokens that a worker holds and that what waits will take; and what it can hold is learned from it."""
        found, role = holding(worker), worker.record.role
        if found is None:
            return None
        if found.is_queueing(limits.queue_threshold) and found.is_informative(limits.kv_threshold):
            self.observed.record(lengths.osl_tokens, found.tokens_in_use)
        tokens = found.tokens_in_use + found.waiting_requests * request_tokens(
            role, lengths.isl_tokens, lengths.osl_tokens
        )
        if role == "prefill":  # its cache is nearly empty however busy it is
            return max(tokens, taken * self._can_hold(worker, found, limits, lengths))
        return tokens

    def _measured(self, pool: Pool, limits: TokenLimits, lengths: ObservedLengths | None) -> float | None:
        found: list[float] = []
        for worker in pool.workers.values():
            has = holding(worker) if worker.counted else None
            if has is not None:
                found.append(has.kv_tokens if lengths is None else self._can_hold(worker, has, limits, lengths))
        return median(found) if found else None

    def _can_hold(self, worker: WorkerState, found: WorkerKv, limits: TokenLimits, lengths: ObservedLengths) -> float:
        batched, sequences = worker.record.max_batched_tokens, worker.record.max_batch_requests
        derived = derived_tokens(
            lengths.isl_tokens, lengths.osl_tokens, batched or DEFAULT_BATCHED_TOKENS, sequences or DEFAULT_SEQUENCES
        )
        return worker_tokens(found, limits, self.observed, lengths.osl_tokens, derived or None)


def _counts(pool: Pool, name: str) -> bool:
    worker = pool.workers.get(name)
    return worker is not None and worker.counted
