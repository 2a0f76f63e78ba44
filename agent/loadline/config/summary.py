"""Description of a configuration for ``loadline check``, one sentence a line."""

import json
from collections.abc import Iterator
from typing import Final

from loadline.config.knobs import Config
from loadline.config.layers import sources_of
from loadline.config.migration_summary import describe_migration
from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.fleet.fleet import FleetKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.fleet.schedule_windows import ScheduleKnobs
from loadline.core.planning.allocation.supplies import DEFAULT, UNLIMITED
from loadline.core.planning.encode_pools import describe_encode_pool
from loadline.core.planning.guardrails.knobs import UNPACED, GuardrailKnobs
from loadline.core.planning.planners import PLANNERS
from loadline.core.state.settings import ModelKnobs
from loadline.core.vocabulary.durations import duration

_SECOND_MS: Final = 1_000
_SHARD_TAKEOVER_MS: Final = 2_000
"""Time after the end of a lease within which another agent leads its shard."""


def describe(config: Config) -> str:
    """Describe the configuration, one sentence a line; indent the lines of each model and pool."""
    lines = [*_describe_agent(config)]
    for index, model in enumerate(config.models):
        if not config.agent.only:
            lines += _describe_model(model, config.fleet)
        elif model.migration.enabled:
            lines.append(f"Model {model.name}: another autoscaler sets its worker counts.")
        else:
            lines.append(f"Model {model.name}: not managed, since migration.enabled is not set.")
        lines += [f"  {line}" for line in describe_migration(model)]
        lines += _describe_layers(config, f"models[{index}].")
    return "\n".join(lines)


def _describe_agent(config: Config) -> Iterator[str]:
    agent, http, journal, lead = config.agent, config.http, config.journal, config.leadership
    name = f"Agent {agent.name}" if agent.name else "The agent (named after its host and process ID)"
    shared = config.sharing.shards > 1
    which = ", to the reports of the models that it leads" if shared else ""
    yield f"{name} subscribes to {agent.root}.v1.> on NATS at {', '.join(config.nats.servers)}{which}."
    yield f"It stores its state under /loadline/{agent.namespace}/ in etcd at {', '.join(config.etcd.endpoints)}."
    if shared:
        yield f"It shares the models, in {config.sharing.shards} shards, with the other agents of this namespace."
    takeover_ms = lead.lease_ttl_s * _SECOND_MS + (_SHARD_TAKEOVER_MS if shared else lead.retry_ms)
    yield (
        f"A failed leader is replaced within {duration(takeover_ms)}; "
        f"a leader stops deciding {duration(lead.margin_ms)} before its lease may expire."
    )
    if not agent.only:
        yield from _describe_scaling(config)
    yield f"HTTP: {f'http://{http.host}:{http.port}' if http.port else 'disabled'}."
    yield (
        f"Journal: {journal.directory}, at most {journal.bytes_max / 2**20:g} MiB."
        if journal.directory
        else "Journal: disabled, so this run cannot be replayed."
    )


def _describe_scaling(config: Config) -> Iterator[str]:
    """Describe the scaling settings that apply to all models."""
    yield (
        f"A worker is stale after {duration(config.fleet.stale_after_ms)} without a report; a pool is not scaled down "
        f"while fewer than {config.fleet.quorum_ratio:.0%} of its ready workers report."
    )
    yield (
        f"A decision expires after {duration(config.decisions.ttl_ms)} if no scaler applies it; "
        f"a drain may take up to {duration(config.drain.ttl_ms)}."
    )
    yield from (f"All models together: {line}" for line in _describe_budget(config.fleet))
    yield from _describe_gpu_limits(config)
    yield from _describe_cost(config)


def _describe_gpu_limits(config: Config) -> Iterator[str]:
    """Describe GPU capacity, quotas, and the order of models when GPUs are short."""
    allocation = config.allocation
    capacity = ", ".join(f"{gpus} of type {kind}" for kind, gpus in allocation.capacity.items())
    if capacity:
        yield f"GPU capacity, shared by all models: {capacity}."
    for one in config.namespaces:
        types = {kind: "every other type" if kind == DEFAULT else f"type {kind}" for kind in one.gpu_quota}
        limits = {kind: "unlimited" if gpus == UNLIMITED else str(gpus) for kind, gpus in one.gpu_quota.items()}
        quota = ", ".join(f"{types[kind]} {limits[kind]}" for kind in limits)
        if quota:
            yield f"GPU quota of namespace {one.name}: {quota}."
    if capacity or any(one.gpu_quota for one in config.namespaces):
        yield (
            "When GPUs are short, models are served by priority, 1 first; "
            f"the policy {allocation.policy} shares out the rest."
        )


