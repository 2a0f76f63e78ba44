"""How many workers of each pool a demand needs, by the profiles of their engines and the objectives of the model.

A prefill worker computes the prompts that wait in one pass: enough of them that, of the prompts that can be in time,
the share that is to be waits no longer than the objective leaves to each. A decode worker runs a batch: enough of them
that the requests of that share of all moments fit into batches within the objective. An aggregated worker does both,
and decodes the slower the more it prefills. Where a role has several pools, their least counts
serve a part, and the rest goes to the one that costs the least for it.
"""

import math
from collections.abc import Callable, Iterator
from statistics import NormalDist
from typing import Final

import numpy as np
from msgspec import Struct

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
from loadline.core.planning.sizing.prefill_capacity import REQUESTS_MAX, TOKENS_MAX, Engines, Prompts, prefill_engines
from loadline.core.vocabulary.reasons import Reason, ReasonCode
from loadline.core.vocabulary.samples import WorkerRecord

KV_FULL: Final = 0.95
"""Share of the KV cache that is planned with: batches are never all of the mean length, and a full one preempts."""
_APART: Final = 8.0
"""Aggregated workers for each request that decodes. Of so many, seven in eight prompts meet no request that they could
stall: where it is still too slow then, more workers do not mend it."""
_STANDING: Final = 0.9
"""Another pool takes the place of one that stands if it is cheaper by more than a tenth."""


class Demand(Struct, frozen=True):
    """Requests that arrive, and the lengths that they have."""

    requests_per_s: float
    isl: LengthDistribution
    osl: LengthDistribution
    attainment: float
    """Share (0..1) of the requests that is to be in time; 0: on average there is enough, as with the original."""
    prefill_correction: float = 1.0
    decode_correction: float = 1.0
    kv_hit_rate: float = 0.0
    """Share (0..1) of the prompt tokens that prefix caches have: they take room, but are not computed."""
    decode_share: float = 1.0
    """Requests that decode, of ``requests_per_s``."""
    decode_peak: float = 1.0
    """That rate by its mean: what of the swing is in it already."""

    @property
    def decode_tokens_per_s(self) -> float:
        """Tokens of engines like their profile: one of an engine that takes twice as long is as much work as two."""
        return self.requests_per_s * self.decode_share * self.osl.mean * self.decode_correction


class Size(Struct, frozen=True):
    """What a demand asks of one pool; or why that cannot be said."""

    busy: float = 0.0
    """Workers that are busy on average."""
    wanted: int = 0
    needed: int = 0
    """As many, before the least and the most of the pool."""
    problem: Reason | None = None
    infeasible: Reason | None = None
    """That requests like these miss the objective even alone: the size is for the work, and the least lateness."""


Sizer = Callable[[float], Size]
"""The size of a pool for so many times the demand."""
Sizing = Callable[[float], dict[str, Size]]
"""The size of each pool for so many times the demand."""


def sizing(model: Model, demand: Demand) -> Sizing:
    """How many workers each pool needs."""
    pools = list(model.pools.values())
    sizers = [(pool, _sizer(pool, model.objectives, demand)) for pool in pools]
    roles = [[one for one in sizers if one[0].knobs.role == role] for role in {pool.knobs.role: 0 for pool in pools}]
    return lambda times: {name: size for of_role in roles for name, size in _shared(of_role, times)}


def _shared(pools: list[tuple[Pool, Sizer]], times: float) -> Iterator[tuple[str, Size]]:
    """The demand of a role over its pools: least counts serve their part, the cheapest the rest, up to its bound."""
    whole = sorted(((pool, sizer, sizer(times)) for pool, sizer in pools), key=_cost)
    parts = {
        pool.name: times * min(1.0, pool.knobs.replicas_min / alone.wanted) if alone.wanted else 0.0
        for pool, _, alone in whole
    }
    left = max(0.0, times - sum(parts.values()))
    for pool, sizer, alone in whole:
        if alone.problem is not None:
            yield pool.name, alone
            continue
        most = min(times, parts[pool.name] + left)
        size = sizer(most) if most < times else alone
        needed = size.wanted if left > 0.0 else 0
        wanted = min(max(needed, pool.knobs.replicas_min), pool.knobs.replicas_max)
        yield pool.name, Size(size.busy, wanted, size.wanted if most > 0.0 else 0, infeasible=size.infeasible)
        left = max(0.0, most * (1.0 - wanted / needed)) if needed else left


