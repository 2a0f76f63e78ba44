"""What the agent will do with a configuration, in plain sentences."""

import json
from collections.abc import Callable, Iterator
from typing import Final

from loadline.config.durations import duration
from loadline.config.knobs import Config
from loadline.config.layers import origins_of
from loadline.config.movement import about_moves
from loadline.core.fleet.fleet import FleetKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.allocation.supplies import DEFAULT, UNLIMITED
from loadline.core.state.settings import ModelKnobs

_SECOND_MS = 1_000


def describe(config: Config) -> str:
    """The configuration as sentences, one a line; what belongs to a model is indented."""
    lines = [*_about_agent(config)]
    for index, model in enumerate(config.models):
        if not config.agent.only:
            lines += _about_model(model)
        elif model.rescheduling.enable_rescheduling:
            lines.append(f"Model {model.name}: how many workers it has is somebody else's to decide.")
        else:
            lines.append(f"Model {model.name}: nothing is done, for enable_rescheduling is not set.")
        lines += [f"  {line}" for line in about_moves(model)]
        lines += _about_layers(config, f"models[{index}].")
    return "\n".join(lines)


def _about_agent(config: Config) -> Iterator[str]:
    agent, http, journal, lead = config.agent, config.http, config.journal, config.leadership
    name = f"Agent {agent.name}" if agent.name else "The agent, named after its host and process,"
    yield f"{name} hears {agent.root}.v1.> on NATS at {', '.join(config.nats.servers)}."
    yield f"It keeps /loadline/{agent.namespace}/ in etcd at {', '.join(config.etcd.endpoints)}."
    yield (
        f"A leader that dies is replaced within {duration(lead.lease_ttl_s * _SECOND_MS + lead.retry_ms)}; "
        f"it stops deciding {duration(lead.margin_ms)} before its lease may end."
    )
    if not agent.only:
        yield from _about_scaling(config)
    yield f"HTTP: {f'http://{http.host}:{http.port}' if http.port else 'no port is opened'}."
    yield (
        f"Journal: {journal.directory}, {journal.bytes_max / 2**20:g} MiB at most."
        if journal.directory
        else "Journal: none, so this run cannot be replayed."
    )


def _about_scaling(config: Config) -> Iterator[str]:
    """What is said of all models together, where the agent decides how many workers they have."""
    yield (
        f"A worker that is silent for {duration(config.fleet.stale_after_ms)} is not fresh; nothing shrinks while "
        f"fewer than {config.fleet.quorum_ratio:.0%} of the ready workers are fresh."
    )
    yield (
        f"A decision that no scaler has applied after {duration(config.decisions.ttl_ms)} expires; "
        f"a worker may take {duration(config.drain.ttl_ms)} to drain."
    )
    yield from (f"All models together: {line}" for line in _about_budget(config.fleet))
    yield from _about_supplies(config)
    yield from _about_cost(config)


def _about_supplies(config: Config) -> Iterator[str]:
    """What is limited, and who gets it when it is short."""
    allocation = config.allocation
    there_are = ", ".join(f"{gpus} of type {kind}" for kind, gpus in allocation.capacity.items())
    if there_are:
        yield f"All models share these GPUs: {there_are}."
    for one in config.namespaces:
        of = {kind: "every other type" if kind == DEFAULT else f"type {kind}" for kind in one.gpu_quota}
        most = {kind: "any number" if gpus == UNLIMITED else gpus for kind, gpus in one.gpu_quota.items()}
        quota = ", ".join(f"{most[kind]} of {of[kind]}" for kind in most)
        if quota:
            yield f"The models of namespace {one.name} have at most these GPUs: {quota}."
    if there_are or any(one.gpu_quota for one in config.namespaces):
        yield f"Where GPUs are short, priority 1 comes first, and what is left goes by {allocation.policy}."


def _about_cost(config: Config) -> Iterator[str]:
    """What the workers of pools with an accelerator cost, by their replica bounds alone."""
    known = {one.name: one for one in config.accelerators}
    least = most = 0.0
    for pool in (pool for model in config.models for pool in model.pools if pool.accelerator):
        accelerator = known[pool.accelerator]
        each = accelerator.units(pool.gpus_per_worker) * accelerator.cost_per_hour
        least, most = least + pool.replicas_min * each, most + pool.replicas_max * each
    if most:
        yield f"What pools with an accelerator cost an hour: {least:g} with the fewest workers, {most:g} with the most."


def _about_layers(config: Config, place: str) -> Iterator[str]:
    """What of a model is written in a layer, a line for each layer."""
    found: dict[str, list[str]] = {}
    for key, origin in origins_of(config).items():
        if key.startswith(place):
            found.setdefault(origin.layer, []).append(f"{key.removeprefix(place)} = {json.dumps(origin.value)}")
    yield from (f"  From {layer}: {', '.join(said)}." for layer, said in found.items())


