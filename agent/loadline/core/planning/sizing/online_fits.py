"""What the engines of a pool take, learned from what its workers report of their iterations."""

from typing import Final
from zlib import crc32

from msgspec import Struct, field

from loadline.core.engines.fitting import LATENCY_MIN_MS
from loadline.core.engines.online_fit import LearnedLine
from loadline.core.engines.regression import Line
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.worker import WorkerState
from loadline.core.vocabulary.samples import WorkerSample
from loadline.core.vocabulary.scalars import Role

_REFIT_MS: Final = 10_000
"""To draw both lines takes 0.5 ms."""
_TIME_MAX_MS: Final = 1e6


class EngineLines(Struct, frozen=True):
    """Times of an engine, of one rank of a worker: of iterations by the batch, of passes by their tokens."""

    decode: Line | None = None
    prefill: Line | None = None
    gpus_per_worker: int = 0
    accelerator: str = ""
    """They are those of an engine that runs on this."""

    def known(self, role: Role) -> bool:
        """Whether they are all that a role needs."""
        return (self.decode is not None or role == "prefill") and (self.prefill is not None or role == "decode")

    def plausible(self) -> bool:
        """Whether engines can take such times: the bounds are those of the linear parameters of a pool."""
        return all(_plausible(line) for line in (self.decode, self.prefill) if line is not None)

    def fits(self, pool: Pool) -> bool:
        """Whether they are of engines like those of a pool."""
        return (self.gpus_per_worker, self.accelerator) == (pool.knobs.gpus_per_worker, pool.knobs.accelerator)


NO_LINES: Final = EngineLines()


class PoolFit(Struct):
    """The lines of a pool, and what its workers last said."""

    gpus_per_worker: int
    accelerator: str
    """What they run on: on anything else they are not these."""
    decode: LearnedLine = field(default_factory=LearnedLine)
    prefill: LearnedLine = field(default_factory=LearnedLine)
    sequences: dict[str, int] = field(default_factory=dict)
    """Of each worker the sum of those of its ranks: a sample is taken once."""
    refit_at_ms: int = -1

    @classmethod
    def of(cls, pool: Pool, before: EngineLines) -> "PoolFit":
        """Of a pool as it is now; what was known before counts if it is of such engines."""
        known = before if before.fits(pool) else NO_LINES
        decode, prefill = LearnedLine(line=known.decode), LearnedLine(line=known.prefill)
        return cls(pool.knobs.gpus_per_worker, pool.knobs.accelerator, decode, prefill)

    def fits(self, pool: Pool) -> bool:
        """Whether the pool still has the engines that were learned."""
        return self.lines().fits(pool)

    def look(self, pool: Pool, now: int) -> None:
        """Take in the samples that are new, and draw the lines when that is due: of other pools at another time."""
        for name in pool.changed:
            worker = pool.workers.get(name)
            if worker is not None and worker.counted:
                self._take(name, worker, now)
        if len(self.sequences) > len(pool.workers):
            self.sequences = {name: sequence for name, sequence in self.sequences.items() if name in pool.workers}
        if now >= self.refit_at_ms:
            self.decode.refit(now)
            self.prefill.refit(now)
            self.refit_at_ms = now + _REFIT_MS - (now + crc32(pool.name.encode())) % _REFIT_MS

    def lines(self) -> EngineLines:
        """What is known now."""
        return EngineLines(self.decode.line, self.prefill.line, self.gpus_per_worker, self.accelerator)

    def problem(self, pool: Pool) -> str:
        """Why a line that the role of the pool needs is not known, or is not drawn anew; empty: nothing."""
        role = pool.knobs.role
        if role != "decode" and self.prefill.problem:
            return f"prefill: {self.prefill.problem}"
        return f"decode: {self.decode.problem}" if role != "prefill" and self.decode.problem else ""

    def _take(self, name: str, worker: WorkerState, now: int) -> None:
        samples = [sample for sample in worker.latest if sample is not None]
        sequence = sum(sample.sequence for sample in samples)
        if self.sequences.get(name) == sequence:
            return
        self.sequences[name] = sequence
        for sample in samples:
            self._push(sample, worker.record.max_batched_tokens, now)

    def _push(self, sample: WorkerSample, tokens_max: int | None, now: int) -> None:
        """An iteration with prompts in it is a pass, whatever it decodes beside: they take as long as it."""
        if sample.iteration_ms is None:
            return
        if sample.active_prefill_tokens:
            tokens = min(sample.active_prefill_tokens, tokens_max or sample.active_prefill_tokens)
            self.prefill.push(now, tokens, sample.iteration_ms)
        elif sample.decode_batch_requests:
            self.decode.push(now, sample.decode_batch_requests, sample.iteration_ms)


def _plausible(line: Line) -> bool:
    within = 0.0 <= line.slope <= _TIME_MAX_MS and 0.0 <= line.intercept_ms <= _TIME_MAX_MS
    return within and line.slope + line.intercept_ms >= LATENCY_MIN_MS


class EngineFits(Struct):
    """Lines of the engines of each pool, learned here or imported."""

    fits: dict[str, PoolFit] = field(default_factory=dict)
    lines: dict[str, EngineLines] = field(default_factory=dict)

    def forget_pool(self, pool: str) -> None:
        """Drop everything about a pool."""
        self.fits.pop(pool, None)
        self.lines.pop(pool, None)

    def is_outdated(self, pool: Pool) -> bool:
        """Return whether the pool has other engines now than those that were learned."""
        fit = self.fits.get(pool.name)
        return fit is not None and not fit.fits(pool)

    def update(self, pool: Pool, now: int) -> None:
        """Learn from the newest samples of a pool's workers."""
        fit = self.fits.get(pool.name)
        if fit is None:
            fit = self.fits[pool.name] = PoolFit.of(pool, self.lines.pop(pool.name, NO_LINES))
        fit.look(pool, now)
        lines = fit.lines()
        if lines.decode is not None or lines.prefill is not None:
            self.lines[pool.name] = lines

    def learning_problem(self, pool: Pool) -> str | None:
        """Return what is missing to learn the engines of a pool; None if they are not being learned."""
        fit, lines = self.fits.get(pool.name), self.lines.get(pool.name, NO_LINES)
        if fit is None or pool.engine.problem or lines.known(pool.knobs.role):
            return None
        return fit.problem(pool)
