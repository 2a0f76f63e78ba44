"""Configured performance of the engines of a pool, and the objectives of a model."""

from functools import lru_cache
from typing import Annotated, Final

from msgspec import Meta, Struct

from loadline.core.engines.latency_models import DecodeModel, PrefillModel, decode_surface, prefill_curve
from loadline.core.engines.linear import LinearDecode, LinearPrefill, LinearTimes
from loadline.core.engines.sweeps import DecodeSweep, PrefillSweep

_CACHE_MAX: Final = 1_024
_Time = Annotated[float, Meta(ge=0, le=1e6)]


class ObjectiveKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Latency and throughput objectives of a model."""

    ttft_ms: Annotated[float, Meta(gt=0, description="Time to first token, in ms.")] = 500.0
    itl_ms: Annotated[float, Meta(gt=0, description="Mean inter-token latency of a request, in ms.")] = 50.0
    tokens_per_s: Annotated[
        float,
        Meta(
            ge=0,
            le=1e12,
            description="Above 0: output tokens per second to provide at any traffic, with 10 % headroom, for the"
            " planners queueing and hybrid.",
        ),
    ] = 0.0
    attainment: Annotated[
        Annotated[float, Meta(ge=0, le=0.999)] | None,
        Meta(
            description="Fraction of requests that must meet the objectives; 0: only their mean latencies must; "
            "unset: the planner's default."
        ),
    ] = None


class LinearKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Six parameters of an engine, instead of measured profiles."""

    alpha: Annotated[_Time, Meta(description="A decode iteration takes alpha + beta * batch ms.")]
    beta: Annotated[_Time, Meta(description="Time per request of the batch, in ms.")]
    gamma: Annotated[_Time, Meta(description="A prefill pass takes gamma + delta * tokens ms.")]
    delta: Annotated[_Time, Meta(description="Time per prompt token, in ms.")]
    max_kv_tokens: Annotated[float, Meta(gt=0, le=1e12, description="Capacity of a worker's KV cache, in tokens.")]
    max_batch_requests: Annotated[float, Meta(ge=1, le=1e6, description="Largest decode batch, in requests.")] = 256.0

    def times(self) -> LinearTimes:
        """Return the four latency parameters.

        Raises:
            ValueError: Both parameters of an iteration or of a pass are 0.
        """
        return LinearTimes(self.alpha, self.beta, self.gamma, self.delta)


class EngineProfile(Struct, frozen=True, omit_defaults=True):
    """Sweeps or linear parameters of the engines of a pool."""

    prefill: PrefillSweep | None = None
    decode: DecodeSweep | None = None
    linear: LinearKnobs | None = None
    problem: str = ""
    """Problem of the configured profile with its remedy; empty: none."""

    def prefill_model(self, gpus: int) -> PrefillModel | None:
        """Return the prefill model of workers with ``gpus`` GPUs; None without a profile."""
        if self.prefill is not None:
            return prefill_curve(self.prefill)
        return None if self.linear is None else LinearPrefill(self.linear.times(), gpus)

    def prefill_gpus(self, gpus: int) -> int:
        """Return the GPUs by which the prefill throughput of a worker with ``gpus`` GPUs was divided."""
        return gpus if self.prefill is None else _prefill_gpus(self.prefill)

    def decode_gpus(self, gpus: int) -> int:
        """Return the GPUs by which the decode throughput of a worker with ``gpus`` GPUs was divided."""
        return gpus if self.decode is None else _decode_gpus(self.decode)

    def decode_model(self, gpus: int) -> DecodeModel | None:
        """Return the decode model of workers with ``gpus`` GPUs; None without a profile."""
        if self.decode is not None:
            return decode_surface(self.decode)
        linear = self.linear
        if linear is None:
            return None
        return LinearDecode(linear.times(), linear.max_kv_tokens, linear.max_batch_requests, gpus)


NO_PROFILE: Final = EngineProfile()
"""Profile of a pool without profiles or linear parameters."""


@lru_cache(_CACHE_MAX)
def _prefill_gpus(sweep: PrefillSweep) -> int:
    """Return the GPUs by which a profiler divided prefill throughput, derived from the latencies.

    Some profilers divide by the GPUs of a node even if the worker occupies fewer. The latencies of a profile are those
    of the worker, so its throughput is multiplied by this number again, and not by the GPUs of the pool.
    """
    points = zip(sweep.isl_tokens, sweep.ttft_ms, sweep.tokens_per_s_per_gpu, strict=True)
    return max(1, round(min(isl / ttft * 1_000.0 / rate for isl, ttft, rate in points)))


@lru_cache(_CACHE_MAX)
def _decode_gpus(sweep: DecodeSweep) -> int:
    """Return the same for decode: the smallest quotient, since an overstated batch size increases it."""
    points = zip(sweep.kv_usage, sweep.context_tokens, sweep.itl_ms, sweep.tokens_per_s_per_gpu, strict=True)
    batches = ((usage * sweep.max_kv_tokens / context, itl, rate) for usage, context, itl, rate in points if usage)
    return max(1, round(min((batch / itl * 1_000.0 / rate for batch, itl, rate in batches), default=1.0)))
