"""Number of workers that a demand needs, by the profiles of the engines and the objectives of the model.

- **Prefill** workers compute all waiting prompts in one pass. Of the prompts that can meet the objective, the fraction
  ``attainment`` must not wait longer than the objective leaves.
- **Decode** workers run a batch. For that fraction of the time, all requests must fit into batches within the
  objective.
- **Aggregated** workers do both, and decode more slowly the more they prefill.

If a role has several pools, their minimum replicas serve a part of its demand, and the pool with the lowest cost the
rest. A demand that exceeds the maximum replicas of all pools is sized nevertheless; a guardrail limits the counts.
"""

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from loadline.core.engines.latency_models import BestThroughput, DecodeModel, PrefillModel
from loadline.core.engines.lengths import (
    LengthDistribution,
    computed_isl,
    mean_decode_context,
    mixed_prefill_throughput,
)
from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.engines.regression import Line
from loadline.core.engines.stalls import stall_quantile
from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.planning.sizing import replicas
from loadline.core.planning.sizing.profile.prefill_capacity import (
    REQUESTS_MAX,
    TOKENS_MAX,
    EngineCount,
    PrefillSizing,
    Prompts,
)
from loadline.core.vocabulary.reasons import Reason, ReasonCode
from loadline.core.vocabulary.samples import WorkerRecord

KV_USAGE_MAX: Final = 0.95
"""Usable fraction of the KV cache: lengths vary within batches, and a full cache preempts requests."""
_WORKERS_PER_REQUEST: Final = 8.0
"""Largest number of aggregated workers per decoding request. With so many, seven in eight prompts stall no request, so
more workers would not help."""
_CURRENT_COST_FACTOR: Final = 0.9
"""Factor on the cost of a pool with workers: another pool replaces it only if it is cheaper by more than a tenth."""


class Demand(Struct, frozen=True):
    """Rate and lengths of requests, and the conditions of serving them."""

    requests_per_s: float
    isl: LengthDistribution
    osl: LengthDistribution
    attainment: float
    """Fraction (0..1) of requests that must be within SLO; 0: sized for means, as Dynamo does."""
    prefill_correction: float = 1.0
    decode_correction: float = 1.0
    kv_hit_rate: float = 0.0
    """Fraction (0..1) of prompt tokens found in prefix caches: they occupy KV blocks, but are not computed."""
    decode_share: float = 1.0
    """Rate of requests that decode, divided by ``requests_per_s``."""
    decode_peak: float = 1.0
    """Decode rate divided by its mean: the variation that the rate already includes."""

    @property
    def decode_tokens_per_s(self) -> float:
        """Output tokens per second of an engine like the profile; a token of an engine half as fast counts twice."""
        return self.requests_per_s * self.decode_share * self.osl.mean * self.decode_correction


class Size(Struct, frozen=True):
    """Number of workers that one pool needs, or the reason why it is unknown."""

    busy: float = 0.0
    """Mean number of busy workers."""
    replicas: int = 0
    """Count, at least the minimum of the pool; above its maximum if no pool of the role has room for the demand."""
    needed: int = 0
    """Count without the minimum of the pool."""
    problem: Reason | None = None
    infeasible: Reason | None = None
    """Set if such requests miss the objective even alone; the size is then for the work, as close as possible."""


Sizer = Callable[[float], Size]
"""Function from a factor on the demand to the size of a pool."""
Sizing = Callable[[float], dict[str, Size]]
"""Function from a factor on the demand to the sizes of all pools."""


def sizing(model: Model, demand: Demand) -> Sizing:
    """Return the sizing of all pools of a model for a demand."""
    pools = list(model.pools.values())
    sizers = [(pool, pool_sizer(pool, model.objectives, demand)) for pool in pools]
    roles = [[one for one in sizers if one[0].knobs.role == role] for role in {pool.knobs.role: 0 for pool in pools}]
    return lambda factor: {name: size for of_role in roles for name, size in _shared(of_role, factor).items()}


