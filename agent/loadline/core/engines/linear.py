"""Linear latency models with the four parameters of llm-d's Workload Variant Autoscaler.

A decode iteration takes ``alpha + beta * batch`` ms, a prefill pass ``gamma + delta * tokens`` ms. Upstream writes
``gamma + delta * tokens * batch`` for equal prompts; here, ``tokens`` is the total of the pass.
"""

import math

import numpy as np
from msgspec import Struct

from loadline.core.engines.arrays import FloatArray
from loadline.core.engines.latency_models import BestThroughput


class LinearTimes(Struct, frozen=True):
    """Linear parameters: ms, ms per request, ms, and ms per token.

    Raises:
        ValueError: A parameter is negative or not finite, or both of an iteration or of a pass are 0.
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
    """Linear ``PrefillModel`` of an engine on ``gpus`` GPUs."""

    times: LinearTimes
    gpus: int = 1

    def ttft_ms(self, isl_tokens: FloatArray) -> FloatArray:
        """Return the time of a pass over one prompt, in ms."""
        value: FloatArray = self.times.gamma + self.times.delta * np.maximum(isl_tokens, 1.0)
        return value

    @property
    def pass_overhead_ms(self) -> float:
        """Fixed time of a pass, in ms."""
        return self.times.gamma

    @property
    def ttft_min_ms(self) -> float:
        """TTFT of a prompt of one token, in ms."""
        return self.times.gamma + self.times.delta

    def tokens_per_s_per_gpu(self, isl_tokens: FloatArray) -> FloatArray:
        """Return the prompt tokens per second that one GPU computes, with one prompt per pass."""
        value: FloatArray = np.maximum(isl_tokens, 0.0) / self.ttft_ms(isl_tokens) * 1_000.0 / self.gpus
        return value


class LinearDecode(Struct, frozen=True):
    """Linear ``DecodeModel`` of an engine on ``gpus`` GPUs, with its KV cache and largest batch."""

    times: LinearTimes
    max_kv_tokens: float
    max_batch_requests: float
    gpus: int = 1

    def itl_ms(self, kv_usage: FloatArray, context_tokens: FloatArray) -> FloatArray:
        """Return the time of an iteration, in ms."""
        value: FloatArray = self.times.alpha + self.times.beta * self._batch(kv_usage, context_tokens)
        return value

    def tokens_per_s_per_gpu(self, kv_usage: FloatArray, context_tokens: FloatArray) -> FloatArray:
        """Return the tokens per second that one GPU generates: one per request of the batch and iteration."""
        rate: FloatArray = self._batch(kv_usage, context_tokens) / self.itl_ms(kv_usage, context_tokens)
        return rate * 1_000.0 / self.gpus

    def find_best_throughput_per_gpu(self, itl_ms: float, context_tokens: float) -> BestThroughput | None:
        """Return the largest batch with an ITL of at most ``itl_ms``: throughput rises with it. None below one."""
        context = max(context_tokens, 1.0)
        batch_max = min(self.max_batch_requests, self.max_kv_tokens / context)
        within_itl = (itl_ms - self.times.alpha) / self.times.beta if self.times.beta else math.inf
        batch = min(batch_max, within_itl)
        itl = self.times.alpha + self.times.beta * batch
        if batch < 1.0 or not itl <= itl_ms * (1.0 + 1e-12):
            return None
        return BestThroughput(batch / itl * 1_000.0 / self.gpus, itl, min(1.0, batch * context / self.max_kv_tokens))

    @property
    def itl_min_ms(self) -> float:
        """ITL of a batch of one request, in ms."""
        return self.times.alpha + self.times.beta

    def _batch(self, kv_usage: FloatArray, context_tokens: FloatArray) -> FloatArray:
        full = np.minimum(np.maximum(kv_usage, 0.0), 1.0) * self.max_kv_tokens
        batch: FloatArray = np.minimum(np.maximum(full / np.maximum(context_tokens, 1.0), 1.0), self.max_batch_requests)
        return batch
