"""Latency lines of the engines of a pool, learned online from the iterations that its workers report."""

from collections.abc import Container
from typing import Final
from zlib import crc32

from msgspec import Struct, field

from loadline.core.engines.fitting import LATENCY_MIN_MS
from loadline.core.engines.online_fit import LearnedLine
from loadline.core.engines.regression import Line
from loadline.core.fleet.estimates import decode_iterations, kv_usage_ratio, prefill_passes
from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.worker import WorkerState
from loadline.core.planning.sizing.decode_queues import waits_for_prefill
from loadline.core.vocabulary.samples import WorkerSample
from loadline.core.vocabulary.scalars import Role

_REFIT_MS: Final = 10_000
"""Interval between two fits, which take 0.5 ms for both lines."""
_FULL_REPORTS: Final = 3
"""Successive reports with a queue and the same batch that show the largest batch: a prefill budget alone varies it."""
_KV_MAX: Final = 0.9
"""KV usage from which on a queue waits for the cache."""
_TIME_MAX_MS: Final = 1e6
"""Bound of plausible times, as of the linear parameters of a pool."""


class EngineLines(Struct, frozen=True):
    """Latency lines of one rank of a worker: decode iterations by batch, and prefill passes by tokens."""

    decode: Line | None = None
    prefill: Line | None = None
    gpus_per_worker: int = 0
    accelerator: str = ""
    """Accelerator that the lines were learned on."""
    batch_max: int = 0
    """Largest batch of a rank, seen while requests waited for it; 0: unknown."""

    def covers(self, role: Role) -> bool:
        """Return True if all lines that a role needs are known."""
        return (self.decode is not None or role == "prefill") and (self.prefill is not None or role == "decode")

    def are_plausible(self) -> bool:
        """Return True if the times are within the bounds of the linear parameters of a pool."""
        return all(_is_plausible(line) for line in (self.decode, self.prefill) if line is not None)

    def match(self, pool: Pool) -> bool:
        """Return True if the pool has the hardware that the lines were learned on."""
        return (self.gpus_per_worker, self.accelerator) == (pool.knobs.gpus_per_worker, pool.knobs.accelerator)


NO_LINES: Final = EngineLines()