def _describe_cost(config: Config) -> Iterator[str]:
    """Describe the cost of pools with an accelerator, at their replica bounds."""
    known = {one.name: one for one in config.accelerators}
    low = high = 0.0
    for pool in (pool for model in config.models for pool in model.pools if pool.accelerator):
        accelerator = known[pool.accelerator]
        each = accelerator.units(pool.gpus_per_worker) * accelerator.cost_per_hour
        low, high = low + pool.replicas_min * each, high + pool.replicas_max * each
    if high:
        yield f"Cost per hour of pools with an accelerator: {low:g} at minimum replicas, {high:g} at maximum replicas."


def _describe_layers(config: Config, place: str) -> Iterator[str]:
    """List the values that a model takes from each layer, a line per layer."""
    found: dict[str, list[str]] = {}
    for key, origin in sources_of(config).origins.items():
        if key.startswith(place) and not isinstance(origin.value, dict):  # the keys of a table have their own
            found.setdefault(origin.layer, []).append(f"{key.removeprefix(place)} = {json.dumps(origin.value)}")
    yield from (f"  From {layer}: {', '.join(values)}." for layer, values in found.items())


def _describe_budget(knobs: ModelKnobs | FleetKnobs) -> Iterator[str]:
    low, high = knobs.gpu_budget_min, knobs.gpu_budget_max
    bounds = [f"at least {low}"] if low else []
    bounds += [f"at most {high}"] if high is not None else []
    if bounds:
        yield f"{' and '.join(bounds)} GPUs."


def _describe_model(model: ModelKnobs, fleet: FleetKnobs) -> Iterator[str]:
    does = "recommends only (no_operation is set)" if model.no_operation else "decides"
    kind = PLANNERS[model.planner]
    yield f"Model {model.name}: the {model.planner} planner {does}. {kind.summary}"
    if model.objectives is None and kind.needs.objectives & {"ttft_ms", "itl_ms"}:
        defaults = ObjectiveKnobs()
        limits = f"TTFT {defaults.ttft_ms:g} ms and ITL {defaults.itl_ms:g} ms"
        scales = f"by the defaults, {limits}" if kind.needs.default_objectives else "by load alone, at any latency"
        yield f"  No objectives are set: it scales {scales}."
    if model.load_predictor_warmup_trace:
        end = model.load_predictor_warmup_end
        ended = f"ended at {end} UTC" if end else "ended when the agent starts, whatever the time of day"
        yield f"  Warm start: the first forecasts use {model.load_predictor_warmup_trace} as if it {ended}."
    for pool in model.pools:
        yield f"  {_describe_pool(pool)}"
        yield from (f"    {_describe_schedule(one)}" for one in pool.schedules)
        seen = model.for_planner(fleet)
        sizing = kind.describe(model.knobs, seen, pool) if pool in seen.pools else describe_encode_pool(seen, pool)
        yield from (f"    {line}" for line in sizing)
    if model.scale_to_zero_after_ms:
        yield (
            f"  Scales to zero after {duration(model.scale_to_zero_after_ms)} without requests; "
            "the first request starts one worker of each role."
        )
    yield from (f"  All pools together: {line}" for line in _describe_budget(model))
    guard = model.effective_guardrails
    if guard == UNPACED:
        yield "  No cooldown, stabilisation or step limit applies to its decisions."
        return
    yield (
        f"  A decision adds {_describe_step(guard.step_up_max)} to a pool{_describe_cooldown(guard.cooldown_up_ms)}; "
        f"it removes {_describe_step(guard.step_down_max)}{_describe_cooldown(guard.cooldown_down_ms)}."
        + _describe_shrink_limits(guard)
    )


def _describe_step(workers_max: int) -> str:
    return "any number" if workers_max == UNPACED.step_up_max else f"at most {workers_max}"


def _describe_shrink_limits(guard: GuardrailKnobs) -> str:
    limits = []
    if guard.stabilisation_ms:
        limits.append(f"below the highest recommendation of the last {duration(guard.stabilisation_ms)}")
    if guard.warm_up_ms:
        limits.append(f"before data was complete for {duration(guard.warm_up_ms)}")
    return f" A pool is never scaled down {', nor '.join(limits)}." if limits else ""


def _describe_cooldown(cooldown_ms: int) -> str:
    return f", no sooner than {duration(cooldown_ms)} after its last change" if cooldown_ms else ", without a cooldown"


def _describe_pool(pool: PoolKnobs) -> str:
    fixed = pool.replicas_min == pool.replicas_max
    size = f"always {pool.replicas_min}" if fixed else f"{pool.replicas_min} to {pool.replicas_max}"
    gpus = "1 GPU" if pool.gpus_per_worker == 1 else f"{pool.gpus_per_worker} GPUs"
    return f"Pool {pool.name} ({pool.role}): {size} workers of {gpus}."


def _describe_schedule(one: ScheduleKnobs) -> str:
    early = ", started early enough to be ready by then" if one.ready_at_start else ""
    return f"From {one.start!r} to {one.end!r}, {one.timezone}: at least {one.replicas_min} workers{early}."
