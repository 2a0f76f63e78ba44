"""What each worker of a pool has to do, and what latency that gives: new samples are seen once, old ones not at all."""

from math import expm1
from typing import Final

from msgspec import Struct, field

from loadline.core.belief.pool import Pool
from loadline.core.belief.worker import Worker
from loadline.core.models.regression import SAMPLES_MAX, SAMPLES_MIN, Regression

CALM_MS: Final = 60_000
"""Whether less would do is judged by this long a mean: of many workers, one is always busy for a moment."""
_SPIKE: Final = 2.0
"""A load counts by so much less while its mean is lower: a spike is none, and a flood is one at once."""


class Mean(Struct):
    """A load now, its mean over the last while, and over a long one: what is held against a lower bound."""

    now: float
    mean: float
    calm: float

    def push(self, value: float, age_ms: int, mean_ms: int) -> None:
        """A new value, so long after the one before."""
        self.now = value
        self.mean += (value - self.mean) * -expm1(-age_ms / mean_ms)
        self.calm += (value - self.calm) * -expm1(-age_ms / CALM_MS)

    @property
    def high(self) -> float:
        """What is held against an upper bound."""
        return max(self.mean, self.now / _SPIKE)


class WorkerLoad(Struct):
    """One worker."""

    incarnation: int
    seen_ms: int
    sequence: int
    prefill_tokens: Mean | None = None
    decode_blocks: Mean | None = None
    ttft_ms: float = 0.0


class Loads(Struct):
    """All workers of a pool, and the lines from load to latency that all of them draw together."""

    mean_ms: int
    """Means are over about this time."""
    prefill: Regression = field(default_factory=Regression)
    """Prompt tokens that wait or are computed, and those of a request, to its TTFT."""
    decode: Regression = field(default_factory=Regression)
    """KV blocks in use to ITL."""
    isl_tokens: float = 0.0
    """Mean length of the prompts of late."""
    workers: dict[str, WorkerLoad] = field(default_factory=dict)
    unread: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """Samples that are not in the lines yet: to draw a line takes 0.1 ms, which is too much for every report."""
    drawn_ms: int = -1

    def look(self, pool: Pool, now: int) -> None:
        """Take in the samples that are new."""
        for name in pool.changed:
            worker = pool.workers.get(name)
            if worker is None or not worker.counted:
                self.workers.pop(name, None)
            else:
                self._take(name, worker, now)
        if self.unread:
            self._draw(now)
        if len(self.workers) > pool.fresh:
            self.workers = {name: load for name, load in self.workers.items() if _counts(pool, name)}

    def _lines(self) -> dict[str, Regression]:
        return {"prefill": self.prefill, "decode": self.decode}

    def _note(self, kind: str, load: float, latency_ms: float) -> None:
        samples = self.unread.setdefault(kind, [])
        samples.append((load, latency_ms))
        del samples[:-SAMPLES_MAX]

    def _draw(self, now: int) -> None:
        """Take what is unread into the lines: all at once in a while, and at once into one that is not there yet."""
        due = now - self.drawn_ms >= self.mean_ms
        if due:
            self.drawn_ms = now
        for kind, line in self._lines().items():
            if due or len(line.loads) < SAMPLES_MIN:
                for load, latency_ms in self.unread.pop(kind, ()):
                    line.push(load, latency_ms)

    def _pushed(self, mean: Mean | None, value: float | None, age_ms: int) -> Mean | None:
        if value is None:
            return None
        if mean is None:
            return Mean(value, value, value)
        mean.push(value, age_ms, self.mean_ms)
        return mean

    def _take(self, name: str, worker: Worker, now: int) -> None:
        samples = [sample for sample in worker.latest if sample is not None]
        sequence = sum(sample.sequence for sample in samples)
        known = self.workers.get(name)
        if known is None or known.incarnation != worker.record.incarnation:
            known = self.workers[name] = WorkerLoad(worker.record.incarnation, now - self.mean_ms, -1)
        if sequence == known.sequence:
            return
        age_ms = max(0, now - known.seen_ms)
        known.sequence, known.seen_ms = sequence, now
        block = worker.record.block_size_tokens
        prefill, blocks = _prefill_tokens(worker), _decode_blocks(worker, block)
        known.prefill_tokens = self._pushed(known.prefill_tokens, prefill, age_ms)
        known.decode_blocks = self._pushed(known.decode_blocks, blocks, age_ms)
        for sample in samples:
            if sample.isl_tokens:
                self.isl_tokens += (sample.isl_tokens - self.isl_tokens) / 16 if self.isl_tokens else sample.isl_tokens
            # A worker repeats its last TTFT until there is another: only the first time it belongs to the load.
            if prefill is not None and sample.ttft_ms and sample.ttft_ms != known.ttft_ms:
                self._note("prefill", prefill + (sample.isl_tokens or 0.0), sample.ttft_ms)
                known.ttft_ms = sample.ttft_ms
            if blocks and sample.itl_ms and sample.running_requests != 0:
                self._note("decode", blocks, sample.itl_ms)


def _counts(pool: Pool, name: str) -> bool:
    worker = pool.workers.get(name)
    return worker is not None and worker.counted


def _prefill_tokens(worker: Worker) -> float | None:
    """Prompt tokens that wait or are computed, of the rank mean; None where it is not said."""
    said = [
        (sample.queued_prefill_tokens or 0) + (sample.active_prefill_tokens or 0)
        for sample in worker.latest
        if sample is not None and not (sample.queued_prefill_tokens is None and sample.active_prefill_tokens is None)
    ]
    return sum(said) / len(said) if said else None


def _decode_blocks(worker: Worker, block_size_tokens: int | None) -> float | None:
    """KV blocks in use, and those that computed prompts wait for, of the rank mean; None where it is not said."""
    said = [
        sample.kv_blocks_used + ((sample.waiting_to_decode_tokens or 0) / block_size_tokens if block_size_tokens else 0)
        for sample in worker.latest
        if sample is not None and sample.kv_blocks_used is not None
    ]
    return sum(said) / len(said) if said else None
