"""The page for browsers without JavaScript: HTML tables of a status."""

from collections.abc import Iterable, Iterator
from html import escape

from loadline.core.vocabulary.status import AgentStatus, ModelStatus, PoolStatus
from loadline.formatting import usage
from loadline.runtime.slices import Steps, map_in_steps

COLUMNS = ("Pool", "Role", "Desired", "Ready", "Starting", "Pending", "Draining", "KV", "Waiting", "Running")
ASK = (
    '<form method="post" action="/"><label>Token <input type="password" name="token" autocomplete="off"></label> '
    "<button>Show the fleet</button></form>"
)
"""Form that asks for the token and shows the tables once."""


def tables(status: AgentStatus | None) -> Steps[str]:
    """Return the tables of all models, one model a step."""
    if status is None:
        return "<p>The agent has just started. Its first status follows within a second.</p>"
    models = yield from map_in_steps(lambda model: "\n".join(_model(model)), status.models)
    role = f"leads, epoch {status.epoch}" if status.leading else f"standby; {status.leader or 'no agent'} leads"
    role = role if status.sharing is None else status.sharing.text
    if status.sharing is not None:
        role += ". The models of other agents are on their pages"
    head = f"<p>Agent {escape(status.agent)} {escape(status.version)}: {escape(role)}.</p>"
    alarms = [f"{one.kind} {one.model}".rstrip() + f": {one.text} {one.action}".rstrip() for one in status.alarms]
    if alarms:
        head += f"\n<h2>Alarms of the last hour</h2>{_list(alarms)}"
    return "\n".join([head, *models])


def _model(model: ModelStatus) -> Iterator[str]:
    flags = [word for word, on in (("paused", model.paused), ("recommends only", model.no_operation)) if on]
    yield f"<h2>{escape(', '.join([model.model, f'{model.planner} planner', *flags]))}</h2>"
    yield f"<table><thead><tr>{''.join(f'<th scope=col>{name}</th>' for name in COLUMNS)}</tr></thead><tbody>"
    yield from (_pool(pool, leads=bool(model.epoch)) for pool in model.pools)
    yield "</tbody></table>"
    facts = [*(f"{one.name}: {one.message}" for one in model.conditions if not one.status), *model.missing, *model.hold]
    if facts:
        yield _list(facts)


def _list(facts: Iterable[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(fact)}</li>' for fact in facts)}</ul>"


def _load(pool: PoolStatus) -> tuple[object, ...]:
    """Return the load of a pool; dashes if its workers are silent."""
    if pool.ready and not pool.fresh:
        return ("-",) * 3
    return usage(pool.kv_usage), pool.waiting_requests, pool.running_requests


def _pool(pool: PoolStatus, *, leads: bool) -> str:
    """Return the row of a pool; a standby does not know what the leader has decided."""
    desired, pending = (pool.desired, pool.pending) if leads else ("-", "-")
    cells = (pool.role, desired, pool.ready, pool.starting, pending, pool.draining, *_load(pool))
    return f"<tr><th scope=row>{escape(pool.pool)}</th>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
