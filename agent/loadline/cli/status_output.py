"""Text output of ``loadline status``."""

from collections.abc import Mapping, Sequence
from typing import Final

from loadline.cli.output import table, timestamp
from loadline.cli.shared_models import merge_agents
from loadline.core.vocabulary.conditions import Condition
from loadline.core.vocabulary.status import (
    AgentStatus,
    GpuBudgetStatus,
    InFlightStatus,
    MigrationStatus,
    ModelStatus,
    PoolStatus,
    RaisedAlarm,
    SupplyStatus,
    TrafficStatus,
)
from loadline.formatting import percent, plural, usage

MIGRATIONS_SHOWN: Final = 8
"""Maximum rows of a list in the text; ``--json`` has all."""
HEADER: Final = (
    "pool",
    "role",
    "desired",
    "ready",
    "starting",
    "pending",
    "draining",
    "reporting",
    "KV",
    "waiting",
    "running",
)

_SCALING_COLUMNS: Final = frozenset({"desired", "pending"})
"""Columns that only the agent that scales knows."""


def format_statuses(agents: Sequence[AgentStatus], *, only_migration: bool = False) -> str:
    """Format the status of an agent, or of all agents that share the models."""
    fleet = merge_agents(agents)
    heads = [line for agent in agents for line in _head(agent)]
    if fleet.sharing is not None and (silent := set(fleet.sharing.agents) - {agent.agent for agent in agents}):
        heads.append(f"no answer from {', '.join(sorted(silent))}")
    digests = {agent.agent: agent.config_digest for agent in agents}
    if fleet.sharing is not None and len(set(digests.values())) > 1:
        names = ", ".join(f"{name} {digest}" for name, digest in digests.items())
        heads.append(f"configurations differ ({names}): each model is led by the file of its leader")
    separator = "\n\n" if fleet.sharing is None else "\n"
    return _format(separator.join(heads), fleet, only_migration=only_migration)


def _head(agent: AgentStatus) -> list[str]:
    """Return lines about the agent itself."""
    standby = f"standby, leader {agent.leader}" if agent.leader else "standby, no leader"
    role = f"leading, epoch {agent.epoch}" if agent.leading else standby
    role = role if agent.sharing is None else agent.sharing.text
    links = [f"NATS {_link(agent.bus_connected)}", f"etcd {_link(agent.store_connected)}"]
    lines = [f"agent {agent.agent} {agent.version}: {role}; {', '.join(links)}; up {agent.uptime_ms / 1000:.0f} s"]
    lines += [f"configuration rejected: {agent.config_problem}"] if agent.config_problem else []
    lines += [f"restart the agent to apply {', '.join(agent.restart_for)}"] if agent.restart_for else []
    return lines


def _format(head: str, fleet: AgentStatus, *, only_migration: bool) -> str:
    lines = [head]
    lines += [format_gpu_budget(fleet.gpus)] if fleet.gpus is not None else []
    lines += ["\n".join(format_supply(one) for one in fleet.supplies)] if fleet.supplies else []
    lines += ["\n".join(["alarms of the last hour, newest first:", *map(_alarm, fleet.alarms)])] if fleet.alarms else []
    return "\n\n".join([*lines, *(format_model(each, only_migration=only_migration) for each in fleet.models)])


def format_gpu_budget(budget: GpuBudgetStatus) -> str:
    """Format the GPUs of all models, and which models wait for some or offer some."""
    high = "unlimited" if budget.gpu_budget_max is None else str(budget.gpu_budget_max)
    text = f"GPUs of all models: {budget.decided} decided, {budget.occupied} occupied"
    text += f", budget {budget.gpu_budget_min} to {high}"
    offered = ", ".join(f"{name} {count}" for name, count in budget.offers.items())
    return text + _waiting(budget.waiting) + (f"; offered: {offered}" if offered else "")


def format_supply(one: SupplyStatus) -> str:
    """Format the GPUs of one type, and which models wait for some."""
    return f"GPUs of {one.supply}: {one.occupied} occupied of {one.limit}" + _waiting(one.waiting)


def format_model(status: ModelStatus, *, only_migration: bool = False) -> str:
    """Format one model: its pools, traffic, last decision, and why none is made."""
    hidden = _SCALING_COLUMNS if only_migration else ()
    rows = [HEADER] + [
        (
            pool.pool,
            pool.role,
            str(pool.desired) if pool.decided else "-",
            *(str(n) for n in (pool.ready, pool.starting, pool.pending, pool.draining, pool.fresh)),
            *pool_load(pool),
        )
        for pool in status.pools
    ]
    owner = [status.namespace, f"priority {status.priority}"]
    owner += [f"class {status.service_class}"] if status.service_class else []
    flags = [word for word, on in (("paused", status.paused), ("recommends only", status.no_operation)) if on]
    does = "migration only" if only_migration else f"{status.planner} planner"
    title = f"{status.model} ({', '.join([does, *owner, *flags])})"
    shown = [[cell for name, cell in zip(HEADER, row, strict=True) if name not in hidden] for row in rows]
    lines = format_details(status, only_migration=only_migration)
    return "\n".join([title, table(shown), *(f"  {line}" for line in lines)])


def pool_load(pool: PoolStatus) -> tuple[str, str, str]:
    """Format KV cache usage, waiting and running requests of a pool; unknown while none of its workers reports."""
    if pool.silent:
        return "-", "-", "-"
    return usage(pool.kv_usage), str(pool.waiting_requests), str(pool.running_requests)


