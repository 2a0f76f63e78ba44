"""Work bound: the GPU time that the requests of a trace need if no worker ever waits.

Each request counts with its minimum worker time in any batch (``sim.compare.costs``), for its prompt and for its
tokens after the first one. If a role has several pools, the cheapest in GPU time counts for each request.

This is a lower bound: the costs of all requests in a pass or an iteration add up to at most its duration. A real fleet
also starts and drains workers, has idle ones between waves of load, and uses whole workers. The bound holds for fleets
in which every request that can meet the objectives does so; a fleet that misses some may use larger batches.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.sim.compare.costs import FloatArray, IntArray, decode_ms, prefill_ms
from loadline.sim.fleet import SimulatedPool
from loadline.traces import PREFIX_BLOCK_TOKENS, Arrival, Trace

_HOUR_S: Final = 3_600.0


class WorkBound(Struct, frozen=True):
    """GPU-hours below which no fleet can serve the trace within the objectives."""

    gpu_hours: float


def work_bound(trace: Trace, pools: Mapping[str, SimulatedPool], objectives: ObjectiveKnobs) -> WorkBound:
    """Return the work bound of a trace on the pools of a model."""
    gpu_s = 0.0
    for role in sorted({pool.role for pool in pools.values()}):
        costs = [
            pool.gpus_per_worker * worker_seconds(trace.arrivals, pool, objectives)
            for pool in pools.values()
            if pool.role == role
        ]
        cheapest = np.minimum.reduce(costs)
        # A request that fits into no worker is refused and takes no time.
        gpu_s += float(cheapest[np.isfinite(cheapest)].sum())
    return WorkBound(gpu_s / _HOUR_S)


def worker_seconds(arrivals: Sequence[Arrival], pool: SimulatedPool, objectives: ObjectiveKnobs) -> FloatArray:
    """Return the worker time of each request in this pool, in s; infinite for a request that does not fit.

    Only sums are meaningful, since requests share batches. The time of a request that
    misses an objective even alone is that at the maximum throughput.
    """
    isl = np.array([one.isl_tokens for one in arrivals], dtype=np.int64)
    osl = np.array([one.osl_tokens for one in arrivals], dtype=np.int64)
    blocks = [pool.engine.blocks_needed(*lengths) for lengths in zip(isl.tolist(), osl.tolist(), strict=True)]
    fits = np.array(blocks, dtype=np.int64) <= pool.engine.kv_blocks_total
    computed = np.maximum(isl - _cached(arrivals), 1) if pool.knobs.prefix_cache_blocks else isl
    seconds = np.where(fits, 0.0, math.inf)
    if pool.role != "decode":
        seconds[fits] += prefill_ms(pool.timing, pool.engine, isl[fits], computed[fits], objectives.ttft_ms) / 1_000.0
    if pool.role != "prefill":
        seconds[fits] += decode_ms(pool.timing, pool.engine, isl[fits], osl[fits], objectives.itl_ms) / 1_000.0
    return seconds


def _cached(arrivals: Sequence[Arrival]) -> IntArray:
    """Return an upper bound on the cached prompt tokens of each request.

    They are those in an unlimited cache that all workers share, or those that the trace records, if more.
    """
    seen: set[int] = set()
    cached = []
    for arrival in arrivals:
        prefix = arrival.prefix
        blocks_seen = next((index for index, block in enumerate(prefix) if block not in seen), len(prefix))
        cached.append(min(max(blocks_seen * PREFIX_BLOCK_TOKENS, arrival.hit_tokens), arrival.isl_tokens))
        seen.update(prefix)
    return np.array(cached, dtype=np.int64)
