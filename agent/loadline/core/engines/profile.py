"""What is known of the engines of a pool before any of them has run, and what every request is to meet."""

from functools import lru_cache
from typing import Annotated, Final

from msgspec import Meta, Struct

from loadline.core.engines.latency_models import DecodeModel, PrefillModel, decode_surface, prefill_curve
from loadline.core.engines.linear import LinearDecode, LinearPrefill, LinearTimes
from loadline.core.engines.sweeps import DecodeSweep, PrefillSweep

_COMPILED_MAX: Final = 1_024
_Time = Annotated[float, Meta(ge=0, le=1e6)]


class ObjectiveKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """What every request of a model is to meet."""

    ttft_ms: Annotated[float, Meta(gt=0, description="Objective: time to first token, in ms.")] = 500.0
    itl_ms: Annotated[float, Meta(gt=0, description="Objective: mean inter-token latency of a request, in ms.")] = 50.0
    tokens_per_s: Annotated[
        float,
        Meta(
            ge=0,
            le=1e12,
            description="Above 0: output tokens a second that are to be served, whatever arrives, with a tenth to"
            " spare. For the planners queueing and hybrid.",
        ),
    ] = 0.0
    attainment: Annotated[
        Annotated[float, Meta(ge=0, le=0.999)] | None,
        Meta(description="Share of requests that is to meet them; 0: their means are to; none: as the planner says."),
    ] = None


class LinearKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """An engine in six numbers, in the place of measured profiles."""

    alpha: Annotated[_Time, Meta(description="A decode iteration takes alpha + beta * batch ms.")]
    beta: Annotated[_Time, Meta(description="ms that each request of the batch adds.")]
    gamma: Annotated[_Time, Meta(description="A prefill pass takes gamma + delta * tokens ms.")]
    delta: Annotated[_Time, Meta(description="ms that each prompt token adds.")]
    max_kv_tokens: Annotated[float, Meta(gt=0, le=1e12, description="Tokens that the KV cache of a worker holds.")]
    max_batch_requests: Annotated[float, Meta(ge=1, le=1e6, description="Most requests that decode together.")] = 256.0

    def times(self) -> LinearTimes:
        """The four parameters of time.

        Raises:
            ValueError: Work would take no time.
        """
        return LinearTimes(self.alpha, self.beta, self.gamma, self.delta)


class EngineProfile(Struct, frozen=True, omit_defaults=True):
    """Sweeps or linear parameters of the engines of one pool; or why there are none."""

    prefill: PrefillSweep | None = None
    decode: DecodeSweep | None = None
    linear: LinearKnobs | None = None
    problem: str = ""
    """What is wrong with them, and the remedy; empty: nothing."""

    def prefill_model(self, gpus: int) -> PrefillModel | None:
        """What planners ask of prefill, of workers of so many GPUs; None where nothing is known."""
        if self.prefill is not None:
            return prefill_curve(self.prefill)
        return None if self.linear is None else LinearPrefill(self.linear.times(), gpus)

    def prefill_gpus(self, gpus: int) -> int:
        """GPUs that the prefill throughput of a worker is divided by, for workers of ``gpus`` GPUs."""
        return gpus if self.prefill is None else _prefill_gpus(self.prefill)

    def decode_gpus(self, gpus: int) -> int:
        """GPUs that the decode throughput of a worker is divided by, for workers of ``gpus`` GPUs."""
        return gpus if self.decode is None else _decode_gpus(self.decode)

    def decode_model(self, gpus: int) -> DecodeModel | None:
        """What planners ask of decode, of workers of so many GPUs; None where nothing is known."""
        if self.decode is not None:
            return decode_surface(self.decode)
        linear = self.linear
        if linear is None:
            return None
        return LinearDecode(linear.times(), linear.max_kv_tokens, linear.max_batch_requests, gpus)


NO_PROFILE: Final = EngineProfile()
"""Profile of a pool without profiles or linear parameters."""


@lru_cache(_COMPILED_MAX)
def _prefill_gpus(sweep: PrefillSweep) -> int:
    """By how many GPUs a profiler divided: some divide by the GPUs of a node, whatever the worker occupies.

    The times of a profile are those of the worker. Its throughput must belong to them, so it is multiplied again by
    what it was divided by, and not by the GPUs of the pool.
    """
    points = zip(sweep.isl_tokens, sweep.ttft_ms, sweep.tokens_per_s_per_gpu, strict=True)
    return max(1, round(min(isl / ttft * 1_000.0 / rate for isl, ttft, rate in points)))


@lru_cache(_COMPILED_MAX)
def _decode_gpus(sweep: DecodeSweep) -> int:
    """The same; a batch that is said to be larger than it was makes the quotient larger, so the least counts."""
    points = zip(sweep.kv_usage, sweep.context_tokens, sweep.itl_ms, sweep.tokens_per_s_per_gpu, strict=True)
    batches = ((usage * sweep.max_kv_tokens / context, itl, rate) for usage, context, itl, rate in points if usage)
    return max(1, round(min((batch / itl * 1_000.0 / rate for batch, itl, rate in batches), default=1.0)))
