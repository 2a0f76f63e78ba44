"""Capacity of a worker in KV tokens, by the rules of llm-d's second saturation analyser.

A worker is limited by memory (k1, a fraction of its KV cache) and by compute (k2, the tokens at which its queue grows).
The rules are those of the Workload Variant Autoscaler of 2026-08, with two differences. A queue with a nearly empty
cache is not an observation of k2, since it waits for prefill. And a worker that holds more than k2 without a queue
disproves k2.
"""

from typing import Annotated, Final

from msgspec import Meta, Struct, field

from loadline.core.vocabulary.scalars import Role

DEFAULT_BATCHED_TOKENS: Final = 8_192
"""Largest batch in tokens of an engine that does not report it: vLLM's default."""
DEFAULT_SEQUENCES: Final = 256
"""Largest batch in requests of an engine that does not report it: vLLM's default."""
_OBSERVATIONS_MAX: Final = 10
"""Observations in a mean, as in the Workload Variant Autoscaler."""
_TOKENS_MAX: Final = 1e12
"""Largest plausible observation, in tokens."""
_INFORMATIVE_MIN: Final = 0.5
"""Fraction of k1 below which a queue is not an observation; the upstream rule once took 16 % of a cache for k2."""
_OUTPUT_BOUNDS: Final = (100, 500)
"""Mean output lengths in tokens that separate the kinds of load."""


def memory_tokens(kv_tokens: float, kv_threshold: float) -> float:
    """Return k1: the usable part of a KV cache."""
    return kv_tokens * kv_threshold


def derived_tokens(
    isl_tokens: float,
    osl_tokens: float,
    batched_tokens: float = DEFAULT_BATCHED_TOKENS,
    sequences: float = DEFAULT_SEQUENCES,
) -> float:
    """Return k2 derived from the flags of an engine: its largest batch, half way through the output.

    Each request takes its whole prompt once, and one token per output token, of the token budget of the batch.
    """
    if isl_tokens + osl_tokens <= 0.0:
        return 0.0
    requests = min(batched_tokens * osl_tokens / (isl_tokens + osl_tokens), sequences)
    return requests * (isl_tokens + osl_tokens / 2.0)


_Observed = Annotated[float, Meta(ge=1, le=_TOKENS_MAX)]


class ObservedCapacity(Struct):
    """Observed k2: tokens held while requests queued, by mean output length."""

    by_bucket: dict[
        Annotated[int, Meta(ge=0, le=len(_OUTPUT_BOUNDS))],
        Annotated[list[_Observed], Meta(min_length=1, max_length=_OBSERVATIONS_MAX)],
    ] = field(default_factory=dict)

    def record(self, osl_tokens: float, tokens: float) -> None:
        """Add an observation, unless it is implausible, and remove the oldest beyond the last ten of its kind."""
        if not 1.0 <= tokens <= _TOKENS_MAX:
            return
        observations = self.by_bucket.setdefault(_bucket(osl_tokens), [])
        observations.append(tokens)
        del observations[:-_OBSERVATIONS_MAX]

    def mean(self, osl_tokens: float) -> float | None:
        """Return the mean of the observations of a kind of load; None without any."""
        observations = self.by_bucket.get(_bucket(osl_tokens))
        return sum(observations) / len(observations) if observations else None


def _bucket(osl_tokens: float) -> int:
    return sum(osl_tokens >= bound for bound in _OUTPUT_BOUNDS)


class WorkerKv(Struct, frozen=True):
    """KV cache, KV usage and queue of a worker."""

    kv_tokens: float
    tokens_in_use: float
    waiting_requests: float

    def is_queueing(self, queue_threshold: float) -> bool:
        """Return True if the queue shows that the worker is full."""
        return self.waiting_requests >= queue_threshold

    def is_informative(self, kv_threshold: float) -> bool:
        """Return True if a queue at this KV usage is an observation of k2."""
        return self.tokens_in_use >= _INFORMATIVE_MIN * memory_tokens(self.kv_tokens, kv_threshold)


class TokenLimits(Struct, frozen=True):
    """Thresholds at which a worker is full: KV usage (0..1) and waiting requests."""

    kv_threshold: float = 0.8
    queue_threshold: float = 5.0


def worker_tokens(
    worker: WorkerKv, limits: TokenLimits, observed: ObservedCapacity, osl_tokens: float, derived: float | None
) -> float:
    """Return the capacity of a worker in tokens: the lesser of k1 and k2.

    k2 is what the worker holds while requests queue, or else the observed mean, or else derived from its flags. Without
    any of them, or if the worker holds more than k2 without a queue, the capacity is k1.
    """
    k1 = memory_tokens(worker.kv_tokens, limits.kv_threshold)
    queues = worker.is_queueing(limits.queue_threshold)
    if queues and worker.is_informative(limits.kv_threshold):
        return min(k1, worker.tokens_in_use)
    k2 = observed.mean(osl_tokens) or derived or k1
    return k1 if worker.tokens_in_use > k2 and not queues else min(k1, k2)


def empty_pool_tokens(stored: float | None, derived: float, similar: float | None) -> float:
    """Return the capacity of a worker of an empty pool: as stored, or derived and at most that of a similar pool."""
    if stored is not None:
        return stored
    return derived if similar is None else min(derived, similar)


def request_tokens(role: Role, isl_tokens: float, osl_tokens: float) -> float:
    """Return the tokens that a waiting request will hold: its prompt, and its output unless the role is prefill."""
    return isl_tokens if role == "prefill" else isl_tokens + osl_tokens