def _cost(one: tuple[Pool, Sizer, Size]) -> tuple[float, str]:
    """What a pool costs for the whole demand; less for one that stands, or noise at a tie would move all of it."""
    pool, _, alone = one
    stands = (pool.desired or 0) > pool.knobs.replicas_min
    return alone.busy * pool.cost_per_hour * (_STANDING if stands else 1.0), pool.name


def _sizer(pool: Pool, objectives: ObjectiveKnobs, demand: Demand) -> Sizer:
    by_role = {"prefill": _prefill, "decode": _decode, "aggregated": _aggregated}
    problem = profile_problem(pool) or out_of_reach(pool, objectives)
    if problem is not None:
        return lambda _times: Size(problem=problem)
    if demand.requests_per_s <= 0.0:
        return lambda _times: Size()
    return by_role[pool.knobs.role](pool, objectives, demand)


def profile_problem(pool: Pool) -> Reason | None:
    """Why nothing can be planned for a pool by profiles; None where they can be used."""
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
    """That even the shortest request alone misses an objective: it is wrong, or the profile is.

    By the profile alone: what was learned under overload must not hold the pool that is overloaded.
    """
    gpus, role = pool.knobs.gpus_per_worker, pool.knobs.role
    prefill, decode = pool.engine.prefill_model(gpus), pool.engine.decode_model(gpus)
    if role != "decode" and prefill is not None and prefill.ttft_min_ms > objectives.ttft_ms:
        return _infeasible(pool, prefill.ttft_min_ms, objectives.ttft_ms)
    if role != "prefill" and decode is not None and decode.itl_min_ms > objectives.itl_ms:
        return _infeasible(pool, decode.itl_min_ms, objectives.itl_ms)
    return None


def _computed(demand: Demand) -> LengthDistribution:
    """What is left to compute of the prompts of a demand."""
    return demand.isl.scaled(computed_isl(1.0, demand.kv_hit_rate))


def _context(demand: Demand) -> float:
    """Mean context of what decodes: a token at least, for where nobody says a length there is a request still."""
    return max(1.0, mean_decode_context(demand.isl, demand.osl))


def _prefill_model(pool: Pool) -> PrefillModel:
    model = pool.engine.prefill_model(pool.knobs.gpus_per_worker)
    if model is None:  # ``profile_problem`` was asked first
        raise AssertionError(pool.name)
    return model


def _prompts(pool: Pool, demand: Demand) -> Prompts:
    """What the prompts of a demand are to a worker of a pool."""
    model, isl, correction = _prefill_model(pool), _computed(demand), min(1.0, demand.prefill_correction)
    tokens = max(isl.mean, 1.0)
    times_ms = (model.ttft_ms(np.asarray(isl.tokens)) * correction).tolist()
    ttft_ms = isl.mean_of(times_ms)
    pass_ms = min(model.pass_overhead_ms * correction, ttft_ms)
    record = record_of(pool)
    return Prompts(
        Line((ttft_ms - pass_ms) / tokens, pass_ms),
        tokens,
        max(0.5, 0.5 * isl.mean_square / (tokens * tokens)),
        tuple(zip(times_ms, isl.shares, strict=True)),
        (record and record.max_batched_tokens) or TOKENS_MAX,
        (record and record.max_batch_requests) or REQUESTS_MAX,
    )


