"""What is legal in the profiles and objectives of a model, and cannot be meant: each is a warning."""

from collections.abc import Iterable, Iterator
from typing import Final

from loadline.config.engines import read_engine
from loadline.core.engines.profile import EngineProfile
from loadline.core.engines.sweeps import DecodeSweep, PrefillSweep
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.planners import PLANNERS
from loadline.core.state.settings import ModelKnobs

_OFF: Final = 100.0
"""Milliseconds and seconds are a thousand apart; a profiler that divides by the GPUs of a node, sixteen or so."""

Point = tuple[float, float, float]
"""Tokens of a pass over all its requests, its time in ms, and tokens a second of a GPU."""


def profile_warnings(model: ModelKnobs, place: str) -> Iterator[str]:
    """What keeps the profiles of a model from being used, makes them doubtful, or its objectives out of reach."""
    for index, pool in enumerate(model.pools):
        here, engine = f"{place}.pools[{index}]", read_engine(pool)
        if engine.problem:
            linear = "" if pool.linear is None else ".linear"
            yield f"{here}{linear}: {engine.problem} Until then the pool holds."
        elif engine == EngineProfile():
            kind = "decode_profile" if pool.role == "decode" else "prefill_profile"
            optional = PLANNERS[model.planner].needs.profiles == "optional"
            until = "until its workers have shown it" if optional else "so the pool holds"
            yield f"{here}.{kind}: nothing is known of the engines, {until}. Set it, or linear."
        if pool.role != "decode" and engine.prefill is not None:
            yield from _unit(f"{here}.prefill_profile", "prefill_ttft", _prefill_points(engine.prefill), pool)
        if pool.role != "prefill" and engine.decode is not None:
            yield from _decode_warnings(f"{here}.decode_profile", engine, engine.decode, pool)
        yield from _objective_warnings(model, place, pool, engine)


def _decode_warnings(here: str, engine: EngineProfile, sweep: DecodeSweep, pool: PoolKnobs) -> Iterator[str]:
    context = min(sweep.context_tokens)
    if sweep.max_kv_tokens < context:
        yield (
            f"{here}: a cache of max_kv_tokens {sweep.max_kv_tokens:g} holds no request of {context:g} tokens, the "
            "shortest that was measured. Write the tokens of the whole cache."
        )
        return
    doubts = list(_unit(here, "z_itl", _decode_points(sweep), pool))
    yield from doubts
    counted = engine.decode_gpus(pool.gpus_per_worker)
    if counted != pool.gpus_per_worker and not doubts:
        yield (
            f"{here}: it divides by {counted} GPUs a worker, the pool has {pool.gpus_per_worker}. "
            "Its times are used; check that it was measured on such workers."
        )


def _prefill_points(sweep: PrefillSweep) -> Iterable[Point]:
    return zip(sweep.isl_tokens, sweep.ttft_ms, sweep.tokens_per_s_per_gpu, strict=True)


def _decode_points(sweep: DecodeSweep) -> Iterable[Point]:
    """Each request of a batch gets one token in an iteration; an empty batch says nothing."""
    points = zip(sweep.kv_usage, sweep.context_tokens, sweep.itl_ms, sweep.tokens_per_s_per_gpu, strict=True)
    return [(usage * sweep.max_kv_tokens / context, itl, rate) for usage, context, itl, rate in points if usage]


def _unit(here: str, key: str, points: Iterable[Point], pool: PoolKnobs) -> Iterator[str]:
    """Whether the times of a sweep are in another unit: time, throughput and tokens tell each other."""
    gpus = pool.gpus_per_worker
    due = sorted((tokens / (rate * gpus) * 1_000.0 / taken, taken) for tokens, taken, rate in points)
    if not due:
        return
    off, taken = due[len(due) // 2]
    if 1.0 / _OFF < off < _OFF:
        return
    unit = "seconds" if off > 1.0 else "microseconds"
    yield (
        f"{here}: {key} says {taken:g} where the throughput of {gpus} {'GPU' if gpus == 1 else 'GPUs'} makes it "
        f"{taken * off:.4g} ms: it looks like {unit}. Write it in milliseconds, and tokens a second of one GPU."
    )


def _objective_warnings(model: ModelKnobs, place: str, pool: PoolKnobs, engine: EngineProfile) -> Iterator[str]:
    """Objectives that no request can meet: a planner can do nothing about them."""
    prefill = None if pool.role == "decode" else engine.prefill_model(pool.gpus_per_worker)
    decode = None if pool.role == "prefill" else engine.decode_model(pool.gpus_per_worker)
    for key, objective_ms, best_ms in (
        ("ttft_ms", model.objectives.ttft_ms, 0.0 if prefill is None else prefill.ttft_min_ms),
        ("itl_ms", model.objectives.itl_ms, 0.0 if decode is None else decode.itl_min_ms),
    ):
        if objective_ms < best_ms:
            yield (
                f"{place}.objectives.{key}: no request of pool {pool.name} meets {objective_ms:g} ms, so it holds: the "
                f"best of its profile is {best_ms:.4g} ms. Set it above, or correct the profile."
            )
