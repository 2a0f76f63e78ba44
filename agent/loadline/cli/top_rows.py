"""Rows and lines of ``loadline top``, made of a status."""

from typing import Final

from msgspec import Struct

from loadline.cli.output import printable, timestamp
from loadline.core.vocabulary.status import AgentStatus, ModelStatus, PoolStatus
from loadline.formatting import plural, usage

COLUMNS: Final = (
    ("model, pool", 19),
    ("want", 4),
    ("ready", 5),
    ("start", 5),
    ("drain", 5),
    ("KV", 4),
    ("wait", 5),
    ("run", 5),
    ("TTFT ms", 9),
    ("ITL ms", 7),
)
"""Titles and widths: with a space after each, they fill 78 columns."""

Key = tuple[str, str]
"""Model and pool of a row; the pool is empty for the model itself."""


class TopRow(Struct, frozen=True):
    """Row of a model or a pool."""

    key: Key
    cells: tuple[str, ...]
    is_late: bool = False
    """True if a latency is above its objective."""


def headline(agent: AgentStatus) -> str:
    """Format the agent, its leadership and what is disconnected."""
    links = [name for name, up in (("NATS", agent.bus_connected), ("etcd", agent.store_connected)) if not up]
    role = f"leading, epoch {agent.epoch}" if agent.leading else f"standby, leader {agent.leader or 'none'}"
    role = role if agent.sharing is None else agent.sharing.text
    parts = [f"agent {agent.agent} {agent.version}", role, f"up {agent.uptime_ms / 1000:.0f} s"]
    parts += [f"{name} DISCONNECTED" for name in links]
    if agent.gpus is not None:
        limit = "" if agent.gpus.gpu_budget_max is None else f" of {agent.gpus.gpu_budget_max}"
        parts.append(f"GPUs {agent.gpus.occupied}{limit}")
    parts += ["configuration rejected"] if agent.config_problem else []
    return printable(", ".join(parts))


def fleet_rows(agent: AgentStatus, wanted: str) -> list[TopRow]:
    """Return the rows of the models whose name contains ``wanted``, each followed by those of its pools."""
    found: list[TopRow] = []
    for model in agent.models:
        if wanted.casefold() in model.model.casefold():
            found += [_model_row(model), *(_pool_row(model, pool) for pool in model.pools)]
    return found


def decision_changes(before: AgentStatus | None, after: AgentStatus) -> list[str]:
    """Return a line for each decision that is new or has another state."""
    known = {} if before is None else {one.model: _decision(one) for one in before.models}
    lines: list[str] = []
    for model in after.models:
        found = _decision(model)
        if found is not None and found != known.get(model.model):
            clock = timestamp(after.at_ms)[11:19]
            lines.append(printable(f"{clock} {model.model} {found}"))
    return lines


def alarm_changes(before: AgentStatus | None, after: AgentStatus) -> list[str]:
    """Return a line for each alarm that is new, oldest first."""
    known = set(() if before is None else before.alarms)
    return [
        printable(f"{timestamp(one.at_ms)[11:19]} ALARM {one.kind} {one.model}".rstrip() + f": {one.text}")
        for one in reversed(after.alarms)
        if one not in known
    ]


def _decision(model: ModelStatus) -> str | None:
    decision = model.decision
    if decision is None:
        return None
    targets = ", ".join(f"{pool} {count}" for pool, count in decision.targets.items())
    return f"#{decision.sequence} {decision.state}: {targets} ({', '.join(decision.reasons)})"


def _model_row(model: ModelStatus) -> TopRow:
    traffic, goals = model.traffic, model.objectives
    latencies = ((traffic.ttft_ms, goals.get("ttft_ms")), (traffic.itl_ms, goals.get("itl_ms")))
    flag = " (paused)" if model.paused else " (advises)" if model.no_operation else ""
    kv = [pool.kv_usage for pool in model.pools if pool.kv_usage is not None]
    cells = (
        _cut(model.model, COLUMNS[0][1] - len(flag)) + flag,
        *_counts(model.pools),
        usage(max(kv, default=None)),
        *_requests(model.pools),
        *(_against(found, goal) for found, goal in latencies),
    )
    late = any(found is not None and goal and found > goal for found, goal in latencies)
    return TopRow((model.model, ""), cells, bool(late))


def _pool_row(model: ModelStatus, pool: PoolStatus) -> TopRow:
    cells = (
        "  " + _cut(pool.pool, COLUMNS[0][1] - 2),
        *_counts((pool,)),
        usage(pool.kv_usage),
        *_requests((pool,)),
        "",
        "",
    )
    return TopRow((model.model, pool.pool), cells)


def _counts(pools: tuple[PoolStatus, ...]) -> tuple[str, ...]:
    fields = zip(*((p.desired, p.ready, p.starting + p.pending, p.draining) for p in pools), strict=True)
    return tuple(str(sum(one)) for one in fields)


def _requests(pools: tuple[PoolStatus, ...]) -> tuple[str, str]:
    """Format waiting and running requests; unknown where workers are ready and none reports."""
    if all(pool.silent or not pool.ready for pool in pools) and any(pool.silent for pool in pools):
        return "-", "-"
    return str(sum(pool.waiting_requests for pool in pools)), str(sum(pool.running_requests for pool in pools))


def _against(found: float | None, goal: float | None) -> str:
    """Format a latency and its objective, such as ``210/300``."""
    if found is None:
        return f"-/{goal:g}" if goal else "-"
    return f"{found:.0f}/{goal:g}" if goal else f"{found:.0f}"


def _cut(name: str, width: int) -> str:
    name = printable(name)
    return name if len(name) <= width else f"{name[: width - 1]}…"


def summary(agent: AgentStatus, shown: int) -> str:
    """Format the number of models, and how many of them the filter leaves."""
    total = plural(len(agent.models), "model")
    return total if shown == len(agent.models) else f"{shown} of {total}"