def _engines(pool: Pool, prompts: Prompts, objectives: ObjectiveKnobs, demand: Demand) -> Callable[[float], Engines]:
    """The engines that prefill for so many times the demand needs."""
    if demand.attainment > 0.0:
        return lambda times: prefill_engines(
            prompts, demand.requests_per_s * times, objectives.ttft_ms, demand.attainment
        )
    # Enough on average, one prompt after the other: the formula of Dynamo's throughput planner.
    rate = mixed_prefill_throughput(_prefill_model(pool), _computed(demand))
    rate *= pool.engine.prefill_gpus(pool.knobs.gpus_per_worker) / min(1.0, demand.prefill_correction)
    tokens_per_s = demand.requests_per_s * prompts.isl_tokens
    busy = tokens_per_s / rate if rate > 0.0 else 0.0
    return lambda times: Engines(busy * times, replicas.replicas_for(tokens_per_s * times, rate, 0))


def _late(pool: Pool, prompts: Prompts, objectives: ObjectiveKnobs) -> Reason | None:
    """That the mean prompt misses the objective even alone."""
    late = prompts.ttft_ms > objectives.ttft_ms
    return _infeasible(pool, prompts.ttft_ms, objectives.ttft_ms) if late else None


def _prefill(pool: Pool, objectives: ObjectiveKnobs, demand: Demand) -> Sizer:
    prompts = _prompts(pool, demand)
    infeasible = _late(pool, prompts, objectives)

    engines_for = _engines(pool, prompts, objectives, demand)

    def size(times: float) -> Size:
        engines = engines_for(times)
        return Size(engines.busy, engines.workers, infeasible=infeasible)

    return size


class _Batch(Struct, frozen=True):
    """The best batch of one worker."""

    tokens_per_s: float
    requests: float


def _batch(pool: Pool, model: DecodeModel, itl_ms: float, context: float) -> _Batch | None:
    """The best batch within an ITL, and within what the workers of the pool say of their cache and their batches."""
    best = model.find_best_throughput_per_gpu(itl_ms, context)
    if best is None:
        return None
    room = _room(pool, context) * context / model.max_kv_tokens
    if best.kv_usage > room:
        at = np.asarray(room), np.asarray(context)
        best = BestThroughput(float(model.tokens_per_s_per_gpu(*at)), float(model.itl_ms(*at)), room)
    requests = max(1.0, best.kv_usage * model.max_kv_tokens / context)
    # Between two measured contexts a profile's throughput may be above what its batch and its ITL come to.
    rate = best.tokens_per_s_per_gpu * pool.engine.decode_gpus(pool.knobs.gpus_per_worker)
    return _Batch(min(rate, requests / best.itl_ms * 1_000.0), requests)


def record_of(pool: Pool) -> WorkerRecord | None:
    """What the first worker of a pool says of itself, and so of all of them."""
    return next((worker.record for worker in pool.workers.values()), None)


def _room(pool: Pool, context: float) -> float:
    """Requests of a context that a worker of the pool holds, by the record of its first worker; infinite if unsaid."""
    record, room = record_of(pool), math.inf
    if record is None:
        return room
    if record.kv_blocks_total and record.block_size_tokens:
        room = record.kv_blocks_total * record.block_size_tokens * KV_FULL / max(context, 1.0)
    return min(room, float(record.max_batch_requests or math.inf))


def _decode(pool: Pool, objectives: ObjectiveKnobs, demand: Demand) -> Sizer:
    model = pool.engine.decode_model(pool.knobs.gpus_per_worker)
    if model is None:  # ``profile_problem`` was asked first
        raise AssertionError(pool.name)
    context = _context(demand)
    itl_ms = replicas.corrected_itl_ms(objectives.itl_ms, demand.decode_correction)
    infeasible = None
    batch = _batch(pool, model, itl_ms, context)
    if batch is None:
        infeasible = _slow(pool, float(model.itl_ms(np.asarray(0.0), np.asarray(context))), objectives, demand)
        batch = _batch(pool, model, math.inf, context)
    if batch is None:
        return lambda _times: Size(problem=_no_room(pool, model, context))
    best = batch

    def size(times: float) -> Size:
        busy = demand.decode_tokens_per_s * times / best.tokens_per_s
        return Size(busy, _with_room(busy, best.requests, demand), infeasible=infeasible)

    return size