def _shared(pools: list[tuple[Pool, Sizer]], factor: float) -> dict[str, Size]:
    """Divide the demand of a role: minimum replicas serve their part, and the cheapest pools the rest.

    What exceeds the maximum replicas of all pools is added to the cheapest one.
    """
    by_cost = sorted(((pool, sizer, sizer(factor)) for pool, sizer in pools), key=_cost)
    parts = {
        pool.name: factor * min(1.0, pool.knobs.replicas_min / alone.replicas) if alone.replicas else 0.0
        for pool, _, alone in by_cost
    }
    rest = max(0.0, factor - sum(parts.values()))
    sizes: dict[str, Size] = {}
    cheapest: tuple[str, Sizer, float, float] | None = None
    for pool, sizer, alone in by_cost:
        if alone.problem is not None:
            sizes[pool.name] = alone
            continue
        part = min(factor, parts[pool.name] + rest)
        size = sizer(part) if part < factor else alone
        needed = size.replicas if rest > 0.0 else 0
        count = min(max(needed, pool.knobs.replicas_min), pool.knobs.replicas_max)
        sizes[pool.name] = Size(size.busy, count, size.replicas if part > 0.0 else 0, infeasible=size.infeasible)
        rest = max(0.0, part * (1.0 - count / needed)) if needed else rest
        cheapest = cheapest or (pool.name, sizer, part, rest)
    if cheapest is not None and rest > 0.0:
        name, sizer, part, left = cheapest
        size = sizer(part - (left - rest))
        sizes[name] = replace(size, replicas=max(size.replicas, sizes[name].replicas), needed=size.replicas)
    return sizes


def _cost(one: tuple[Pool, Sizer, Size]) -> tuple[float, str]:
    """Return the cost of serving the whole demand by one pool, lower if it is in use, so that ties are stable."""
    pool, _, alone = one
    in_use = (pool.target or 0) > pool.knobs.replicas_min
    return alone.busy * pool.cost_per_hour * (_CURRENT_COST_FACTOR if in_use else 1.0), pool.name


def pool_sizer(pool: Pool, objectives: ObjectiveKnobs, demand: Demand) -> Sizer:
    """Return the sizing of one pool for a demand that it alone serves."""
    by_role = {"prefill": _prefill, "decode": _decode, "aggregated": _aggregated}
    problem = profile_problem(pool) or out_of_reach(pool, objectives)
    if problem is not None:
        return lambda _factor: Size(problem=problem)
    if demand.requests_per_s <= 0.0:
        return lambda _factor: Size()
    return by_role[pool.knobs.role](pool, objectives, demand)


def profile_problem(pool: Pool) -> Reason | None:
    """Return the reason why a pool has no usable profile; None if it has one."""
    role, engine = pool.knobs.role, pool.engine
    if engine.problem:
        return Reason(ReasonCode.PROFILE_UNUSABLE, pool.name, detail=engine.problem)
    if engine.linear is not None:
        return None
    if engine.prefill is None and role != "decode":
        missing = "prefill"
    elif engine.decode is None and role != "prefill":
        missing = "decode"
    else:
        return None
    remedy = f"no {missing} profile is configured; set {missing}_profile or linear of the pool"
    return Reason(ReasonCode.PROFILE_UNUSABLE, pool.name, detail=remedy)


def out_of_reach(pool: Pool, objectives: ObjectiveKnobs) -> Reason | None:
    """Return an objective that even the shortest request misses alone: the objective or the profile is wrong.

    Correction factors do not enter: factors learned under overload must not hold the overloaded pool.
    """
    gpus, role = pool.knobs.gpus_per_worker, pool.knobs.role
    prefill, decode = pool.engine.prefill_model(gpus), pool.engine.decode_model(gpus)
    if role != "decode" and prefill is not None and prefill.ttft_min_ms > objectives.ttft_ms:
        return _infeasible(pool, prefill.ttft_min_ms, objectives.ttft_ms)
    if role != "prefill" and decode is not None and decode.itl_min_ms > objectives.itl_ms:
        return _infeasible(pool, decode.itl_min_ms, objectives.itl_ms)
    return None


def _computed_lengths(demand: Demand) -> LengthDistribution:
    """Return the prompt tokens to compute, without those found in prefix caches."""
    return demand.isl.scaled(computed_isl(1.0, demand.kv_hit_rate))


def _context(demand: Demand) -> float:
    """Return the mean context of decoding requests in tokens, at least 1."""
    return max(1.0, mean_decode_context(demand.isl, demand.osl))


def _prefill_model(pool: Pool) -> PrefillModel:
    model = pool.engine.prefill_model(pool.knobs.gpus_per_worker)
    if model is None:  # excluded by ``profile_problem``
        raise AssertionError(pool.name)
    return model


def _decode_model(pool: Pool) -> DecodeModel:
    model = pool.engine.decode_model(pool.knobs.gpus_per_worker)
    if model is None:  # excluded by ``profile_problem``
        raise AssertionError(pool.name)
    return model


