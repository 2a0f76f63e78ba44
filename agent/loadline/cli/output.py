"""Statuses and explanations as text."""

from collections.abc import Sequence
from datetime import UTC, datetime

from loadline.core.migration.outcomes import PolicyReport, sentence
from loadline.core.vocabulary.reasons import Explanation
from loadline.core.vocabulary.status import (
    AgentStatus,
    Condition,
    GpuBudgetStatus,
    InFlightStatus,
    MigrationStatus,
    ModelStatus,
    PoolStatus,
    SupplyStatus,
)

MOVES_SHOWN = 8
"""In a text; --json has more."""
HEADER = (
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

_OF_SCALING = frozenset({"desired", "pending"})
"""Of the header: counts that only whoever decides them knows."""


def printable(text: str) -> str:
    """Without what a terminal would obey: names and details come from whoever may publish."""
    return "".join(c if c.isprintable() or c == "\n" else f"\\u{ord(c):04x}" for c in text)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; words to the left, numbers to the right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.rjust(w) if cell[:1].isdigit() else cell.ljust(w) for cell, w in zip(row, widths, strict=True))
        for row in rows
    )


def status(agent: AgentStatus, *, only_moves: bool = False) -> str:
    """An agent and its models; ``only_moves``: it leaves it to somebody else how many workers there are."""
    role = f"leads, epoch {agent.epoch}" if agent.leading else f"stands by; {agent.leader or 'nobody'} leads"
    links = [f"NATS {_link(agent.bus_connected)}", f"etcd {_link(agent.store_connected)}"]
    lines = [f"agent {agent.agent} {agent.version}: {role}; {', '.join(links)}; up {agent.uptime_ms / 1000:.0f} s"]
    lines += [f"the configuration is not obeyed: {agent.config_problem}"] if agent.config_problem else []
    lines += [f"restart the agent for {', '.join(agent.restart_for)}"] if agent.restart_for else []
    lines += [gpus(agent.gpus)] if agent.gpus is not None else []
    lines += ["\n".join(supply(one) for one in agent.supplies)] if agent.supplies else []
    return "\n\n".join([*lines, *(model(each, only_moves=only_moves) for each in agent.models)])


def gpus(budget: GpuBudgetStatus) -> str:
    """The GPUs of all models, and who waits for some or would give some."""
    most = "any number" if budget.gpu_budget_max is None else str(budget.gpu_budget_max)
    text = (
        f"GPUs of all models: {budget.decided} decided, {budget.occupied} occupied of {budget.gpu_budget_min} to {most}"
    )
    waiting = ", ".join(f"{name} for {count}" for name, count in budget.waiting.items())
    wishes = ", ".join(f"{name} {count}" for name, count in budget.offers.items())
    return text + (f"; waiting: {waiting}" if waiting else "") + (f"; would give: {wishes}" if wishes else "")


def supply(one: SupplyStatus) -> str:
    """GPUs of one type, and who would have more of them."""
    text = f"GPUs of {one.supply}: {one.occupied} occupied of {one.limit}"
    waiting = ", ".join(f"{name} for {count}" for name, count in one.waiting.items())
    return text + (f"; waiting: {waiting}" if waiting else "")


def model(status: ModelStatus, *, only_moves: bool = False) -> str:
    """One model: pools, traffic, decision, and why nothing is decided."""
    left_out = _OF_SCALING if only_moves else ()
    rows = [HEADER] + [
        (
            pool.pool,
            pool.role,
            *(str(n) for n in (pool.desired, pool.ready, pool.starting, pool.pending, pool.draining, pool.fresh)),
            f"{pool.kv_usage_ratio:.0%}",
            str(pool.waiting_requests),
            str(pool.running_requests),
        )
        for pool in status.pools
    ]
    whose = [status.namespace, f"priority {status.priority}"]
    whose += [f"class {status.service_class}"] if status.service_class else []
    flags = [word for word, on in (("paused", status.paused), ("advises only", status.no_operation)) if on]
    does = "moves requests only" if only_moves else f"{status.planner} planner"
    title = f"{status.model} ({', '.join([does, *whose, *flags])})"
    shown = [[cell for name, cell in zip(HEADER, row, strict=True) if name not in left_out] for row in rows]
    return "\n".join([title, table(shown), *(f"  {line}" for line in summary(status, only_moves=only_moves))])