def _about_budget(knobs: ModelKnobs | FleetKnobs) -> Iterator[str]:
    if knobs.gpu_budget_max is not None or knobs.gpu_budget_min:
        most = "any number of" if knobs.gpu_budget_max is None else f"at most {knobs.gpu_budget_max}"
        yield f"at least {knobs.gpu_budget_min} and {most} GPUs."


def _about_model(model: ModelKnobs) -> Iterator[str]:
    deed = "advises, and decides nothing" if model.no_operation else "decides"
    yield f"Model {model.name}: the {model.planner} planner {deed}."
    if model.load_predictor_warmup_trace:
        end = model.load_predictor_warmup_end
        ended = f"ended at {end} UTC" if end else "ended at the start of the agent, at whatever time of day that is"
        yield (
            f"  It starts warm: its first forecasts are made from {model.load_predictor_warmup_trace}, as if that "
            f"{ended}."
        )
    for pool in model.pools:
        yield f"  {_about_pool(pool)}"
        for one in pool.schedules:
            early = ", begun as much earlier as its workers take to come" if one.ready_at_start else ""
            yield f"    From {one.start!r} to {one.end!r}, {one.timezone}: at least {one.replicas_min}{early}."
        yield from (f"    {line}" for line in _ABOUT_PLANNER.get(model.planner, _about_nothing)(model, pool))
    if model.scale_to_zero_after_ms:
        yield (
            f"  After {duration(model.scale_to_zero_after_ms)} in which nobody asks anything of it all pools are "
            "emptied; the first request wakes a worker of each role."
        )
    if model.planner == "threshold":
        window = duration(model.threshold.adjustment_interval_ms)
        pulling = duration(model.threshold.metric_pulling_interval_ms)
        yield f"  Means are over {window}, sampled every {pulling}; changes are at least {window} apart."
    yield from (f"  All pools together: {line}" for line in _about_budget(model))
    guard = model.guard
    yield (
        f"  A decision adds at most {guard.step_up_max} to a pool, {_soonest(guard.cooldown_up_ms)}; "
        f"one takes at most {guard.step_down_max}, {_soonest(guard.cooldown_down_ms)}. A shrink "
        f"waits until no proposal of the last {duration(guard.stabilisation_ms)} was higher, and for "
        f"{duration(guard.warm_up_ms)} of complete data."
    )


def _soonest(cooldown_ms: int) -> str:
    return (
        f"{duration(cooldown_ms)} after its last change or later" if cooldown_ms else "and the next may follow at once"
    )


def _about_pool(pool: PoolKnobs) -> str:
    fixed = pool.replicas_min == pool.replicas_max
    size = f"always {pool.replicas_min}" if fixed else f"{pool.replicas_min} to {pool.replicas_max}"
    gpus = "GPU" if pool.gpus_per_worker == 1 else "GPUs"
    return f"Pool {pool.name} ({pool.role}): {size} workers of {pool.gpus_per_worker} {gpus}."


def _about_thresholds(model: ModelKnobs, pool: PoolKnobs) -> Iterator[str]:
    knobs = model.threshold
    if pool.role != "decode":
        yield (
            f"Mean prefill queue above {knobs.prefill_queue_scale_up_threshold:g}, and still so in "
            f"{duration(knobs.prefill_queue_trend_intervals * knobs.adjustment_interval_ms)}: one more. "
            f"Below {knobs.prefill_queue_scale_down_threshold:g}: one less."
        )
    if pool.role != "prefill":
        yield (
            f"Mean KV load above {knobs.decode_kv_scale_up_threshold:g}: one more. "
            f"Below {knobs.decode_kv_scale_down_threshold:g}: one less, but not within "
            f"{duration(knobs.new_decode_worker_grace_intervals * knobs.adjustment_interval_ms)} of an addition."
        )
    if pool.role == "aggregated":
        yield "Either signal adds; only both together take."


def _about_static(model: ModelKnobs, pool: PoolKnobs) -> Iterator[str]:
    count = model.static.replicas.get(pool.name)
    yield "No fixed count: what stands stays." if count is None else f"Fixed at {count}, whatever the load."


