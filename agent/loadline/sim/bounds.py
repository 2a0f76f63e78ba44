"""The work bound: the GPU time that the requests of a trace need if no worker ever waits.

A request needs ``ISL / prefill throughput + (OSL - 1) / decode throughput`` of a worker, each the best one at which the
objectives can be met, in batches of requests that are all like this one; its first token comes with the prefill. Where
a role has several pools, the cheapest in GPU time counts for each request.

Why it is a lower bound: every real fleet does the same work in batches that are at most as good, and beside it starts
workers, drains them, has them idle between waves of load, and counts whole workers. The exception is narrow: a batch of
unlike requests may be a few percent cheaper than batches of like ones where the curve of a profile is bent.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from loadline.sim.fleet import PoolFleet
from loadline.sim.throughput import decode_tokens_per_s_max, prefill_tokens_per_s_max
from loadline.sim.traces import PREFIX_BLOCK_TOKENS, Arrival, Trace

# A decode throughput is looked up for contexts in steps of 2 %, rounded down: towards less work.
_STEPS_PER_OCTAVE: Final = 32
_HOUR_S: Final = 3_600.0

Seconds = NDArray[np.float64]
Lengths = NDArray[np.int64]


class WorkBound(Struct, frozen=True):
    """GPU-hours below which no fleet can serve the trace within the objectives."""

    gpu_hours: float
    gpu_hours_by_role: dict[str, float]


class Objectives(Struct, frozen=True):
    """What every request is to meet."""

    ttft_ms: float
    itl_ms: float


def work_bound(trace: Trace, pools: Mapping[str, PoolFleet], objectives: Objectives) -> WorkBound:
    """The work bound of a trace on the pools of a model."""
    by_role: dict[str, float] = {}
    for role in sorted({pool.role for pool in pools.values()}):
        costs = [
            pool.gpus_per_worker * worker_seconds(trace.arrivals, pool, objectives)
            for pool in pools.values()
            if pool.role == role
        ]
        cheapest = np.minimum.reduce(costs)
        # What fits into no worker is refused, and needs nothing.
        by_role[role] = float(cheapest[np.isfinite(cheapest)].sum()) / _HOUR_S
    return WorkBound(sum(by_role.values()), by_role)


def worker_seconds(arrivals: Sequence[Arrival], pool: PoolFleet, objectives: Objectives) -> Seconds:
    """Seconds of a worker of this pool that each request needs; infinite where it does not fit into one.

    One that can not meet an objective even alone counts with the best throughput that there is.
    """
    isl = np.array([one.isl_tokens for one in arrivals])
    osl = np.array([one.osl_tokens for one in arrivals])
    seconds = np.zeros(len(arrivals))
    if pool.role != "decode":
        computed = np.maximum(isl - _cached(arrivals), 1) if pool.knobs.prefix_cache_blocks else isl
        seconds += computed * _each(computed, lambda tokens: _prefill_token_s(pool, tokens, objectives.ttft_ms))
    if pool.role != "prefill":
        seconds += (osl - 1) * _each(
            _down(isl + osl // 2), lambda tokens: _decode_token_s(pool, tokens, objectives.itl_ms)
        )
    blocks = np.array([pool.engine.blocks_needed(*lengths) for lengths in zip(isl.tolist(), osl.tolist(), strict=True)])
    seconds[blocks > pool.engine.kv_blocks_total] = math.inf
    return seconds


def _prefill_token_s(pool: PoolFleet, tokens: int, ttft_ms: float) -> float:
    within = prefill_tokens_per_s_max(pool.timing, tokens, ttft_ms, pool.engine)
    rate = within or prefill_tokens_per_s_max(pool.timing, tokens, math.inf, pool.engine)
    return 1.0 / rate if rate else math.inf


def _decode_token_s(pool: PoolFleet, context_tokens: int, itl_ms: float) -> float:
    within = decode_tokens_per_s_max(pool.timing, context_tokens, itl_ms, pool.engine)
    rate = within or decode_tokens_per_s_max(pool.timing, context_tokens, math.inf, pool.engine)
    return 1.0 / rate if rate else math.inf


def _each(lengths: Lengths, cost_s: Callable[[int], float]) -> Seconds:
    """The cost of each length, computed once for those that are equal."""
    different, places = np.unique(lengths, return_inverse=True)
    costs: Seconds = np.array([cost_s(length) for length in different.tolist()])[places]
    return costs


def _down(lengths: Lengths) -> Lengths:
    """Rounded down to a few different lengths."""
    steps = np.floor(np.log2(np.maximum(lengths, 1)) * _STEPS_PER_OCTAVE)
    rounded: Lengths = np.maximum(np.exp2(steps / _STEPS_PER_OCTAVE), 1.0).astype(np.int64)
    return rounded


def _cached(arrivals: Sequence[Arrival]) -> Lengths:
    """Prompt tokens that a cache finds which forgets nothing and is everywhere."""
    seen: set[int] = set()
    cached = []
    for one in arrivals:
        known = next((place for place, block in enumerate(one.prefix) if block not in seen), len(one.prefix))
        cached.append(min(max(known * PREFIX_BLOCK_TOKENS, one.hit_tokens), one.isl_tokens))
        seen.update(one.prefix)
    return np.array(cached, dtype=np.int64)
