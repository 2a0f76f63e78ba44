"""Request rate that one worker of a pool serves of a demand, with the worker as a queue.

The engine is described by two lines. With a profile, they are fitted near the batches and prompts of the demand: over
the whole profile a line is 20 % off, near the batches within the objective 3 %.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from loadline.core.engines.arrays import FloatArray
from loadline.core.engines.fitting import FitRefused, fit_line
from loadline.core.engines.lengths import computed_isl, mean_decode_context
from loadline.core.engines.linear import LinearTimes
from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.engines.queue_prediction import QueuePrediction, predict
from loadline.core.engines.queue_rates import QueueEngine, RequestLoad, max_engine_rate, round_up_length
from loadline.core.engines.queue_sizing import TOKENS_SHARE, Bound, MaxRate, Targets
from loadline.core.engines.queueing import BATCH_MAX
from loadline.core.engines.regression import Line
from loadline.core.fleet.pool import Pool
from loadline.core.planning.sizing.profile.counts import (
    KV_USAGE_MAX,
    Demand,
    out_of_reach,
    profile_problem,
    record_of,
)
from loadline.core.planning.sizing.queueing.online_fits import NO_LINES, EngineLines
from loadline.core.vocabulary.reasons import Reason, ReasonCode
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.core.vocabulary.scalars import Role

_BATCH: Final = 256
"""Largest batch in requests of an engine that does not register it and was never full; the default of vLLM."""
_PASS_TOKENS: Final = 8_192
"""Largest pass in tokens of an engine that does not report it."""
_POINTS: Final = 16
"""Number of batches at which a profile is evaluated for a fit."""
_UNUSED: Final = Line(1.0, 0.0)
"""Placeholder for the work that a role does not do; no formula of the role uses it."""


class WorkerEngine(Struct, frozen=True):
    """Engine of a worker, and the mean lengths of its requests."""

    engine: QueueEngine
    ranks: int
    """Such engines of a worker."""
    isl_tokens: float
    """Prompt tokens to compute."""
    osl_tokens: float

    def predict(self, role: Role, requests_per_s: float, workers: int) -> QueuePrediction | None:
        """Return the prediction for ready workers that share a load; None if there is none."""
        load = RequestLoad(requests_per_s, self.isl_tokens, self.osl_tokens)
        return predict(role, self.engine, load, workers * self.ranks) if workers else None


class WorkerThroughput(Struct, frozen=True):
    """Request rate that one worker serves, or the reason why it is unknown."""

    requests_per_s: float = 0.0
    bound: Bound = "saturation"
    """Target or resource that limits the rate."""
    saturated_requests_per_s: float = 0.0
    """Rate without latency objectives."""
    problem: Reason | None = None
    engine: WorkerEngine | None = None
    """Engine that the rate is for; None if unknown."""
    infeasible: Reason | None = None
    """Set if not even one request meets the objectives; the rate is then 90 % of the saturated one."""


def throughputs_of(
    pools: Sequence[Pool],
    objectives: ObjectiveKnobs,
    demand: Demand,
    requests_per_s: float,
    lines: Mapping[str, EngineLines],
) -> dict[str, WorkerThroughput]:
    """Return the throughput of one worker of each pool of a role.

    If the shortest request misses an objective by the profiles of all pools, the objective is wrong and is reported. By
    the profile of one pool, that pool is unsuitable.
    """
    problems = {pool.name: out_of_reach(pool, objectives) for pool in pools if profile_problem(pool) is None}
    if len(problems) == len(pools) and all(problems.values()):
        return {name: WorkerThroughput(problem=problem) for name, problem in problems.items()}
    return {
        pool.name: worker_throughput(pool, objectives, demand, requests_per_s, lines.get(pool.name, NO_LINES))
        for pool in pools
    }


def worker_throughput(
    pool: Pool, objectives: ObjectiveKnobs, demand: Demand, requests_per_s: float, lines: EngineLines = NO_LINES
) -> WorkerThroughput:
    """Return the throughput of one worker of a pool.

    Args:
        pool: The pool.
        objectives: Objectives of the model.
        demand: Lengths of the requests, and attainment.
        requests_per_s: Arrivals at the role of the pool.
        lines: Learned lines, which replace the profile if they cover the role.
    """
    lines = lines if lines.covers(pool.knobs.role) else NO_LINES
    targets = Targets(objectives.ttft_ms, objectives.itl_ms, objectives.tokens_per_s, demand.attainment)
    role, ranks = pool.knobs.role, _ranks(pool, lines)
    load = RequestLoad(requests_per_s / ranks, _computed_mean(demand), demand.osl.mean)
    try:
        engine = _engine(pool, objectives, demand, lines)
        if isinstance(engine, Reason):
            return WorkerThroughput(problem=engine)
        of_worker = WorkerEngine(engine, ranks, load.isl_tokens, load.osl_tokens)
        saturated = max_engine_rate(role, engine, load, Targets(), 1).requests_per_s * ranks
        found = max_engine_rate(role, engine, load, targets, pool.knobs.replicas_max)
    except ValueError as error:
        return WorkerThroughput(problem=Reason(ReasonCode.PROFILE_UNUSABLE, pool.name, detail=str(error)))
    if found.requests_per_s > 0.0:
        return WorkerThroughput(found.requests_per_s * ranks, found.bound, saturated, engine=of_worker)
    infeasible = _infeasible(pool, found, objectives)
    return WorkerThroughput(TOKENS_SHARE * saturated, found.bound, saturated, engine=of_worker, infeasible=infeasible)


def _infeasible(pool: Pool, found: MaxRate, objectives: ObjectiveKnobs) -> Reason:
    objective_ms = objectives.ttft_ms if found.bound == "ttft" else objectives.itl_ms
    numbers = {"best_ms": found.lowest_ms, "objective_ms": float(objective_ms)}
    return Reason(ReasonCode.SLA_INFEASIBLE, pool.name, numbers, detail=found.bound.upper())


def _computed_mean(demand: Demand) -> float:
    """Return the mean number of prompt tokens to compute."""
    return computed_isl(demand.isl.mean, demand.kv_hit_rate)


def _engine(pool: Pool, objectives: ObjectiveKnobs, demand: Demand, lines: EngineLines) -> QueueEngine | Reason:
    """Return the engine of a worker, or of one rank if its lines are learned; or the reason why it is unknown."""
    record, role = record_of(pool), pool.knobs.role
    problem = profile_problem(pool) if lines is NO_LINES else None
    if problem is not None:
        return problem
    context = round_up_length(max(1.0, mean_decode_context(demand.isl, demand.osl)))
    fitting = _kv_tokens(pool, record) / _ranks(pool, lines) / context
    if role != "prefill" and fitting < 1.0:
        numbers = {"max_kv_tokens": fitting * context, "context_tokens": context}
        return Reason(ReasonCode.KV_CACHE_TOO_SMALL, pool.name, numbers)
    requests_max = min((record and record.max_batch_requests) or _default_batch(pool, lines), BATCH_MAX)
    batch = max(1, int(min(requests_max, fitting)))
    tokens = (record and record.max_batched_tokens) or _PASS_TOKENS
    pass_requests = max(1, int(min(requests_max, tokens / max(1.0, _computed_mean(demand)))))
    decode = lines.decode or _decode_line(pool, objectives.itl_ms, batch, context, demand)
    if isinstance(decode, FitRefused):
        return Reason(ReasonCode.PROFILE_UNUSABLE, pool.name, detail=f"decode: {decode.problem}")
    prefill = lines.prefill or _prefill_line(pool, demand)
    times = LinearTimes(decode.intercept_ms, decode.slope, prefill.intercept_ms, prefill.slope)
    return QueueEngine(times, batch, pass_requests)


def _scaled(line: Line, factor: float) -> Line:
    """Return a line with all times multiplied by a correction factor."""
    return Line(line.slope * factor, line.intercept_ms * factor)


def _ranks(pool: Pool, lines: EngineLines) -> int:
    """Return the engines of a worker that are sized separately: a profile describes a worker, a learned line a rank."""
    record = record_of(pool)
    return record.data_parallel_size if record is not None and lines is not NO_LINES else 1


def _default_batch(pool: Pool, lines: EngineLines) -> float:
    """Return the largest batch of a rank whose worker does not register it: the observed one, if it was ever full."""
    if lines.batch_max:
        return lines.batch_max
    return _BATCH if pool.engine.linear is None else pool.engine.linear.max_batch_requests


def _kv_tokens(pool: Pool, record: WorkerRecord | None) -> float:
    """Return the usable tokens of the KV cache of a worker."""
    if record is not None and record.kv_blocks_total and record.block_size_tokens:
        return record.kv_blocks_total * record.block_size_tokens * record.data_parallel_size * KV_USAGE_MAX
    model = pool.engine.decode_model(pool.knobs.gpus_per_worker)
    return float("inf") if model is None else model.max_kv_tokens * KV_USAGE_MAX


def _prefill_line(pool: Pool, demand: Demand) -> Line:
    """Return the time of a pass by its tokens, for prompts of a demand: long ones may take more time per token."""
    model = pool.engine.prefill_model(pool.knobs.gpus_per_worker)
    if model is None:  # a decode pool
        return _UNUSED
    isl = demand.isl.scaled(_computed_mean(demand) / demand.isl.mean) if demand.isl.mean > 0.0 else demand.isl
    ttft_ms = isl.mean_of(model.ttft_ms(np.asarray(isl.tokens)).tolist())
    pass_ms = min(model.pass_overhead_ms, ttft_ms)
    return _scaled(Line(round_up_length((ttft_ms - pass_ms) / max(1.0, isl.mean)), pass_ms), demand.prefill_correction)


def _decode_line(pool: Pool, itl_ms: float, batch: float, context: float, demand: Demand) -> Line | FitRefused:
    """Return the time of an iteration by its batch, fitted up to the largest batch within an ITL, or to ``batch``."""
    model, linear = pool.engine.decode_model(pool.knobs.gpus_per_worker), pool.engine.linear
    if model is None:  # a prefill pool
        return _UNUSED
    if pool.engine.decode is None and linear is not None:
        return _scaled(Line(linear.beta, linear.alpha), demand.decode_correction)
    best = model.find_best_throughput_per_gpu(itl_ms, context)
    usage_of_one = context / model.max_kv_tokens
    largest = max(2.0, min(batch, best.kv_usage / usage_of_one if best is not None else batch))
    batches: FloatArray = np.linspace(1.0, largest, _POINTS)
    itl = model.itl_ms(batches * usage_of_one, np.full_like(batches, context))
    found = fit_line(batches.tolist(), itl.tolist())
    return found if isinstance(found, FitRefused) else _scaled(found.line, demand.decode_correction)
