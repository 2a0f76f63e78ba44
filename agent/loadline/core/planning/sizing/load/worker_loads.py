"""Loads of the workers of a pool, and regressions from load to latency. Each sample of a worker is counted once."""

from math import expm1
from statistics import median
from typing import Final
from zlib import crc32

from msgspec import Struct, field

from loadline.core.engines.regression import SAMPLES_MAX, SAMPLES_MIN, Regression
from loadline.core.fleet.estimates import blocks_used, prompt_tokens
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.worker import WorkerState
from loadline.core.planning.sizing.decode_queues import QUEUE_MAX
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample

LONG_MEAN_MS: Final = 60_000
"""Time constant of the mean that a scale-down uses: among many workers, one is always busy for a moment."""
_WARM_UP_MS: Final = 30_000
"""Time after which latencies of a new worker are used: it compiles, fills its cache and serves what was queued."""
_ISL_SAMPLES: Final = 64
"""Weight of the mean prompt length, in prompts: one of 30,000 tokens among 300 of 500 must not move it far."""
_SPIKE_FACTOR: Final = 2.0
"""Divisor of the present load where its mean is lower: a spike has little weight, a flood counts at once."""


class LoadMean(Struct):
    """Present load of a worker, its mean, and its mean over a long time."""

    now: float
    mean: float
    long_mean: float

    def push(self, value: float, weight: float, long_weight: float) -> None:
        """Record a value with its weights (0..1) in the two exponential means."""
        self.now = value
        self.mean += (value - self.mean) * weight
        self.long_mean += (value - self.long_mean) * long_weight

    @property
    def high(self) -> float:
        """Load to compare with an upper bound: the mean, or the present load by the spike factor if higher."""
        return max(self.mean, self.now / _SPIKE_FACTOR)


class ReportedLoad(Struct):
    """Load and latencies that one worker reports."""

    incarnation: int
    seen_ms: int
    sequence: int
    """Sum of the sequences of the ranks, which identifies a report."""
    warm_at_ms: int
    """Time from which on latencies are used."""
    prefill_tokens: LoadMean | None = None
    computing: LoadMean | None = None
    """1 while the worker computes prompts, otherwise 0."""
    decode_blocks: LoadMean | None = None
    ttfts_ms: dict[int, float] = field(default_factory=dict)
    """Last TTFT of each rank."""