def _with_room(busy: float, batch_requests: float, demand: Demand) -> int:
    """Workers for so many busy ones, or for the mean whose load, in requests, swings as that of independent ones does.

    The higher counts: of a demand at its busiest the swing is a part.
    """
    share = demand.attainment
    swing = NormalDist().inv_cdf(share) if share > 0.5 else 0.0  # noqa: PLR2004 - the median is the mean
    mean = busy / demand.decode_peak
    return min(replicas.REPLICAS_MAX, math.ceil(max(busy, mean + swing * math.sqrt(mean / batch_requests))))


def _aggregated(pool: Pool, objectives: ObjectiveKnobs, demand: Demand) -> Sizer:
    model = pool.engine.decode_model(pool.knobs.gpus_per_worker)
    if model is None:  # ``profile_problem`` was asked first
        raise AssertionError(pool.name)
    prompts, context = _prompts(pool, demand), _context(demand)
    alone_ms = float(model.itl_ms(np.asarray(0.0), np.asarray(context)))
    within_ms = replicas.corrected_itl_ms(objectives.itl_ms, demand.decode_correction)
    if _batch(pool, model, math.inf, context) is None:
        return lambda _times: Size(problem=_no_room(pool, model, context))

    engines_for, late_prompts = _engines(pool, prompts, objectives, demand), _late(pool, prompts, objectives)
    late, square_ms2 = stall_quantile(demand.osl, demand.attainment), prompts.square_ms2

    def fewest(itl_ms: float, times: float) -> Size:
        """The fewest workers that decode within an ITL; infeasible where no number of them does."""
        arriving, decode_tokens_per_s = demand.requests_per_s * times, demand.decode_tokens_per_s * times
        workers, most, best_ms = max(engines_for(times).workers, 1), replicas.REPLICAS_MAX, alone_ms
        if itl_ms < math.inf:
            most = max(workers, math.ceil(min(most, _APART * max(1.0, decode_tokens_per_s * itl_ms / 1_000.0))))
        while True:
            # While it prefills it does not decode, so an iteration takes that much longer: by one pass at most.
            prompts_per_ms = arriving / workers / 1_000.0
            passes_per_ms = min(prompts_per_ms, 1.0 / itl_ms) if itl_ms < math.inf else prompts_per_ms
            prefill = prompts_per_ms * prompts.prompt_ms + passes_per_ms * prompts.line.intercept_ms
            stalls_ms = late * math.sqrt(prompts_per_ms * itl_ms * square_ms2) if itl_ms < math.inf else 0.0
            if prefill < 1.0:
                best_ms = stalls_ms + alone_ms / (1.0 - prefill)
                batch = _batch(pool, model, (itl_ms - stalls_ms) * (1.0 - prefill), context)
                busy = workers * prefill + decode_tokens_per_s / batch.tokens_per_s if batch is not None else math.inf
                if batch is not None and _with_room(busy, batch.requests, demand) <= workers:
                    return Size(busy, workers)
            if workers >= most:
                return Size(workers * prefill, workers, infeasible=_slow(pool, best_ms, objectives, demand))
            workers = min(most, workers + max(1, workers // 8))

    def size(times: float) -> Size:
        found = fewest(within_ms, times)
        work = found if found.infeasible is None else fewest(math.inf, times)
        return Size(work.busy, work.wanted, infeasible=found.infeasible or late_prompts)

    return size


def _no_room(pool: Pool, model: DecodeModel, context: float) -> Reason:
    """That not even one request fits into the cache of a worker."""
    return Reason.of(
        ReasonCode.KV_CACHE_TOO_SMALL, pool.name, max_kv_tokens=model.max_kv_tokens, context_tokens=context
    )


def _slow(pool: Pool, best_ms: float, objectives: ObjectiveKnobs, demand: Demand) -> Reason:
    """That outputs miss the objective even where little else is done, by a profile that is corrected."""
    return _infeasible(pool, best_ms * demand.decode_correction, objectives.itl_ms)


def _infeasible(pool: Pool, best_ms: float, objective_ms: float) -> Reason:
    return Reason.of(ReasonCode.SLA_INFEASIBLE, pool.name, best_ms=best_ms, objective_ms=objective_ms)