def _prompts(pool: Pool, demand: Demand) -> Prompts:
    """Return the time that the prompts of a demand take on a worker of a pool."""
    model, isl, correction = _prefill_model(pool), _computed_lengths(demand), min(1.0, demand.prefill_correction)
    tokens = max(isl.mean, 1.0)
    times_ms = (model.ttft_ms(np.asarray(isl.tokens)) * correction).tolist()
    ttft_ms = isl.mean_of(times_ms)
    pass_ms = min(model.pass_overhead_ms * correction, ttft_ms)
    record = record_of(pool)
    return Prompts(
        Line((ttft_ms - pass_ms) / tokens, pass_ms),
        tokens,
        isl.variability,
        tuple(zip(times_ms, isl.shares, strict=True)),
        (record and record.max_batched_tokens) or TOKENS_MAX,
        (record and record.max_batch_requests) or REQUESTS_MAX,
    )


def _engines(
    pool: Pool, prompts: Prompts, objectives: ObjectiveKnobs, demand: Demand
) -> Callable[[float], EngineCount]:
    """Return a function from a factor on the demand to the engines that prefill needs."""
    if demand.attainment > 0.0:
        sizing = PrefillSizing(prompts, objectives.ttft_ms, demand.attainment)
        return lambda factor: sizing.engines(demand.requests_per_s * factor)
    # For means, prompts are computed one after the other: the formula of Dynamo's throughput planner.
    rate = mixed_prefill_throughput(_prefill_model(pool), _computed_lengths(demand))
    rate *= pool.engine.prefill_gpus(pool.knobs.gpus_per_worker) / min(1.0, demand.prefill_correction)
    tokens_per_s = demand.requests_per_s * prompts.isl_tokens
    busy = tokens_per_s / rate if rate > 0.0 else 0.0
    return lambda factor: EngineCount(busy * factor, replicas.replicas_for(tokens_per_s * factor, rate, 0))


def _late_prompts(pool: Pool, prompts: Prompts, objectives: ObjectiveKnobs) -> Reason | None:
    """Return the reason that prompts miss the objective on average even alone; None if they meet it."""
    late = prompts.ttft_ms > objectives.ttft_ms
    return _infeasible(pool, prompts.ttft_ms, objectives.ttft_ms) if late else None


def _prefill(pool: Pool, objectives: ObjectiveKnobs, demand: Demand) -> Sizer:
    prompts = _prompts(pool, demand)
    infeasible = _late_prompts(pool, prompts, objectives)
    engines_for = _engines(pool, prompts, objectives, demand)

    def size(factor: float) -> Size:
        engines = engines_for(factor)
        return Size(engines.busy, engines.workers, infeasible=infeasible)

    return size


class _Batch(Struct, frozen=True):
    """Best batch of one worker."""

    tokens_per_s: float
    requests: float


def _best_batch(pool: Pool, model: DecodeModel, itl_ms: float, context: float) -> _Batch | None:
    """Return the best batch within an ITL, and within the KV cache and the largest batch that workers report."""
    best = model.find_best_throughput_per_gpu(itl_ms, context)
    if best is None:
        return None
    usage_max = _requests_max(pool, context) * context / model.max_kv_tokens
    if best.kv_usage > usage_max:
        at = np.asarray(usage_max), np.asarray(context)
        best = BestThroughput(float(model.tokens_per_s_per_gpu(*at)), float(model.itl_ms(*at)), usage_max)
    requests = max(1.0, best.kv_usage * model.max_kv_tokens / context)
    # Between two measured contexts, the profiled throughput may exceed the batch divided by its ITL.
    rate = best.tokens_per_s_per_gpu * pool.engine.decode_gpus(pool.knobs.gpus_per_worker)
    return _Batch(min(rate, requests / best.itl_ms * 1_000.0), requests)


def record_of(pool: Pool) -> WorkerRecord | None:
    """Return the record of the first worker of a pool, which stands for all of them."""
    return next((worker.record for worker in pool.workers.values()), None)


def _requests_max(pool: Pool, context: float) -> float:
    """Return the largest number of requests of a context on a worker of a pool; infinite if not reported."""
    record, requests = record_of(pool), math.inf
    if record is None:
        return requests
    if record.kv_blocks_total and record.block_size_tokens:
        requests = record.kv_blocks_total * record.block_size_tokens * KV_USAGE_MAX / max(context, 1.0)
    return min(requests, float(record.max_batch_requests or math.inf))


def _decode(pool: Pool, objectives: ObjectiveKnobs, demand: Demand) -> Sizer:
    model, context = _decode_model(pool), _context(demand)
    itl_ms = replicas.corrected_itl_ms(objectives.itl_ms, demand.decode_correction)
    infeasible = None
    batch = _best_batch(pool, model, itl_ms, context)
    if batch is None:
        infeasible = _slow(pool, float(model.itl_ms(np.asarray(0.0), np.asarray(context))), objectives, demand)
        batch = _best_batch(pool, model, math.inf, context)
    if batch is None:
        return lambda _factor: Size(problem=_cache_too_small(pool, model, context))
    best = batch

    def size(factor: float) -> Size:
        busy = demand.decode_tokens_per_s * factor / best.tokens_per_s
        return Size(busy, _with_variation(busy, best.requests, demand), infeasible=infeasible)

    return size


