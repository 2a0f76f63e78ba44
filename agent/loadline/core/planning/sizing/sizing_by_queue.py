"""How many requests a second one worker of a pool serves of a demand, as a queue.

What its engine takes are four numbers. Of a profile they are those around the batches and the prompts that the demand
brings: over all that was measured a line is 20 % off, near the batches that keep the objective 3 %.
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
from loadline.core.engines.queue_rates import QueueEngine, RequestLoad, max_engine_rate, round_up_length
from loadline.core.engines.queue_sizing import TOKENS_SHARE, Bound, MaxRate, Targets
from loadline.core.engines.queueing import BATCH_MAX
from loadline.core.engines.regression import Line
from loadline.core.fleet.pool import Pool
from loadline.core.planning.sizing.online_fits import NO_LINES, EngineLines
from loadline.core.planning.sizing.sizing_by_profile import KV_FULL, Demand, out_of_reach, profile_problem, record_of
from loadline.core.vocabulary.reasons import Reason, ReasonCode
from loadline.core.vocabulary.samples import WorkerRecord

_BATCH: Final = 256
"""Largest batch of an engine that does not say, in requests; the default of vLLM."""
_PASS_TOKENS: Final = 8_192
"""Largest pass of an engine that does not say, in tokens."""
_POINTS: Final = 16
"""Batches at which a profile is read."""
_IDLE: Final = Line(1.0, 0.0)
"""Of the work that a role does not do: no formula of its role has it."""


class WorkerThroughput(Struct, frozen=True):
    """What one worker serves; or why that cannot be said."""

    requests_per_s: float = 0.0
    bound: Bound = "saturation"
    """What keeps it from serving more."""
    saturated_requests_per_s: float = 0.0
    """What it could serve if nobody minded the wait."""
    problem: Reason | None = None
    infeasible: Reason | None = None
    """That not even one request meets the objectives: the rate is that of the work, with a tenth to spare."""


def served_by(
    pools: Sequence[Pool],
    objectives: ObjectiveKnobs,
    demand: Demand,
    requests_per_s: float,
    lines: Mapping[str, EngineLines],
) -> dict[str, WorkerThroughput]:
    """What one worker of each pool of a role serves.

    An objective that the shortest request misses by all of their profiles is a mistake; by one, it is no pool for it.
    """
    mistakes = {pool.name: out_of_reach(pool, objectives) for pool in pools if profile_problem(pool) is None}
    if len(mistakes) == len(pools) and all(mistakes.values()):
        return {name: WorkerThroughput(problem=mistake) for name, mistake in mistakes.items()}
    return {
        pool.name: served(pool, objectives, demand, requests_per_s, lines.get(pool.name, NO_LINES)) for pool in pools
    }


def served(
    pool: Pool, objectives: ObjectiveKnobs, demand: Demand, requests_per_s: float, lines: EngineLines = NO_LINES
) -> WorkerThroughput:
    """What one worker of a pool serves of a demand, of which so many requests a second come to its role.

    Lines take the place of the profile, where they are all that its role needs.
    """
    lines = lines if lines.known(pool.knobs.role) else NO_LINES
    targets = Targets(objectives.ttft_ms, objectives.itl_ms, objectives.tokens_per_s, demand.attainment)
    role, ranks = pool.knobs.role, _ranks(pool, lines)
    work = RequestLoad(requests_per_s / ranks, _computed(demand), demand.osl.mean)
    try:
        engine = _engine(pool, objectives, demand, lines)
        if isinstance(engine, Reason):
            return WorkerThroughput(problem=engine)
        saturated = max_engine_rate(role, engine, work, Targets(), 1).requests_per_s * ranks
        found = max_engine_rate(role, engine, work, targets, pool.knobs.replicas_max)
    except ValueError as error:
        return WorkerThroughput(problem=Reason(ReasonCode.PROFILE_UNUSABLE, pool.name, detail=str(error)))
    if found.requests_per_s > 0.0:
        return WorkerThroughput(found.requests_per_s * ranks, found.bound, saturated)
    return WorkerThroughput(
        TOKENS_SHARE * saturated, found.bound, saturated, infeasible=_infeasible(pool, found, objectives)
    )


def _infeasible(pool: Pool, found: MaxRate, objectives: ObjectiveKnobs) -> Reason:
    objective_ms = objectives.ttft_ms if found.bound == "ttft" else objectives.itl_ms
    numbers = {"best_ms": found.lowest_ms, "objective_ms": float(objective_ms)}
    return Reason(ReasonCode.SLA_INFEASIBLE, pool.name, numbers, detail=found.bound.upper())


def _computed(demand: Demand) -> float:
    """Prompt tokens that are left to compute, on average."""
    return computed_isl(demand.isl.mean, demand.kv_hit_rate)


def _engine(pool: Pool, objectives: ObjectiveKnobs, demand: Demand, lines: EngineLines) -> QueueEngine | Reason:
    """The engine of a worker, or of one of its ranks, in four numbers, and what it runs together; or why not."""
    record, role = record_of(pool), pool.knobs.role
    problem = profile_problem(pool) if lines is NO_LINES else None
    if problem is not None:
        return problem
    context = round_up_length(max(1.0, mean_decode_context(demand.isl, demand.osl)))
    room = _room_tokens(pool, record) / _ranks(pool, lines) / context
    if role != "prefill" and room < 1.0:
        numbers = {"max_kv_tokens": room * context, "context_tokens": context}
        return Reason(ReasonCode.KV_CACHE_TOO_SMALL, pool.name, numbers)
    most = min((record and record.max_batch_requests) or _most_said(pool), BATCH_MAX)
    batch = max(1, int(min(most, room)))
    tokens = (record and record.max_batched_tokens) or _PASS_TOKENS
    passes = max(1, int(min(most, tokens / max(1.0, _computed(demand)))))
    decode = lines.decode or _decode_line(pool, objectives.itl_ms, batch, context, demand)
    if isinstance(decode, FitRefused):
        return Reason(ReasonCode.PROFILE_UNUSABLE, pool.name, detail=f"decode: {decode.problem}")
    prefill = lines.prefill or _prefill_line(pool, demand)
    times = LinearTimes(decode.intercept_ms, decode.slope, prefill.intercept_ms, prefill.slope)
    return QueueEngine(times, batch, passes)


def _times(line: Line, factor: float) -> Line:
    """What engines take that are so many times as slow as their profile."""
    return Line(line.slope * factor, line.intercept_ms * factor)


def _ranks(pool: Pool, lines: EngineLines) -> int:
    """Engines in a worker, each with batches of its own. A profile is that of a worker; a line, that of a rank."""
    record = record_of(pool)
    return record.data_parallel_size if record is not None and lines is not NO_LINES else 1


def _most_said(pool: Pool) -> float:
    """The largest batch where workers do not say theirs."""
    return _BATCH if pool.engine.linear is None else pool.engine.linear.max_batch_requests


def _room_tokens(pool: Pool, record: WorkerRecord | None) -> float:
    """Tokens of requests that the KV cache of a worker holds without sending one back."""
    if record is not None and record.kv_blocks_total and record.block_size_tokens:
        return record.kv_blocks_total * record.block_size_tokens * record.data_parallel_size * KV_FULL
    model = pool.engine.decode_model(pool.knobs.gpus_per_worker)
    return float("inf") if model is None else model.max_kv_tokens * KV_FULL


def _prefill_line(pool: Pool, demand: Demand) -> Line:
    """Time of a pass by its tokens, of prompts like these: long ones may take more than their share of it."""
    model = pool.engine.prefill_model(pool.knobs.gpus_per_worker)
    if model is None:  # it only decodes
        return _IDLE
    isl = demand.isl.scaled(_computed(demand) / demand.isl.mean) if demand.isl.mean > 0.0 else demand.isl
    ttft_ms = isl.mean_of(model.ttft_ms(np.asarray(isl.tokens)).tolist())
    pass_ms = min(model.pass_overhead_ms, ttft_ms)
    return _times(Line(round_up_length((ttft_ms - pass_ms) / max(1.0, isl.mean)), pass_ms), demand.prefill_correction)


def _decode_line(pool: Pool, itl_ms: float, batch: float, context: float, demand: Demand) -> Line | FitRefused:
    """Time of an iteration by its batch, of the batches up to the largest that keeps an ITL, or that there is."""
    model, linear = pool.engine.decode_model(pool.knobs.gpus_per_worker), pool.engine.linear
    if model is None:  # it only prefills
        return _IDLE
    if pool.engine.decode is None and linear is not None:
        return _times(Line(linear.beta, linear.alpha), demand.decode_correction)
    best = model.find_best_throughput_per_gpu(itl_ms, context)
    usage_of_one = context / model.max_kv_tokens
    most = max(2.0, min(batch, best.kv_usage / usage_of_one if best is not None else batch))
    batches: FloatArray = np.linspace(1.0, most, _POINTS)
    itl = model.itl_ms(batches * usage_of_one, np.full_like(batches, context))
    found = fit_line(batches.tolist(), itl.tolist())
    return found if isinstance(found, FitRefused) else _times(found.line, demand.decode_correction)