class PoolLoads(Struct):
    """Loads of all workers of a pool, and the regressions over all of them."""

    mean_ms: int
    """Time constant of the short means, and interval between two fits."""
    prefill: Regression = field(default_factory=Regression)
    """From prompt tokens, queued, active and of the request itself, to TTFT."""
    decode: Regression = field(default_factory=Regression)
    """From used KV blocks to ITL."""
    isl_tokens: float = 0.0
    """Mean length of recent prompts."""
    workers: dict[str, ReportedLoad] = field(default_factory=dict)
    unfitted: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """Samples not yet in the regressions: a fit takes 0.1 ms, too long for every report."""
    fitted_ms: int = -1
    first_seen_ms: int = -1
    """Time of the first report of the pool."""
    queued_since_ms: int = -1
    """Time since which half of the workers have had a queue; -1: they have none."""

    def stagger_fits(self, name: str, now: int) -> None:
        """Shift the fits in time by the pool's name: 200 fits in one turn took 13 ms."""
        self.fitted_ms = now - crc32(name.encode()) % self.mean_ms

    def update(self, pool: Pool, now: int, isl_tokens: float = 0.0) -> None:
        """Record the newest samples; ``isl_tokens`` is the mean prompt of ranks that report none, 0 if unknown."""
        if self.first_seen_ms < 0 and pool.changed:
            self.first_seen_ms = now
        for name in pool.changed:
            worker = pool.workers.get(name)
            if worker is None or not worker.counted:
                self.workers.pop(name, None)
            else:
                self._record(name, worker, isl_tokens, now)
        if not _has_queue(pool):
            self.queued_since_ms = -1
        elif self.queued_since_ms < 0:
            self.queued_since_ms = now
        if self.unfitted:
            self._fit(now)
        if len(self.workers) > pool.fresh:
            known = pool.workers
            self.workers = {name: load for name, load in self.workers.items() if name in known and known[name].counted}

    def _regressions(self) -> dict[str, Regression]:
        return {"prefill": self.prefill, "decode": self.decode}

    def _add_sample(self, kind: str, load: float, latency_ms: float) -> None:
        samples = self.unfitted.setdefault(kind, [])
        samples.append((load, latency_ms))
        del samples[:-SAMPLES_MAX]

    def _fit(self, now: int) -> None:
        """Add the samples to the regressions: once per interval, or at once while a regression has too few."""
        due = now - self.fitted_ms >= self.mean_ms
        if due:
            self.fitted_ms = now
        for kind, regression in self._regressions().items():
            if due or len(regression.loads) < SAMPLES_MIN:
                regression.extend(self.unfitted.pop(kind, ()))

    def _record(self, name: str, worker: WorkerState, isl_tokens: float, now: int) -> None:
        samples = [sample for sample in worker.latest if sample is not None]
        sequence = 0
        for sample in samples:
            sequence += sample.sequence
        known = self.workers.get(name)
        if known is None or known.incarnation != worker.record.incarnation:
            is_new = self.first_seen_ms >= 0 and now > self.first_seen_ms
            warm_at_ms = now + _WARM_UP_MS if is_new else now
            known = ReportedLoad(worker.record.incarnation, now - self.mean_ms, -1, warm_at_ms)
            self.workers[name] = known
        if sequence == known.sequence:
            return
        age_ms = max(0, now - known.seen_ms)
        weights = -expm1(-age_ms / self.mean_ms), -expm1(-age_ms / LONG_MEAN_MS)
        known.sequence, known.seen_ms = sequence, now
        record = worker.record
        prefill = _prefill_tokens(samples, record, isl_tokens) if record.role != "decode" else None
        blocks = _decode_blocks(samples, record) if record.role != "prefill" else None
        known.prefill_tokens = _pushed(known.prefill_tokens, prefill, *weights)
        known.computing = _pushed(known.computing, None if prefill is None else float(prefill > 0.0), *weights)
        known.decode_blocks = _pushed(known.decode_blocks, blocks, *weights)
        warm = now >= known.warm_at_ms
        for sample in samples:
            isl, ttft_ms, itl_ms = sample.isl_tokens or isl_tokens, sample.ttft_ms, sample.itl_ms
            # A rank repeats its last TTFT and ISL until it has new ones; only the first occurrence matches the load.
            if ttft_ms and prefill is not None and ttft_ms != known.ttfts_ms.get(sample.rank):
                if isl:
                    self.isl_tokens += (isl - self.isl_tokens) / _ISL_SAMPLES if self.isl_tokens else isl
                if warm:
                    self._add_sample("prefill", prefill + isl, ttft_ms)
                known.ttfts_ms[sample.rank] = ttft_ms
            if warm and itl_ms and blocks and sample.running_requests != 0:
                self._add_sample("decode", blocks, itl_ms)


def _has_queue(pool: Pool) -> bool:
    """Return True if half of the workers have a queue."""
    if 2 * pool.load.waiting <= QUEUE_MAX * pool.fresh:  # not even if half of them had all
        return False
    return median(worker.load.waiting for worker in pool.workers.values() if worker.counted) > QUEUE_MAX


def _pushed(load: LoadMean | None, value: float | None, weight: float, long_weight: float) -> LoadMean | None:
    if value is None:
        return None
    if load is None:
        return LoadMean(value, value, value)
    load.push(value, weight, long_weight)
    return load


def _prefill_tokens(samples: list[WorkerSample], record: WorkerRecord, isl_tokens: float) -> float | None:
    """Return the queued and active prompt tokens, the mean over ranks; None if those of no rank are known."""
    known = [sum(tokens) for one in samples if (tokens := prompt_tokens(one, record, isl_tokens)) is not None]
    return sum(known) / len(known) if known else None


def _decode_blocks(samples: list[WorkerSample], record: WorkerRecord) -> float | None:
    """Return the KV blocks in use, and those that prefilled requests wait for, the mean over ranks; None if unknown."""
    total, reporting, size = 0.0, 0, record.block_size_tokens
    for sample in samples:
        used = blocks_used(sample, record)
        if used is not None:
            waiting = sample.waiting_to_decode_tokens
            total += used + waiting / size if waiting and size else used
            reporting += 1
    return total / reporting if reporting else None