def _about_hpa(model: ModelKnobs, pool: PoolKnobs) -> Iterator[str]:
    knobs = model.hpa
    targets = {
        "KV usage": knobs.kv_usage_target if pool.role != "prefill" else 0,
        "waiting requests": knobs.waiting_requests_target if pool.role == "aggregated" else 0,
        "requests in flight": knobs.prefill_requests_target if pool.role == "prefill" else 0,
    }
    yield (
        f"Every {duration(knobs.sync_interval_ms)} as many workers as bring each mean to its target, "
        f"give or take {knobs.tolerance:.0%}: "
        f"{', '.join(f'{what} to {target:g}' for what, target in targets.items() if target)}."
    )
    yield f"Down to the highest count of {duration(knobs.down_stabilisation_ms)}; up to twice, or four more, at a time."


def _about_kpa(model: ModelKnobs, pool: PoolKnobs) -> Iterator[str]:
    knobs = model.kpa
    full = knobs.prefill_target_concurrency if pool.role == "prefill" else knobs.target_concurrency
    yield (
        f"Every {duration(knobs.tick_interval_ms)} a worker for each {full * knobs.target_utilization:g} requests in "
        f"flight, on the mean of {duration(knobs.stable_window_ms)}."
    )
    yield (
        f"Panic when {duration(knobs.panic_window_ms)} ask for {knobs.panic_threshold:g} times the ready workers: "
        f"then nothing shrinks for {duration(knobs.stable_window_ms)}."
    )


def _about_saturation(model: ModelKnobs, pool: PoolKnobs) -> Iterator[str]:
    knobs = model.hybrid.saturation if model.planner == "hybrid" else model.saturation
    taken = {"prefill": "while it computes", "decode": f"at KV usage {knobs.kv_cache_threshold:g}"}
    both = f"at KV usage {knobs.kv_cache_threshold:g} or {knobs.queue_length_threshold:g} waiting requests"
    if knobs.profile == "upstream":
        yield (
            f"One more or one less every {duration(knobs.optimization_interval_ms)}, by what is spare below KV usage "
            f"{knobs.kv_cache_threshold:g} and {knobs.queue_length_threshold:g} waiting requests."
        )
        return
    yield (
        f"A worker is full {taken.get(pool.role, both)}. As many more as are needed once "
        f"{knobs.scale_up_threshold:.0%} of all are full; as many fewer as leave "
        f"{knobs.scale_down_boundary:.0%} of the others full, by the peak of {duration(knobs.scale_down_window_ms)}."
    )


def _about_throughput(model: ModelKnobs, pool: PoolKnobs) -> Iterator[str]:
    _, knobs = model.by_traffic
    objective = {"prefill": f"TTFT {model.objectives.ttft_ms:g} ms", "decode": f"ITL {model.objectives.itl_ms:g} ms"}
    both = f"{objective['prefill']} and {objective['decode']}"
    yield (
        f"At least every {duration(knobs.throughput_adjustment_interval_ms)} as many workers as the forecast of the "
        f"{knobs.forecast.predictor} predictor needs for {objective.get(pool.role, both)}; a surge over "
        f"{duration(knobs.surge_window_ms)} is answered at once."
    )


def _about_queueing(model: ModelKnobs, pool: PoolKnobs) -> Iterator[str]:
    knobs = model.hybrid.queueing if model.planner == "hybrid" else model.queueing
    yield from _about_throughput(model, pool)
    yield (
        "Of the pools of a role those that serve the requests for the least cost; what waits too long is to be served "
        f"within {duration(knobs.drain_ms)}."
    )


def _about_load(model: ModelKnobs, _pool: PoolKnobs) -> Iterator[str]:
    knobs = model.sla.load if model.planner == "sla" else model.load
    yield (
        f"As many more as the loads need, at most its double, where every worker has more than meets the objective; "
        f"one less where all others could take its load; at most one change every "
        f"{duration(knobs.load_adjustment_interval_ms)}."
    )


def _about_sla(model: ModelKnobs, pool: PoolKnobs) -> Iterator[str]:
    yield from _about_throughput(model, pool)
    yield from _about_load(model, pool)


def _about_hybrid(model: ModelKnobs, pool: PoolKnobs) -> Iterator[str]:
    yield from _about_queueing(model, pool)
    yield from _about_saturation(model, pool)
    yield "The first of these leads; the second grows where that would stay, and forbids a shrink that is not safe."


def _about_nothing(_model: ModelKnobs, _pool: PoolKnobs) -> Iterator[str]:
    yield from ()


_ABOUT_PLANNER: Final[dict[str, Callable[[ModelKnobs, PoolKnobs], Iterator[str]]]] = {
    "saturation": _about_saturation,
    "threshold": _about_thresholds,
    "static": _about_static,
    "hpa": _about_hpa,
    "kpa": _about_kpa,
    "throughput": _about_throughput,
    "queueing": _about_queueing,
    "load": _about_load,
    "sla": _about_sla,
    "hybrid": _about_hybrid,
}