def summary(status: ModelStatus, *, only_moves: bool = False) -> list[str]:
    """Objectives, accelerators, traffic, last decision, moves and hold, a line each."""
    traffic, decision = status.traffic, status.decision
    aims = [] if only_moves else [f"{key} {value:g}" for key, value in status.objectives.items()]
    types = [f"{pool.pool} {pool.accelerator_type}" for pool in status.pools if pool.accelerator_type]
    lines = [f"objectives: {', '.join(aims)}"] if aims else []
    lines += [f"accelerators: {', '.join(types)}"] if types else []
    if traffic.requests_per_s is None:
        lines.append("traffic: no frontend reports")
    else:
        parts = [f"{traffic.requests_per_s:.1f} requests/s"]
        parts += [f"ISL {traffic.isl_tokens:.0f}"] if traffic.isl_tokens is not None else []
        parts += [f"OSL {traffic.osl_tokens:.0f}"] if traffic.osl_tokens is not None else []
        parts += [f"TTFT {traffic.ttft_ms:.0f} ms"] if traffic.ttft_ms is not None else []
        parts += [f"ITL {traffic.itl_ms:.1f} ms"] if traffic.itl_ms is not None else []
        lines.append("traffic: " + ", ".join(parts))
    if decision is not None:
        targets = ", ".join(f"{pool} {count}" for pool, count in decision.targets.items())
        why = ", ".join(decision.reasons)
        lines.append(f"decision {decision.decision_id} #{decision.sequence} {decision.state}: {targets} ({why})")
    if not only_moves and not any(pool.desired for pool in status.pools):
        lines.append("asleep: the first request that a frontend reports wakes it")
    lines += moves(status.migrations) if status.migrations is not None else []
    if status.emptied.count:
        lines.append(
            f"emptied: {_many(status.emptied.count, 'worker')}, {status.emptied.mean_ms / 1000:.1f} s on average"
        )
    lines += [f"cost: {sum(costs):g} an hour"] if (costs := _costs(status)) else []
    lines += [floor(pool) for pool in status.pools if pool.schedule_replicas_min and not only_moves]
    lines += [condition(one) for one in status.conditions]
    lines += [f"missing: {sentence}" for sentence in status.missing if not only_moves]
    lines += [f"now: {sentence}" for sentence in status.hold]
    return lines


def _costs(status: ModelStatus) -> list[float]:
    return [pool.cost_per_hour for pool in status.pools if pool.cost_per_hour is not None]


def floor(pool: PoolStatus) -> str:
    """What a schedule asks for, and until when."""
    until = "" if pool.schedule_ends_at_ms is None else f" until {_time(pool.schedule_ends_at_ms)}"
    return f"schedule: {pool.pool} at least {pool.schedule_replicas_min}{until}"


def condition(found: Condition) -> str:
    """One condition: a yes or a no, since when, and why."""
    return (
        f"{found.name} {'yes' if found.status else 'NO'} since {_time(found.since_ms)}: {found.reason}: {found.message}"
    )


def explanation(found: Explanation) -> str:
    """How a decision, or a hold, came about."""
    title = f"{found.model}: {found.outcome} at {_moment(found.at_ms)}" + (
        f", decision {found.decision_id}" if found.decision_id else ""
    )
    lines = [title]
    for opinion in found.recommendations:
        lines.append("  seen")
        lines += [f"    {name} = {value:g}" for name, value in sorted(opinion.inputs.items())]
        wish = ", ".join(f"{pool} {count}" for pool, count in opinion.targets.items()) or "no change"
        lines.append(f"  the {opinion.planner} planner proposes {wish}")
        lines += [f"    {reason.sentence()}" for reason in opinion.reasons]
    lines.append("  rails" if found.limits else "  no rail bit")
    lines += [f"    {reason.sentence()}" for reason in found.limits]
    changes = (f"{pool} {found.current[pool]} -> {count}" for pool, count in found.targets.items())
    lines.append(f"  result: {', '.join(changes)}")
    return "\n".join(lines)


def policy_look(found: PolicyReport) -> str:
    """What a policy saw of a group of workers when it last had a reason to look, and what became of each pair."""
    return "\n".join(
        [
            f"{found.model}: {found.policy} of {found.group} at {_moment(found.at_ms)}",
            f"  {sentence(found.code, found.numbers)}",
            f"  {found.sources} could give requests away, {found.destinations} could take some in",
            *(f"    {pair.source} -> {pair.destination}: {sentence(pair.code, pair.numbers)}" for pair in found.pairs),
        ]
    )


def moves(status: MigrationStatus) -> list[str]:
    """Requests that move, those that were moved, and who does not answer, a line each."""
    moved = [f"{count} by {policy}" for policy, count in status.requests.items()]
    lines = [f"moves: {status.in_flight} in flight; requests moved: {', '.join(moved) or 'none'}"]
    lines += [move(one) for one in status.in_flight_commands[:MOVES_SHOWN]]
    if status.silent:
        some = ", ".join(status.silent_workers[:MOVES_SHOWN])
        who = "worker does" if status.silent == 1 else "workers do"
        lines.append(f"{status.silent} {who} not answer when asked to move requests: {some}")
    return lines


def move(one: InFlightStatus) -> str:
    """One move that is in flight."""
    return (
        f"  {one.source} -> {one.destination} ({one.policy}) {one.phase}: "
        f"{one.moved} of {_many(one.requests, 'request')}, {one.age_ms / 1000:.1f} s"
    )


def _many(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds")


def _link(connected: bool) -> str:  # noqa: FBT001 - a fact, not a mode
    return "connected" if connected else "AWAY"
