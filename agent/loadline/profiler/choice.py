"""Suggested parallelisation for objectives, and thresholds for the planner ``threshold``; rules of Dynamo's profiler.

Among the parallelisations within an objective the one of the highest throughput per GPU is chosen; if none is, the
fastest.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
from msgspec import Struct

from loadline.core.engines.latency_models import BestThroughput, decode_surface, prefill_curve
from loadline.core.engines.sweeps import DecodeSweep, PrefillSweep

_QUEUE_BAND: Final = (0.8, 1.2)
"""Fractions of the TTFT objective between which the queue should stay."""
_KV_BAND: Final = 0.2
_THRESHOLD_MIN: Final = 0.1


class Workload(Struct, frozen=True):
    """Lengths and objectives for which an engine is chosen."""

    isl_tokens: float
    osl_tokens: float
    ttft_ms: float
    itl_ms: float

    @property
    def context_tokens(self) -> float:
        """Context in the middle of the output."""
        return self.isl_tokens + self.osl_tokens / 2.0


class Parallelisation(Struct, frozen=True):
    """A parallelisation at the lengths of a workload."""

    name: str
    latency_ms: float
    tokens_per_s_per_gpu: float
    within: bool
    """True if it meets the objective."""
    kv_usage: float = 0.0


class Thresholds(Struct, frozen=True):
    """Thresholds of the planner ``threshold``; names are those of its knobs."""

    prefill_queue_scale_up_threshold: float
    prefill_queue_scale_down_threshold: float
    decode_kv_scale_up_threshold: float
    decode_kv_scale_down_threshold: float


def prefill_candidates(sweeps: Mapping[str, PrefillSweep], workload: Workload) -> list[Parallelisation]:
    """Return every parallelisation with its TTFT, the suggested one first."""
    found = []
    for name, sweep in sweeps.items():
        curve, isl = prefill_curve(sweep), np.asarray(workload.isl_tokens)
        ttft_ms, rate = float(curve.ttft_ms(isl)), float(curve.tokens_per_s_per_gpu(isl))
        found.append(Parallelisation(name, ttft_ms, rate, ttft_ms <= workload.ttft_ms))
    return _ranked(found)


def decode_candidates(sweeps: Mapping[str, DecodeSweep], workload: Workload) -> list[Parallelisation]:
    """Return every parallelisation with its best batch, the suggested one first."""
    found = []
    for name, sweep in sweeps.items():
        best = decode_surface(sweep).find_best_throughput_per_gpu(workload.itl_ms, workload.context_tokens)
        one = best or _fastest(sweep, workload)
        found.append(Parallelisation(name, one.itl_ms, one.tokens_per_s_per_gpu, best is not None, one.kv_usage))
    return _ranked(found)


def thresholds(prefill: Parallelisation, decode: Parallelisation, workload: Workload) -> Thresholds:
    """Return thresholds around the load at which the chosen engines meet the objectives."""
    waiting = workload.ttft_ms / prefill.latency_ms
    low, high = (max(_THRESHOLD_MIN, part * waiting - 1.0) for part in _QUEUE_BAND)
    kv_low, kv_high = max(_THRESHOLD_MIN, decode.kv_usage - _KV_BAND), min(1.0, decode.kv_usage + _KV_BAND)
    return Thresholds(round(high, 3), round(low, 3), round(kv_high, 3), round(kv_low, 3))


def _fastest(sweep: DecodeSweep, workload: Workload) -> BestThroughput:
    """Return the batch of the lowest ITL: the emptiest measured one."""
    surface, usage = decode_surface(sweep), np.asarray(min(sweep.kv_usage))
    context = np.asarray(workload.context_tokens)
    itl_ms, rate = surface.itl_ms(usage, context), surface.tokens_per_s_per_gpu(usage, context)
    return BestThroughput(float(rate), float(itl_ms), float(usage))


def _ranked(found: list[Parallelisation]) -> list[Parallelisation]:
    return sorted(found, key=lambda one: (not one.within, -one.tokens_per_s_per_gpu if one.within else one.latency_ms))
