"""Descriptions of how each planner sizes a pool, for ``loadline check``."""

from collections.abc import Callable, Iterator
from typing import Final

from loadline.config.durations import duration
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.state.settings import ModelKnobs


def describe_planner(model: ModelKnobs, pool: PoolKnobs) -> Iterator[str]:
    """Describe how the planner of the model sizes the pool; yield nothing for a planner from another package."""
    if model.planner in _DESCRIPTIONS:
        yield from _DESCRIPTIONS[model.planner](model, pool)


def _threshold(model: ModelKnobs, pool: PoolKnobs) -> Iterator[str]:
    knobs = model.threshold
    if pool.role != "decode":
        yield (
            f"Adds one worker when the mean prefill queue is above {knobs.prefill_queue_scale_up_threshold:g} and its "
            f"trend stays above for {duration(knobs.prefill_queue_trend_intervals * knobs.adjustment_interval_ms)}; "
            f"removes one below {knobs.prefill_queue_scale_down_threshold:g}."
        )
    if pool.role != "prefill":
        yield (
            f"Adds one worker when the mean KV load is above {knobs.decode_kv_scale_up_threshold:g}; removes one below "
            f"{knobs.decode_kv_scale_down_threshold:g}, but not within "
            f"{duration(knobs.new_decode_worker_grace_intervals * knobs.adjustment_interval_ms)} of an addition."
        )
    if pool.role == "aggregated":
        yield "Either signal adds a worker; removing one needs both."


def _static(model: ModelKnobs, pool: PoolKnobs) -> Iterator[str]:
    count = model.static.replicas.get(pool.name)
    yield "No fixed count: the current target is kept." if count is None else f"Fixed at {count} workers."


def _hpa(model: ModelKnobs, pool: PoolKnobs) -> Iterator[str]:
    knobs = model.hpa
    targets = {
        "KV usage": knobs.kv_usage_target if pool.role != "prefill" else 0,
        "waiting requests": knobs.waiting_requests_target if pool.role == "aggregated" else 0,
        "requests in flight": knobs.prefill_requests_target if pool.role == "prefill" else 0,
    }
    yield (
        f"Every {duration(knobs.sync_interval_ms)}, sizes for these means per worker (tolerance "
        f"{knobs.tolerance:.0%}): "
        f"{', '.join(f'{name} {target:g}' for name, target in targets.items() if target)}."
    )
    yield (
        f"Scales down to the highest recommendation of the last {duration(knobs.down_stabilisation_ms)}; "
        "scales up by 100% or 4 workers at a time, whichever is more."
    )


def _kpa(model: ModelKnobs, pool: PoolKnobs) -> Iterator[str]:
    knobs = model.kpa
    full = knobs.prefill_target_concurrency if pool.role == "prefill" else knobs.target_concurrency
    yield (
        f"Every {duration(knobs.tick_interval_ms)}, sizes for {full * knobs.target_utilization:g} requests in flight "
        f"per worker, averaged over {duration(knobs.stable_window_ms)}."
    )
    yield (
        f"Panics when the last {duration(knobs.panic_window_ms)} need {knobs.panic_threshold:g} times the ready "
        f"workers: does not scale down for {duration(knobs.stable_window_ms)}."
    )


def _saturation(model: ModelKnobs, pool: PoolKnobs) -> Iterator[str]:
    knobs = model.hybrid.saturation if model.planner == "hybrid" else model.saturation
    if knobs.profile == "upstream":
        yield (
            f"Adds or removes one worker every {duration(knobs.optimization_interval_ms)}, by the headroom below KV "
            f"usage {knobs.kv_cache_threshold:g} and {knobs.queue_length_threshold:g} waiting requests."
        )
        return
    full = {"prefill": "while it computes", "decode": f"at KV usage {knobs.kv_cache_threshold:g}"}
    both = f"at KV usage {knobs.kv_cache_threshold:g} or {knobs.queue_length_threshold:g} waiting requests"
    yield (
        f"A worker is full {full.get(pool.role, both)}. Scales up above {knobs.scale_up_threshold:.0%} utilisation; "
        f"scales down when the remaining workers stay below {knobs.scale_down_boundary:.0%} at their "
        f"{duration(knobs.scale_down_window_ms)} peak."
    )


def _throughput(model: ModelKnobs, pool: PoolKnobs) -> Iterator[str]:
    _, knobs = model.by_traffic
    objective = {"prefill": f"TTFT {model.objectives.ttft_ms:g} ms", "decode": f"ITL {model.objectives.itl_ms:g} ms"}
    both = f"{objective['prefill']} and {objective['decode']}"
    yield (
        f"At least every {duration(knobs.throughput_adjustment_interval_ms)}, sizes for the forecast of the "
        f"{knobs.forecast.predictor} predictor within {objective.get(pool.role, both)}; reacts at once to a surge over "
        f"{duration(knobs.surge_window_ms)}."
    )


def _queueing(model: ModelKnobs, pool: PoolKnobs) -> Iterator[str]:
    knobs = model.hybrid.queueing if model.planner == "hybrid" else model.queueing
    yield from _throughput(model, pool)
    yield (
        "Chooses the cheapest mix of the pools of a role, with enough workers to serve a backlog within "
        f"{duration(knobs.drain_ms)}."
    )


def _load(model: ModelKnobs, _pool: PoolKnobs) -> Iterator[str]:
    knobs = model.sla.load if model.planner == "sla" else model.load
    yield (
        "Scales up to what the load needs, at most to twice the count, when every worker exceeds the objective; "
        "removes one worker when the others can take its load; changes at most once every "
        f"{duration(knobs.load_adjustment_interval_ms)}."
    )


def _sla(model: ModelKnobs, pool: PoolKnobs) -> Iterator[str]:
    yield from _throughput(model, pool)
    yield from _load(model, pool)


def _hybrid(model: ModelKnobs, pool: PoolKnobs) -> Iterator[str]:
    yield from _queueing(model, pool)
    yield from _saturation(model, pool)
    yield (
        "The queueing planner leads; the saturation planner adds workers where queueing adds none, and vetoes an "
        "unsafe scale-down."
    )


_DESCRIPTIONS: Final[dict[str, Callable[[ModelKnobs, PoolKnobs], Iterator[str]]]] = {
    "saturation": _saturation,
    "threshold": _threshold,
    "static": _static,
    "hpa": _hpa,
    "kpa": _kpa,
    "throughput": _throughput,
    "queueing": _queueing,
    "load": _load,
    "sla": _sla,
    "hybrid": _hybrid,
}
