"""Times from four numbers, as the workload variant autoscaler of llm-d and its queueing model have them.

A decode iteration takes ``alpha + beta * batch`` ms, a prefill pass ``gamma + delta * tokens`` ms. There it is
``gamma + delta * tokens * batch`` of equal prompts; here ``tokens`` is the pass's total, which is the same.
"""

import math

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from loadline.core.engines.latency_models import BestThroughput

Numbers = NDArray[np.float64]


class LinearTimes(Struct, frozen=True):
    """Parameters in ms, ms a request, ms, and ms a token.

    Raises:
        ValueError: A parameter is negative or not finite, or an iteration or a prompt would take no time.
    """

    alpha: float
    beta: float
    gamma: float
    delta: float

    def __post_init__(self) -> None:
        for name in ("alpha", "beta", "gamma", "delta"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}: write a finite number of ms, at least 0")
        if self.alpha + self.beta == 0.0 or self.gamma + self.delta == 0.0:
            raise ValueError("work takes no time: write alpha or beta above 0, and gamma or delta")


class LinearPrefill(Struct, frozen=True):
    """A prefill model (``profile.PrefillModel``) of an engine on ``gpus`` GPUs."""

    times: LinearTimes
    gpus: int = 1

    def ttft_ms(self, isl_tokens: Numbers) -> Numbers:
        """Time of a pass over one prompt, in ms."""
        value: Numbers = self.times.gamma + self.times.delta * np.maximum(isl_tokens, 1.0)
        return value

    @property
    def pass_overhead_ms(self) -> float:
        """What every pass takes, in ms."""
        return self.times.gamma

    @property
    def ttft_min_ms(self) -> float:
        """The TTFT of a prompt of one token, in ms."""
        return self.times.gamma + self.times.delta

    def tokens_per_s_per_gpu(self, isl_tokens: Numbers) -> Numbers:
        """Prompt tokens a second that one GPU computes, one prompt after the other."""
        value: Numbers = np.maximum(isl_tokens, 0.0) / self.ttft_ms(isl_tokens) * 1_000.0 / self.gpus
        return value


class LinearDecode(Struct, frozen=True):
    """A decode model (``profile.DecodeModel``) of an engine on ``gpus`` GPUs, with its KV cache and largest batch."""

    times: LinearTimes
    max_kv_tokens: float
    max_batch_requests: float
    gpus: int = 1

    def itl_ms(self, kv_usage: Numbers, context_tokens: Numbers) -> Numbers:
        """Time of an iteration, in ms."""
        value: Numbers = self.times.alpha + self.times.beta * self._batch(kv_usage, context_tokens)
        return value

    def tokens_per_s_per_gpu(self, kv_usage: Numbers, context_tokens: Numbers) -> Numbers:
        """Tokens a second that one GPU generates: one for each request of the batch in every iteration."""
        rate: Numbers = self._batch(kv_usage, context_tokens) / self.itl_ms(kv_usage, context_tokens)
        return rate * 1_000.0 / self.gpus

    def find_best_throughput_per_gpu(self, itl_ms: float, context_tokens: float) -> BestThroughput | None:
        """The largest batch whose ITL is at most ``itl_ms``: throughput rises with the batch. None: not even one."""
        context = max(context_tokens, 1.0)
        room = min(self.max_batch_requests, self.max_kv_tokens / context)
        fits = (itl_ms - self.times.alpha) / self.times.beta if self.times.beta else math.inf
        batch = min(room, fits)
        itl = self.times.alpha + self.times.beta * batch
        if batch < 1.0 or not itl <= itl_ms * (1.0 + 1e-12):
            return None
        return BestThroughput(batch / itl * 1_000.0 / self.gpus, itl, min(1.0, batch * context / self.max_kv_tokens))

    @property
    def itl_min_ms(self) -> float:
        """The ITL of one request, in ms."""
        return self.times.alpha + self.times.beta

    def _batch(self, kv_usage: Numbers, context_tokens: Numbers) -> Numbers:
        full = np.minimum(np.maximum(kv_usage, 0.0), 1.0) * self.max_kv_tokens
        batch: Numbers = np.minimum(np.maximum(full / np.maximum(context_tokens, 1.0), 1.0), self.max_batch_requests)
        return batch
