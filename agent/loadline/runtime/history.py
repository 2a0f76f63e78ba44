"""Observers of turns that follow decisions, plans and migrations to their ends. They change nothing."""

from collections.abc import Iterable, Sequence
from typing import Final

from loadline.core.decisions.ledger import OPEN
from loadline.core.state.agent_state import AgentState
from loadline.core.vocabulary import events as ev
from loadline.core.vocabulary.effects import AnnounceDecision, AnyEffect, CommitDecision, SendMigrate
from loadline.core.vocabulary.history import (
    AnyRecord,
    DecisionOutcome,
    DecisionRecord,
    MigrationRecord,
    PlanRecord,
)
from loadline.core.vocabulary.reasons import Explanation

_OUTCOMES: Final[dict[str, DecisionOutcome]] = {"applied": "applied", "refused": "refused", "expired": "expired"}


class DecisionHistory:
    """Decisions of this agent that have not ended."""

    def __init__(self) -> None:
        self.open: dict[str, DecisionRecord] = {}
        self._reports: dict[str, tuple[str, int]] = {}

    def observe(
        self, state: AgentState, events: Sequence[ev.AnyEvent], effects: Sequence[AnyEffect], now: int
    ) -> list[DecisionRecord]:
        """Record a turn that was handled at ``now`` (ms); return the decisions that it ended."""
        reports = self._reports
        for event in events:
            if event.__class__ is ev.LoadReported:
                reports[event.model] = event.worker, now
            elif isinstance(event, ev.TrafficReported):
                reports[event.model] = event.frontend, now
            else:
                self._record(event, now)
        for name in reports.keys() - state.fleet.models.keys():
            del reports[name]  # a client can invent any number of models
        ended = [record for record in self.open.values() if self._ends(record, state, now)]
        for record in ended:
            del self.open[record.decision.decision_id]
        for effect in effects:
            if isinstance(effect, CommitDecision):
                decision = effect.decision
                reporter, reported_at_ms = reports.get(decision.model, ("", 0))
                explanation = _explanation(state, decision.decision_id)
                self.open[decision.decision_id] = DecisionRecord(decision, explanation, reporter, reported_at_ms)
            elif isinstance(effect, AnnounceDecision):
                announced = self.open.get(effect.decision.decision_id)
                if announced is not None and not announced.announced_at_ms:
                    announced.announced_at_ms = now
        return ended

    def _record(self, event: ev.AnyEvent, now: int) -> None:
        """Record the result of a commit, or a scaler's answer."""
        if not isinstance(event, ev.DecisionCommitted | ev.CommitRefused | ev.CommitUnknown | ev.DecisionAnswered):
            return
        record = self.open.get(event.decision_id)
        if record is None:
            return
        if isinstance(event, ev.DecisionCommitted):
            record.committed_at_ms = now
            return
        record.detail = event.detail
        if isinstance(event, ev.DecisionAnswered):
            record.scaler = event.scaler
            if event.status != "refused" and not record.accepted_at_ms:
                record.accepted_at_ms = now

    def _ends(self, record: DecisionRecord, state: AgentState, now: int) -> bool:
        """Return True if a decision has ended, and record how."""
        decision = record.decision
        entry = state.ledger.entries.get(decision.model)
        if entry is not None:
            if entry.pending is not None and entry.pending.decision_id == decision.decision_id:
                return False
            if entry.decision is not None and entry.decision.decision_id == decision.decision_id:
                if entry.state in OPEN:
                    return False
                record.outcome = _OUTCOMES[entry.state]
                record.ended_at_ms = now
                return True
        record.outcome = "superseded" if record.committed_at_ms else "not_committed"
        record.ended_at_ms = now
        return True


