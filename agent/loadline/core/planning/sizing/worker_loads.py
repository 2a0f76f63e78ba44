"""What each worker of a pool has to do, and what latency that gives: new samples are seen once, old ones not at all."""

from math import expm1
from typing import Final
from zlib import crc32

from msgspec import Struct, field

from loadline.core.engines.regression import SAMPLES_MAX, SAMPLES_MIN, Regression
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.worker import WorkerState
from loadline.core.vocabulary.samples import WorkerSample

CALM_MS: Final = 60_000
"""Whether less would do is judged by this long a mean: of many workers, one is always busy for a moment."""
_COLD_MS: Final = 30_000
"""A worker that has just come compiles, fills its cache and takes what has waited: its latencies are not its load's."""
_PROMPTS: Final = 64
"""The mean length of prompts is of about so many: one prompt of 30,000 tokens among 300 of 500 must not move it far."""
_SPIKE: Final = 2.0
"""A load counts by so much less while its mean is lower: a spike is none, and a flood is one at once."""


class LoadMean(Struct):
    """A load now, its mean over the last while, and over a long one: what is held against a lower bound."""

    now: float
    mean: float
    calm: float

    def push(self, value: float, share: float, calm_share: float) -> None:
        """A new value, and how much of it each mean takes up."""
        self.now = value
        self.mean += (value - self.mean) * share
        self.calm += (value - self.calm) * calm_share

    @property
    def high(self) -> float:
        """What is held against an upper bound."""
        return max(self.mean, self.now / _SPIKE)


class LatencySample(Struct):
    """One worker."""

    incarnation: int
    seen_ms: int
    sequence: int
    warm_ms: int
    """From when on its latencies belong to its load."""
    prefill_tokens: LoadMean | None = None
    computing: LoadMean | None = None
    """Whether it computes prompts: 1 or 0."""
    decode_blocks: LoadMean | None = None
    ttfts_ms: dict[int, float] = field(default_factory=dict)
    """The last TTFT of each rank."""


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
    workers: dict[str, LatencySample] = field(default_factory=dict)
    unread: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    """Samples that are not in the lines yet: to draw a line takes 0.1 ms, which is too much for every report."""
    drawn_ms: int = -1
    began_ms: int = -1
    """When the first worker was seen."""

    def draw_apart(self, name: str, now: int) -> None:
        """Have the lines of pools of different names drawn at different times: 200 at once took a turn 13 ms."""
        self.drawn_ms = now - crc32(name.encode()) % self.mean_ms

    def look(self, pool: Pool, now: int) -> None:
        """Take in the samples that are new."""
        if self.began_ms < 0 and pool.changed:
            self.began_ms = now
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
                line.extend(self.unread.pop(kind, ()))

    def _take(self, name: str, worker: WorkerState, now: int) -> None:
        samples = [sample for sample in worker.latest if sample is not None]
        sequence = 0
        for sample in samples:
            sequence += sample.sequence
        known = self.workers.get(name)
        if known is None or known.incarnation != worker.record.incarnation:
            warm_ms = now + _COLD_MS if self.began_ms >= 0 and now > self.began_ms else now
            known = self.workers[name] = LatencySample(worker.record.incarnation, now - self.mean_ms, -1, warm_ms)
        if sequence == known.sequence:
            return
        age_ms = max(0, now - known.seen_ms)
        shares = -expm1(-age_ms / self.mean_ms), -expm1(-age_ms / CALM_MS)
        known.sequence, known.seen_ms = sequence, now
        role, block = worker.record.role, worker.record.block_size_tokens
        prefill = _prefill_tokens(samples) if role != "decode" else None
        blocks = _decode_blocks(samples, block) if role != "prefill" else None
        known.prefill_tokens = _pushed(known.prefill_tokens, prefill, *shares)
        known.computing = _pushed(known.computing, None if prefill is None else float(prefill > 0.0), *shares)
        known.decode_blocks = _pushed(known.decode_blocks, blocks, *shares)
        warm = now >= known.warm_ms
        for sample in samples:
            isl, ttft_ms, itl_ms = sample.isl_tokens, sample.ttft_ms, sample.itl_ms
            # A rank repeats its last TTFT and ISL until there are others: only the first time they belong to the load.
            if ttft_ms and prefill is not None and ttft_ms != known.ttfts_ms.get(sample.rank):
                if isl:
                    self.isl_tokens += (isl - self.isl_tokens) / _PROMPTS if self.isl_tokens else isl
                if warm:
                    self._note("prefill", prefill + (isl or 0.0), ttft_ms)
                known.ttfts_ms[sample.rank] = ttft_ms
            if warm and itl_ms and blocks and sample.running_requests != 0:
                self._note("decode", blocks, itl_ms)


def _pushed(mean: LoadMean | None, value: float | None, share: float, calm_share: float) -> LoadMean | None:
    if value is None:
        return None
    if mean is None:
        return LoadMean(value, value, value)
    mean.push(value, share, calm_share)
    return mean


def _counts(pool: Pool, name: str) -> bool:
    worker = pool.workers.get(name)
    return worker is not None and worker.counted


def _prefill_tokens(samples: list[WorkerSample]) -> float | None:
    """Prompt tokens that wait or are computed, of the rank mean; None where it is not said."""
    total = said = 0
    for sample in samples:
        queued, active = sample.queued_prefill_tokens, sample.active_prefill_tokens
        if queued is not None or active is not None:
            total += (queued or 0) + (active or 0)
            said += 1
    return total / said if said else None


def _decode_blocks(samples: list[WorkerSample], block_size_tokens: int | None) -> float | None:
    """KV blocks in use, and those that computed prompts wait for, of the rank mean; None where it is not said."""
    total, said = 0.0, 0
    for sample in samples:
        used, waiting = sample.kv_blocks_used, sample.waiting_to_decode_tokens
        if used is not None:
            total += used + waiting / block_size_tokens if waiting and block_size_tokens else used
            said += 1
    return total / said if said else None
