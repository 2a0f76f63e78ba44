"""Warnings about implausible engine profiles, and about objectives that no request can meet."""

from collections.abc import Iterable, Iterator
from typing import Final

from loadline.config.engines import read_engine
from loadline.core.engines.profile import EngineProfile
from loadline.core.engines.sweeps import DecodeSweep, PrefillSweep
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.planners import PLANNERS
from loadline.core.state.settings import ModelKnobs

_UNIT_RATIO_MIN: Final = 100.0
"""Ratio of expected to written times that indicates a wrong unit.

Seconds written as milliseconds give 1,000; a profiler that divides by the GPUs of a node gives about 16.
"""

Point = tuple[float, float, float]
"""Point of a sweep: tokens of an iteration over all requests, its time in ms, and tokens/s per GPU."""


def profile_warnings(model: ModelKnobs, place: str) -> Iterator[str]:
    """Yield warnings about unusable or implausible profiles of a model, and about unreachable objectives."""
    need = PLANNERS[model.planner].needs.profiles
    for index, pool in enumerate(model.pools):
        if pool.role == "encode":  # no planner uses a profile of it
            continue
        here, engine = f"{place}.pools[{index}]", read_engine(pool)
        if engine.problem:
            effect = "the profile is not used" if need == "no" else "the pool is held"
            yield f"{here}.{engine.problem} Until then {effect}."
        elif engine == EngineProfile() and need != "no":
            kind = "decode_profile" if pool.role == "decode" else "prefill_profile"
            effect = "so it is held" + (" until its workers have reported latencies" if need == "optional" else "")
            yield f"{here}.{kind}: the pool has no engine profile, {effect}. Set {kind} or linear."
        if pool.role != "decode" and engine.prefill is not None:
            yield from _unit_warnings(f"{here}.prefill_profile", "prefill_ttft", _prefill_points(engine.prefill), pool)
        if pool.role != "prefill" and engine.decode is not None:
            yield from _decode_warnings(f"{here}.decode_profile", engine, engine.decode, pool)
        if need != "no":
            yield from _objective_warnings(model, place, pool, engine)


def _decode_warnings(here: str, engine: EngineProfile, sweep: DecodeSweep, pool: PoolKnobs) -> Iterator[str]:
    context = min(sweep.context_tokens)
    if sweep.max_kv_tokens < context:
        yield (
            f"{here}: max_kv_tokens {sweep.max_kv_tokens:g} is below the shortest measured request of {context:g} "
            "tokens. Set it to the number of tokens that the KV cache of a worker holds."
        )
        return
    warnings = list(_unit_warnings(here, "z_itl", _decode_points(sweep), pool))
    yield from warnings
    profiled_gpus = engine.decode_gpus(pool.gpus_per_worker)
    if profiled_gpus != pool.gpus_per_worker and not warnings:
        yield (
            f"{here}: its throughput per GPU is that of workers with {profiled_gpus} GPUs, and the pool has "
            f"{pool.gpus_per_worker} per worker. Its times are used as they are: make sure that the profiled workers "
            "equal those of the pool."
        )


def _prefill_points(sweep: PrefillSweep) -> Iterable[Point]:
    return zip(sweep.isl_tokens, sweep.ttft_ms, sweep.tokens_per_s_per_gpu, strict=True)


def _decode_points(sweep: DecodeSweep) -> Iterable[Point]:
    """Return the points with a batch: each of its requests gets one token per iteration."""
    points = zip(sweep.kv_usage, sweep.context_tokens, sweep.itl_ms, sweep.tokens_per_s_per_gpu, strict=True)
    return [(usage * sweep.max_kv_tokens / context, itl, rate) for usage, context, itl, rate in points if usage]


def _unit_warnings(here: str, key: str, points: Iterable[Point], pool: PoolKnobs) -> Iterator[str]:
    """Yield a warning if the times of a sweep contradict its throughput as if they had another unit."""
    gpus = pool.gpus_per_worker
    ratios = sorted((tokens / (rate * gpus) * 1_000.0 / time_ms, time_ms) for tokens, time_ms, rate in points)
    if not ratios:
        return
    ratio, time_ms = ratios[len(ratios) // 2]
    if 1.0 / _UNIT_RATIO_MIN < ratio < _UNIT_RATIO_MIN:
        return
    unit = "seconds" if ratio > 1.0 else "microseconds"
    yield (
        f"{here}: {key} is {time_ms:g}, but the throughput of {gpus} {'GPU' if gpus == 1 else 'GPUs'} implies "
        f"{time_ms * ratio:.4g} ms: the unit seems to be {unit}. Write milliseconds, and tokens/s per GPU."
    )


def _objective_warnings(model: ModelKnobs, place: str, pool: PoolKnobs, engine: EngineProfile) -> Iterator[str]:
    """Yield warnings about objectives below the best latency of a profile."""
    prefill = None if pool.role == "decode" else engine.prefill_model(pool.gpus_per_worker)
    decode = None if pool.role == "prefill" else engine.decode_model(pool.gpus_per_worker)
    for key, objective_ms, best_ms in (
        ("ttft_ms", model.effective_objectives.ttft_ms, 0.0 if prefill is None else prefill.ttft_min_ms),
        ("itl_ms", model.effective_objectives.itl_ms, 0.0 if decode is None else decode.itl_min_ms),
    ):
        if objective_ms < best_ms:
            yield (
                f"{place}.objectives.{key}: no request of pool {pool.name} can meet {objective_ms:g} ms, so the pool "
                f"is held: the best latency of its profile is {best_ms:.4g} ms. Set a higher objective, or correct the "
                "profile."
            )