class FullBatch(Struct):
    """Largest batch of the ranks of a pool: engines that register none show it while requests wait for it."""

    requests: int = 0
    """Largest batch; 0: unknown."""
    queued: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Batch of each rank that has a queue, and the number of its reports so far, by worker and rank."""

    def record(self, worker: WorkerState, sample: WorkerSample) -> None:
        """Record a report of a rank. A queue while the KV cache is full, or may be, tells nothing."""
        batch, place = sample.running_requests or 0, f"{worker.record.worker}/{sample.rank}"
        if self.requests:
            self.requests = max(self.requests, batch)
        usage = kv_usage_ratio(sample, worker.record)
        if batch <= 1 or not sample.waiting_requests or usage is None or usage >= _KV_MAX:
            self.queued.pop(place, None)
            return
        before, count = self.queued.get(place, (batch, 0))
        self.queued[place] = batch, count + 1 if before == batch else 1
        if self.queued[place][1] >= _FULL_REPORTS:
            self.requests = max(self.requests, batch)

    def forget_others(self, workers: Container[str]) -> None:
        """Drop the ranks of all other workers."""
        self.queued = {place: one for place, one in self.queued.items() if place.rpartition("/")[0] in workers}


class PoolEngineFit(Struct):
    """Samples and lines of the engines of a pool, and the reports that are already included."""

    gpus_per_worker: int
    accelerator: str
    """Accelerator that the lines are learned on."""
    decode: LearnedLine = field(default_factory=LearnedLine)
    prefill: LearnedLine = field(default_factory=LearnedLine)
    batch: FullBatch = field(default_factory=FullBatch)
    sequences: dict[str, int] = field(default_factory=dict)
    """Sum of the sequences of the ranks of each worker, so that a sample is counted once."""
    refit_at_ms: int = -1

    @classmethod
    def of(cls, pool: Pool, previous: EngineLines) -> "PoolEngineFit":
        """Start to learn the engines of a pool, from previous lines if the hardware is the same."""
        known = previous if previous.match(pool) else NO_LINES
        decode, prefill = LearnedLine(line=known.decode), LearnedLine(line=known.prefill)
        batch = FullBatch(known.batch_max)
        return cls(pool.knobs.gpus_per_worker, pool.knobs.accelerator, decode, prefill, batch)

    def matches(self, pool: Pool) -> bool:
        """Return True if the pool still has the hardware that the lines are learned on."""
        return self.lines().match(pool)

    def update(self, pool: Pool, now: int, *, is_own_queue: bool) -> None:
        """Record new samples, and fit the lines when due; the fits of different pools are staggered.

        Args:
            pool: The pool.
            now: Unix time in ms.
            is_own_queue: True if its requests wait for its workers, and not for prefill workers.
        """
        for name in pool.changed:
            worker = pool.workers.get(name)
            if worker is not None and worker.counted:
                self._record(name, worker, now, is_own_queue=is_own_queue)
        if len(self.sequences) > len(pool.workers):
            self.sequences = {name: sequence for name, sequence in self.sequences.items() if name in pool.workers}
            self.batch.forget_others(pool.workers)
        if now >= self.refit_at_ms:
            self.decode.refit(now)
            self.prefill.refit(now)
            self.refit_at_ms = now + _REFIT_MS - (now + crc32(pool.name.encode())) % _REFIT_MS

    def lines(self) -> EngineLines:
        """Return the present lines."""
        lines = self.decode.line, self.prefill.line
        return EngineLines(*lines, self.gpus_per_worker, self.accelerator, self.batch.requests)

    def problem(self, pool: Pool) -> str:
        """Return the reason why a line that the pool's role needs was not adopted; empty if all were."""
        role = pool.knobs.role
        if role != "decode" and self.prefill.problem:
            return f"prefill: {self.prefill.problem}"
        return f"decode: {self.decode.problem}" if role != "prefill" and self.decode.problem else ""

    def _record(self, name: str, worker: WorkerState, now: int, *, is_own_queue: bool) -> None:
        samples = [sample for sample in worker.latest if sample is not None]
        sequence = sum(sample.sequence for sample in samples)
        if self.sequences.get(name) == sequence:
            return
        self.sequences[name] = sequence
        for sample in samples:
            if is_own_queue:
                self.batch.record(worker, sample)
            for tokens, time_ms in prefill_passes(sample, worker.record):
                self.prefill.push(now, tokens, time_ms)
            for batch, time_ms in decode_iterations(sample):
                self.decode.push(now, batch, time_ms)


def _is_plausible(line: Line) -> bool:
    within = 0.0 <= line.slope <= _TIME_MAX_MS and 0.0 <= line.intercept_ms <= _TIME_MAX_MS
    return within and line.slope + line.intercept_ms >= LATENCY_MIN_MS


class EngineFits(Struct):
    """Lines of the engines of each pool, learned here or imported."""

    fits: dict[str, PoolEngineFit] = field(default_factory=dict)
    lines: dict[str, EngineLines] = field(default_factory=dict)

    def forget_pool(self, pool: str) -> None:
        """Drop everything about a pool."""
        self.fits.pop(pool, None)
        self.lines.pop(pool, None)

    def is_outdated(self, pool: Pool) -> bool:
        """Return True if the pool has other hardware now than its lines were learned on."""
        fit = self.fits.get(pool.name)
        return fit is not None and not fit.matches(pool)

    def update(self, model: Model, pool: Pool, now: int) -> None:
        """Learn from the newest samples of the workers of a pool of a model."""
        fit = self.fits.get(pool.name)
        if fit is None:
            fit = self.fits[pool.name] = PoolEngineFit.of(pool, self.lines.pop(pool.name, NO_LINES))
        fit.update(pool, now, is_own_queue=not waits_for_prefill(model, pool))
        lines = fit.lines()
        if lines.decode is not None or lines.prefill is not None:
            self.lines[pool.name] = lines

    def learning_problem(self, pool: Pool) -> str | None:
        """Return the reason why the engines of a pool are not learned yet; None if they are, or need not be."""
        fit, lines = self.fits.get(pool.name), self.lines.get(pool.name, NO_LINES)
        if fit is None or pool.engine.problem or lines.covers(pool.knobs.role):
            return None
        return fit.problem(pool)