def format_details(status: ModelStatus, *, only_migration: bool = False) -> list[str]:
    """Format objectives, traffic, last decision, migrations, conditions and hold of a model, one fact a line."""
    decision = status.decision
    objectives = [] if only_migration else [f"{key} {value:g}" for key, value in status.objectives.items()]
    types = [f"{pool.pool} {pool.accelerator_type}" for pool in status.pools if pool.accelerator_type]
    lines = [f"objectives: {', '.join(objectives)}"] if objectives else []
    lines += [f"accelerators: {', '.join(types)}"] if types else []
    moved = [f"{pool.pool} {pool.moved:+d}" for pool in status.pools if pool.moved]
    lines += [f"workers that serve in another pool than the one that started them: {', '.join(moved)}"] if moved else []
    lines += [_traffic(status.traffic), *_attainment(status.traffic)]
    if decision is not None:
        targets = ", ".join(f"{pool} {count}" for pool, count in decision.targets.items())
        why = ", ".join(decision.reasons)
        state = "waits for a scaler to accept" if decision.state == "committed" else decision.state
        lines.append(f"decision {decision.decision_id} #{decision.sequence} {state}: {targets} ({why})")
        lines += [f"scaler: {decision.detail}"] if decision.detail else []
    if not only_migration and all(pool.decided and not pool.desired for pool in status.pools):
        lines.append("scaled to zero: the first request that a frontend reports starts workers")
    lines += _migrations(status.migrations) if status.migrations is not None else []
    if status.emptied.count:
        lines.append(
            f"drained: {plural(status.emptied.count, 'worker')}, {status.emptied.mean_ms / 1000:.1f} s on average"
        )
    costs = [pool.cost_per_hour for pool in status.pools if pool.cost_per_hour is not None]
    lines += [f"cost: {sum(costs):g} per hour"] if costs else []
    lines += [_schedule(pool) for pool in status.pools if pool.schedule_replicas_min and not only_migration]
    lines += [_condition(one) for one in status.conditions]
    lines += [f"missing: {sentence}" for sentence in status.missing if not only_migration]
    lines += [f"hold: {sentence}" for sentence in status.hold]
    return lines


def _traffic(traffic: TrafficStatus) -> str:
    if traffic.requests_per_s is None:
        return "traffic: no frontend reports"
    parts = [f"{traffic.requests_per_s:.1f} requests/s"]
    parts += [f"ISL {traffic.isl_tokens:.0f}"] if traffic.isl_tokens is not None else []
    parts += [f"OSL {traffic.osl_tokens:.0f}"] if traffic.osl_tokens is not None else []
    parts += [f"TTFT {traffic.ttft_ms:.0f} ms"] if traffic.ttft_ms is not None else []
    parts += [f"ITL {traffic.itl_ms:.1f} ms"] if traffic.itl_ms is not None else []
    parts += [f"{traffic.queued} queued, {traffic.in_flight} in flight"]
    return "traffic: " + ", ".join(parts)


def _attainment(traffic: TrafficStatus) -> list[str]:
    """Format the fractions of requests within SLO, in a line; none while no request has completed."""
    found = (("TTFT", traffic.ttft_attainment), ("ITL", traffic.itl_attainment), ("both", traffic.both_attainment))
    parts = [f"{percent(share)} of requests within {name}" for name, share in found if share is not None]
    if not parts and traffic.ttft_ms is not None:
        parts = ["unknown, since frontends report neither ttft_met nor itl_met"]
    return [f"attainment: {', '.join(parts)}"] if parts else []


def _waiting(waiting: Mapping[str, int]) -> str:
    text = ", ".join(f"{name} for {count}" for name, count in waiting.items())
    return f"; waiting: {text}" if text else ""


def _schedule(pool: PoolStatus) -> str:
    until = "" if pool.schedule_ends_at_ms is None else f" until {timestamp(pool.schedule_ends_at_ms)}"
    return f"schedule: {pool.pool} at least {pool.schedule_replicas_min}{until}"


def _condition(found: Condition) -> str:
    return f"{found.name}={found.status} since {timestamp(found.since_ms)}: {found.reason}: {found.message}"


def _migrations(status: MigrationStatus) -> list[str]:
    """Format the migrations in flight, the totals by policy and the workers that do not answer."""
    totals = [f"{count} by {policy}" for policy, count in status.requests.items()]
    lines = [f"migrations: {status.in_flight} in flight; requests migrated: {', '.join(totals) or 'none'}"]
    lines += [_in_flight(one) for one in status.in_flight_commands[:MIGRATIONS_SHOWN]]
    if status.silent:
        names = ", ".join(status.silent_workers[:MIGRATIONS_SHOWN])
        subject = "1 worker does" if status.silent == 1 else f"{status.silent} workers do"
        lines.append(f"{subject} not answer migration commands: {names}")
    return lines


def _in_flight(one: InFlightStatus) -> str:
    return (
        f"  {one.source} -> {one.destination} ({one.policy}) {one.phase}: "
        f"{one.moved} of {plural(one.requests, 'request')}, {one.age_ms / 1000:.1f} s"
    )


def _alarm(alarm: RaisedAlarm) -> str:
    about = f" {alarm.model}" if alarm.model else ""
    times = f" ({alarm.count} times)" if alarm.count > 1 else ""
    action = f"\n           {alarm.action}" if alarm.action else ""
    return f"  {timestamp(alarm.at_ms)[11:19]} {alarm.kind}{about}: {alarm.text}{times}{action}"


def _link(connected: bool) -> str:  # noqa: FBT001 - a fact, not a mode
    return "connected" if connected else "DISCONNECTED"