class PlanHistory:
    """The present hold or advice of each model."""

    def __init__(self) -> None:
        self.open: dict[str, PlanRecord] = {}
        self._seen: dict[str, Explanation] = {}

    def observe(self, state: AgentState, effects: Sequence[AnyEffect], now: int) -> list[PlanRecord]:
        """Record the plans of a turn; return the holds and advices that it ended, oldest first."""
        ended = [self._end(effect.decision.model, now) for effect in effects if isinstance(effect, CommitDecision)]
        models = state.fleet.models
        ended += [self._end(name, now) for name in list(self.open) if name not in models]
        for name, model in models.items():
            hold = model.hold
            if hold is None or hold is self._seen.get(name):
                continue
            self._seen[name] = hold
            known = self.open.get(name)
            if known is not None and _key(known.explanation) == _key(hold):
                known.plans += 1
                continue
            ended.append(self._end(name, hold.at_ms))
            self.open[name] = PlanRecord(hold)
        return [record for record in ended if record is not None]

    def _end(self, model: str, now: int) -> PlanRecord | None:
        record = self.open.pop(model, None)
        if record is not None:
            record.ended_at_ms = now
        return record


class MigrationHistory:
    """Migrations of this agent that have not ended."""

    def __init__(self) -> None:
        self.open: dict[str, MigrationRecord] = {}

    def observe(
        self, state: AgentState, events: Sequence[ev.AnyEvent], effects: Sequence[AnyEffect], now: int
    ) -> list[MigrationRecord]:
        """Record a turn; return the migrations that it ended."""
        for event in events:
            if isinstance(event, ev.MigrationAnswered | ev.MigrationReported):
                record = self.open.get(event.command_id)
                if record is not None:
                    _record_progress(record, event, now)
        in_flight = state.migration.in_flight.open
        for command_id, record in self.open.items():
            if record.outcome == "open" and command_id not in in_flight:
                record.outcome, record.ended_at_ms = "lost", now
        ended = [record for record in self.open.values() if record.outcome != "open"]
        for record in ended:
            del self.open[record.command.command_id]
        for effect in effects:
            if isinstance(effect, SendMigrate):
                self.open[effect.migration.command_id] = MigrationRecord(effect.migration, now)
        return ended


class TurnHistory:
    """All three histories of one agent."""

    def __init__(self) -> None:
        self._decisions = DecisionHistory()
        self._plans = PlanHistory()
        self._migrations = MigrationHistory()

    def observe(
        self, state: AgentState, events: Sequence[ev.AnyEvent], effects: Sequence[AnyEffect], now: int
    ) -> Iterable[AnyRecord]:
        """Record a turn that was handled at ``now`` (ms); return what it ended."""
        return [
            *self._plans.observe(state, effects, now),
            *self._decisions.observe(state, events, effects, now),
            *self._migrations.observe(state, events, effects, now),
        ]

    def unfinished(self) -> Iterable[AnyRecord]:
        """Return what has not ended."""
        parts = self._decisions.open, self._plans.open, self._migrations.open
        return [record for part in parts for record in part.values()]


def _explanation(state: AgentState, decision_id: str) -> Explanation | None:
    return next(state.explanations.of_decision(decision_id), None)


def _key(hold: Explanation) -> tuple[object, ...]:
    """Return what makes two plans the same: outcome, targets and reasons, without their numbers."""
    reasons = [(reason.pool, reason.code) for one in hold.recommendations for reason in one.reasons]
    return hold.outcome, hold.targets, reasons, [(reason.pool, reason.code) for reason in hold.limits]


def _record_progress(record: MigrationRecord, event: ev.MigrationAnswered | ev.MigrationReported, now: int) -> None:
    """Record the answer of a source, or its report."""
    record.detail = event.detail or record.detail
    record.reason = event.reason or record.reason
    if isinstance(event, ev.MigrationAnswered):
        if event.accepted is False:
            record.outcome, record.ended_at_ms = "refused", now
        elif event.accepted:
            record.requests, record.tokens = event.requests, event.tokens
            record.accepted_at_ms = record.accepted_at_ms or now
        return
    record.requests, record.moved, record.failed = event.requests, event.moved, event.failed
    record.tokens = event.tokens
    record.accepted_at_ms = record.accepted_at_ms or now
    if event.phase in {"done", "aborted"}:
        record.outcome, record.ended_at_ms = ("done" if event.phase == "done" else "aborted"), now
