"""Rows of the history: one for each pool of a decision or hold, one for each migration."""

from collections.abc import Iterable, Iterator
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from loadline.core.vocabulary.history import AnyRecord, DecisionRecord, MigrationRecord, PlanRecord
from loadline.core.vocabulary.reasons import Explanation, Reason

Kind = Literal["decision", "advice", "hold", "migration"]


class Row(Struct, frozen=True, kw_only=True):
    """One row; a column that does not apply to its kind is None, or empty."""

    kind: Kind
    model: str
    pool: str = ""
    """Pool; that of the source of a migration."""
    id: str = ""
    """Decision id, or command id of a migration."""
    outcome: str
    """Decision: open, applied, refused, expired, superseded, not_committed; decided, if an agent was asked, which says
    no more. Advice: advised. Hold: held. Migration: open, done, aborted, refused, lost."""
    at_ms: int
    """Time of the decision, of the first plan of a hold, or of the migrate command, in Unix ms."""
    ended_at_ms: int | None = None
    """Time of the end, in Unix ms; None: still open."""
    epoch: int | None = None
    sequence: int | None = None
    planner: str = ""
    previous_replicas: int | None = None
    """Desired workers before."""
    recommended_replicas: int | None = None
    """Workers that the planner recommends; None: it recommends no change."""
    replicas: int | None = None
    """Desired workers after."""
    reasons: list[str] = []
    """Reason codes of the planner, of this pool and of the whole model."""
    limits: list[str] = []
    """Reason codes of the limits that apply; for a hold, the obstacle is first."""
    text: str = ""
    """Reasons and limits as sentences, or what was said about a migration."""
    numbers: dict[str, float] = {}
    """Numbers behind the reasons and limits as ``code.name``, and the inputs of the planner as ``input.name``."""
    plans: int | None = None
    """Number of plans with the same result."""
    reporter: str = ""
    """Worker or frontend whose report came last before the decision."""
    reported_at_ms: int | None = None
    committed_at_ms: int | None = None
    announced_at_ms: int | None = None
    accepted_at_ms: int | None = None
    """Time at which a scaler, or the source of a migration, accepted."""
    scaler: str = ""
    source: str = ""
    """Worker that requests leave."""
    destination: str = ""
    """Worker that takes them."""
    destination_pool: str = ""
    policy: str = ""
    """Policy of the migration, or ``drain``."""
    requests: int | None = None
    """Requests that the source has selected."""
    moved: int | None = None
    """Requests that the destination has taken over."""
    failed: int | None = None
    """Requests that stay at the source."""
    tokens: int | None = None
    """KV tokens of the requests."""


def rows_of(record: AnyRecord) -> Iterator[Row]:
    """Return the rows of a record."""
    if isinstance(record, DecisionRecord):
        return _decision_rows(record)
    if isinstance(record, PlanRecord):
        return _plan_rows(record)
    return iter([_migration_row(record)])


def explanation_rows(explanation: Explanation) -> Iterator[Row]:
    """Return the rows of an explanation whose end is not known: its outcome is that of the plan."""
    pools = list(explanation.targets) or [""]
    return (_explanation_row(explanation, pool, explanation.outcome) for pool in pools)


def _explanation_row(explanation: Explanation, pool: str, outcome: str) -> Row:
    """Return the row of one pool of an explanation."""
    kinds: dict[str, Kind] = {"decided": "decision", "advised": "advice", "held": "hold"}
    planned, said = explanation.recommendations, _of_pool(pool, explanation)
    limits = [reason for reason in explanation.limits if reason.pool in {"", pool}]
    recommended = [one.targets[pool] for one in planned if pool in one.targets]
    inputs = {f"input.{name}": value for one in planned for name, value in one.inputs.items()}
    return Row(
        kind=kinds[explanation.outcome],
        model=explanation.model,
        pool=pool,
        id=explanation.decision_id,
        outcome=outcome,
        at_ms=explanation.at_ms,
        planner=planned[0].planner if planned else "",
        previous_replicas=explanation.current.get(pool),
        recommended_replicas=recommended[0] if recommended else None,
        replicas=explanation.targets.get(pool),
        reasons=[str(reason.code) for reason in said],
        limits=[str(reason.code) for reason in limits],
        text="; ".join(reason.sentence() for reason in [*said, *limits]),
        numbers=_numbers([*said, *limits]) | inputs,
    )


def _of_pool(pool: str, explanation: Explanation) -> list[Reason]:
    return [r for one in explanation.recommendations for r in one.reasons if r.pool in {"", pool}]


def _numbers(reasons: Iterable[Reason]) -> dict[str, float]:
    """Return the numbers of reasons; of a code that occurs twice, those of the first."""
    found: dict[str, float] = {}
    for reason in reasons:
        for name, value in reason.numbers.items():
            found.setdefault(f"{reason.code}.{name}", value)
    return found


def _decision_rows(record: DecisionRecord) -> Iterator[Row]:
    decision, explanation = record.decision, record.explanation
    for target in decision.targets:
        times = {
            "ended_at_ms": record.ended_at_ms,
            "epoch": decision.epoch,
            "sequence": decision.sequence,
            "previous_replicas": target.previous,
            "replicas": target.replicas,
            "reporter": record.reporter,
            "reported_at_ms": record.reported_at_ms or None,
            "committed_at_ms": record.committed_at_ms or None,
            "announced_at_ms": record.announced_at_ms or None,
            "accepted_at_ms": record.accepted_at_ms or None,
            "scaler": record.scaler,
        }
        known = explanation or Explanation(
            decision.model, decision.issued_at_ms, "decided", decision.decision_id, {}, (), (), {}
        )
        row = _explanation_row(known, target.pool, record.outcome)
        text = "; ".join(part for part in (row.text, record.detail) if part)
        yield replace(row, **times, text=text)


def _plan_rows(record: PlanRecord) -> Iterator[Row]:
    for row in explanation_rows(record.explanation):
        yield replace(row, ended_at_ms=record.ended_at_ms, plans=record.plans)


def _migration_row(record: MigrationRecord) -> Row:
    command = record.command
    return Row(
        kind="migration",
        model=command.model,
        pool=command.source.pool,
        id=command.command_id,
        outcome=record.outcome,
        at_ms=record.sent_at_ms,
        ended_at_ms=record.ended_at_ms,
        epoch=command.epoch,
        reasons=[record.reason] if record.reason else [],
        text=record.detail,
        numbers={"command.value": command.value, "command.requests_max": float(command.requests_max)},
        accepted_at_ms=record.accepted_at_ms or None,
        source=command.source.worker,
        destination=command.destination.worker,
        destination_pool=command.destination.pool,
        policy=command.trigger,
        requests=record.requests,
        moved=record.moved,
        failed=record.failed,
        tokens=record.tokens,
    )