def _with_variation(busy: float, batch_requests: float, demand: Demand) -> int:
    """Return the workers for a mean number of busy ones, with capacity for the variation of independent requests.

    By square-root staffing, the load in requests exceeds its mean by a normal quantile times its square root. A demand
    at its peak already includes a part of the variation, so the higher of both counts is taken.
    """
    share = demand.attainment
    quantile = NormalDist().inv_cdf(share) if share > 0.5 else 0.0  # noqa: PLR2004 - the median is the mean
    mean = busy / demand.decode_peak
    return min(replicas.REPLICAS_MAX, math.ceil(max(busy, mean + quantile * math.sqrt(mean / batch_requests))))


def _aggregated(pool: Pool, objectives: ObjectiveKnobs, demand: Demand) -> Sizer:
    model, prompts, context = _decode_model(pool), _prompts(pool, demand), _context(demand)
    alone_ms = float(model.itl_ms(np.asarray(0.0), np.asarray(context)))
    objective_ms = replicas.corrected_itl_ms(objectives.itl_ms, demand.decode_correction)
    if _best_batch(pool, model, math.inf, context) is None:
        return lambda _factor: Size(problem=_cache_too_small(pool, model, context))

    engines_for, late_prompts = _engines(pool, prompts, objectives, demand), _late_prompts(pool, prompts, objectives)
    late, square_ms2 = stall_quantile(demand.osl, demand.attainment), prompts.square_ms2

    def fewest(itl_ms: float, factor: float) -> Size:
        """Return the fewest workers that decode within an ITL; infeasible if no number of them does."""
        arriving, decode_tokens_per_s = demand.requests_per_s * factor, demand.decode_tokens_per_s * factor
        workers, workers_max, best_ms = max(engines_for(factor).workers, 1), replicas.REPLICAS_MAX, alone_ms
        if itl_ms < math.inf:
            decoding = max(1.0, decode_tokens_per_s * itl_ms / 1_000.0)
            workers_max = max(workers, math.ceil(min(workers_max, _WORKERS_PER_REQUEST * decoding)))
        while True:
            # Prefill interrupts decode, so an iteration takes longer by the prefill in it: at most one pass.
            prompts_per_ms = arriving / workers / 1_000.0
            passes_per_ms = min(prompts_per_ms, 1.0 / itl_ms) if itl_ms < math.inf else prompts_per_ms
            prefill = prompts_per_ms * prompts.prompt_ms + passes_per_ms * prompts.line.intercept_ms
            stalls_ms = late * math.sqrt(prompts_per_ms * itl_ms * square_ms2) if itl_ms < math.inf else 0.0
            if prefill < 1.0:
                best_ms = stalls_ms + alone_ms / (1.0 - prefill)
                batch = _best_batch(pool, model, (itl_ms - stalls_ms) * (1.0 - prefill), context)
                busy = workers * prefill + decode_tokens_per_s / batch.tokens_per_s if batch is not None else math.inf
                if batch is not None and _with_variation(busy, batch.requests, demand) <= workers:
                    return Size(busy, workers)
            if workers >= workers_max:
                return Size(workers * prefill, workers, infeasible=_slow(pool, best_ms, objectives, demand))
            workers = min(workers_max, workers + max(1, workers // 8))

    def size(factor: float) -> Size:
        within = fewest(objective_ms, factor)
        work = within if within.infeasible is None else fewest(math.inf, factor)
        return Size(work.busy, work.replicas, infeasible=within.infeasible or late_prompts)

    return size


def _cache_too_small(pool: Pool, model: DecodeModel, context: float) -> Reason:
    """Return the reason that not even one request fits into the KV cache of a worker."""
    return Reason.of(
        ReasonCode.KV_CACHE_TOO_SMALL, pool.name, max_kv_tokens=model.max_kv_tokens, context_tokens=context
    )


def _slow(pool: Pool, best_ms: float, objectives: ObjectiveKnobs, demand: Demand) -> Reason:
    """Return the reason that the ITL misses the objective even at the lowest load, with the correction factor."""
    return _infeasible(pool, best_ms * demand.decode_correction, objectives.itl_ms)


def _infeasible(pool: Pool, best_ms: float, objective_ms: float) -> Reason:
    return Reason.of(ReasonCode.SLA_INFEASIBLE, pool.name, best_ms=best_ms, objective_ms=objective_ms)
