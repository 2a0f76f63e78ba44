"""What a worker can hold in KV tokens, as llm-d's second analyser reckons it.

A worker is bound by memory (k1, a share of its KV cache) and by compute (k2, the tokens at which its queue grows). The
rules are those of the Workload Variant Autoscaler of 2026-08. Two differ. A queue at a nearly empty cache says nothing
of what a worker can hold: it waits for prefill, and no more is learned from it. And a worker that holds more without a
queue than it was ever to be able to shows that this is wrong.
"""

from typing import Annotated, Final

from msgspec import Meta, Struct, field

from loadline.core.vocabulary.scalars import Role

BATCHED_TOKENS: Final = 8_192
"""Largest batch of an engine that does not say, in tokens: vLLM's default."""
SEQUENCES: Final = 256
"""The same in requests."""
_REMEMBERED: Final = 10
"""Observations of which the mean counts, as in the original."""
_TOKENS_MAX: Final = 1e12
"""More than any worker holds: it was a slip."""
_TELLING: Final = 0.5
"""Share of k1 below which a queue says nothing of what a worker can hold. The original learned 16 % of a cache once."""
_BUCKETS: Final = (100, 500)
"""Mean output lengths (tokens) from which on workers are another kind of busy."""


def memory_tokens(kv_tokens: float, kv_threshold: float) -> float:
    """k1: the part of a KV cache that may be in use."""
    return kv_tokens * kv_threshold


def derived_tokens(
    isl_tokens: float, osl_tokens: float, batched_tokens: float = BATCHED_TOKENS, sequences: float = SEQUENCES
) -> float:
    """k2 by the flags of an engine: the requests of its largest batch, half way through their output.

    Of so many tokens a batch, each request needs its whole prompt once and a token for every one of its output.
    """
    if isl_tokens + osl_tokens <= 0.0:
        return 0.0
    requests = min(batched_tokens * osl_tokens / (isl_tokens + osl_tokens), sequences)
    return requests * (isl_tokens + osl_tokens / 2.0)


_Observed = Annotated[float, Meta(ge=1, le=_TOKENS_MAX)]


class ObservedCapacity(Struct):
    """Tokens that workers held when requests queued, by the mean length of outputs."""

    by_bucket: dict[
        Annotated[int, Meta(ge=0, le=len(_BUCKETS))],
        Annotated[list[_Observed], Meta(min_length=1, max_length=_REMEMBERED)],
    ] = field(default_factory=dict)

    def record(self, osl_tokens: float, tokens: float) -> None:
        """One more observation; the oldest of its kind goes. One that cannot be says nothing."""
        if not 1.0 <= tokens <= _TOKENS_MAX:
            return
        kept = self.by_bucket.setdefault(_bucket(osl_tokens), [])
        kept.append(tokens)
        del kept[:-_REMEMBERED]

    def mean(self, osl_tokens: float) -> float | None:
        """The mean of its kind; None where there is none."""
        kept = self.by_bucket.get(_bucket(osl_tokens))
        return sum(kept) / len(kept) if kept else None


def _bucket(osl_tokens: float) -> int:
    return sum(osl_tokens >= bound for bound in _BUCKETS)


class WorkerKv(Struct, frozen=True):
    """What a worker has and holds, in KV tokens, and how many requests wait at it."""

    kv_tokens: float
    tokens_in_use: float
    waiting_requests: float

    def is_queueing(self, queue_threshold: float) -> bool:
        """Whether so many wait that it can hold no more."""
        return self.waiting_requests >= queue_threshold

    def is_informative(self, kv_threshold: float) -> bool:
        """Whether its queue says what it can hold."""
        return self.tokens_in_use >= _TELLING * memory_tokens(self.kv_tokens, kv_threshold)


class TokenLimits(Struct, frozen=True):
    """When a worker is full."""

    kv_threshold: float = 0.8
    queue_threshold: float = 5.0


def worker_tokens(
    worker: WorkerKv, limits: TokenLimits, observed: ObservedCapacity, osl_tokens: float, derived: float | None
) -> float:
    """What a worker can hold: the lesser of k1 and k2.

    k2 is what it holds while requests queue, or the mean of what was observed, or what its flags say. Of none of them,
    and where it holds more while hardly any request waits, k1 alone counts.
    """
    k1 = memory_tokens(worker.kv_tokens, limits.kv_threshold)
    queues = worker.is_queueing(limits.queue_threshold)
    if queues and worker.is_informative(limits.kv_threshold):
        return min(k1, worker.tokens_in_use)
    k2 = observed.mean(osl_tokens) or derived or k1
    return k1 if worker.tokens_in_use > k2 and not queues else min(k1, k2)


def empty_pool_tokens(stored: float | None, derived: float, like: float | None) -> float:
    """What a worker of a pool without workers could hold: as known, or by its flags and at most as one like it."""
    if stored is not None:
        return stored
    return derived if like is None else min(derived, like)


def request_tokens(role: Role, isl_tokens: float, osl_tokens: float) -> float:
    """What a request that waits will hold: its prompt where it is prefilled, its output too where it is decoded."""
    return isl_tokens if role == "prefill" else isl_tokens + osl_tokens
