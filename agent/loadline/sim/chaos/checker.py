"""Checks of the safety invariants at every turn of every agent and every write of the store."""

from collections.abc import Sequence
from functools import partial
from itertools import chain

from loadline.core.vocabulary.decisions import Decision
from loadline.core.vocabulary.effects import (
    AnnounceDecision,
    AnyEffect,
    CommitDecision,
    RaiseAlarm,
    Resign,
    SendDrain,
    SendMigrate,
)
from loadline.core.vocabulary.events import AnyEvent
from loadline.core.vocabulary.reasons import Explanation, ReasonCode
from loadline.ports import StoreChange
from loadline.runtime import journal_records
from loadline.sim.chaos import state_checks, target_checks, traffic_checks
from loadline.sim.chaos.agent_history import AgentHistory
from loadline.sim.chaos.commit_checks import CommitCheck, quorate
from loadline.sim.chaos.committed_decisions import CommittedDecisions
from loadline.sim.chaos.invariants import Findings, ReportViolation
from loadline.sim.chaos.journal import SampledJournal
from loadline.sim.chaos.leader_contact import LeaderContact
from loadline.sim.chaos.migration_checks import EpochCheck, MigrationCheck
from loadline.sim.chaos.night_settings import NIGHT
from loadline.sim.chaos.world import ChaosWorld
from loadline.sim.world.agent import SimulatedAgent, TurnObserver
from loadline.wire.codec import decode_decision
from loadline.wire.keys import Keys

_BACKOFF_ALARMS = frozenset({"commit_refused", "decision_refused", "decision_expired"})
"""Alarms after which the next decision of the model must back off."""


class InvariantChecker(TurnObserver):
    """Checker of the safety invariants; ``liveness`` has the others.

    Args:
        world: World to observe.
    """

    def __init__(self, world: ChaosWorld) -> None:
        self.findings = Findings()
        self.committed = CommittedDecisions(self.report)
        self.counts: dict[str, int] = {}
        """Turns, agent lifetimes and effects by kind."""
        self.samples = 0
        """Journal samples that were replayed."""
        self._world = world
        self._histories: dict[int, AgentHistory] = {}
        self._keys = Keys("default")
        world.observers.append(self)
        world.scaler_bus.askable = LeaderContact(world).number
        world.store.on_write = self._on_write
        world.store.on_loss = self._on_loss
        world.on_journal = self._on_journal
        world.on_violation = self.report
        world.on_migration_phase.append(EpochCheck(self.report).on_phase)
        world.on_migration_phase.append(lambda _worker, phase, _command: self._count(f"migrations {phase}"))

    def history_of(self, agent: SimulatedAgent) -> AgentHistory:
        """Return the history of an agent's current lifetime."""
        known = self._histories.get(id(agent))
        if known is None or known.agent is not agent:
            known = self._histories[id(agent)] = AgentHistory(agent)
            self._count("lives")
        return known

    def report(self, name: str, detail: str) -> None:
        """Record a violation at the current virtual time."""
        self.findings.add(name, self._world.timeline.now_ms, detail)

    # -- turns ---------------------------------------------------------------------------------------------------------

    def before_turn(self, agent: SimulatedAgent, events: Sequence[AnyEvent], now: int) -> None:
        """Record the inputs of a turn."""
        self._count("turns")
        self.history_of(agent).record_events(events, now)

    def after_turn(
        self, agent: SimulatedAgent, events: Sequence[AnyEvent], effects: Sequence[AnyEffect], now: int
    ) -> None:
        """Check the state of an agent after a turn, and the effects of the turn."""
        history = self.history_of(agent)
        report: ReportViolation = partial(self._report_for, agent)
        self._record_proposals(history, now)
        history.record_acceptances()
        for effect in effects:
            self._check_effect(history, effect, now, report)
        history.record_effects(effects)
        state_checks.check_turn(history, now, report)
        target_checks.check_turn(history, now, report)
        traffic_checks.check_traffic(history, report)
        if events and agent.turns.count % 16 == 0:
            state_checks.check_totals(history, now, report)
        for name, detail in self._world.scaler_bus.violations:
            self.report(name, detail)

    def before_effect(self, agent: SimulatedAgent, effect: AnyEffect) -> None:
        """Count an effect by its kind."""
        del agent
        self._count(type(effect).__name__)

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _report_for(self, agent: SimulatedAgent, name: str, detail: str) -> None:
        self.report(name, f"{agent.name}: {detail}")

    def _check_effect(self, history: AgentHistory, effect: AnyEffect, now: int, report: ReportViolation) -> None:
        match effect:
            case CommitDecision(decision=decision):
                CommitCheck(history, decision, now, report).run(self._rivals(history.agent))
                if decision.model == NIGHT:
                    target_checks.check_commit(history, decision, now, report)
            case AnnounceDecision(decision=decision, ttl_ms=ttl_ms):
                history.announced[decision.model] = (decision.decision_id, now)
                if self.committed.by_id.get(decision.decision_id) != decision:
                    report("I15-expiry", f"{decision.decision_id} is not committed")
                if now >= decision.expires_at_ms or not 0 < ttl_ms <= history.settings.decisions.ttl_ms:
                    report("I15-expiry", f"TTL {ttl_ms} ms, {decision.expires_at_ms - now} ms until the expiry")
            case SendDrain():
                history.drain_requested_ms[effect.drain_id + effect.worker] = now
                state_checks.check_drain_command(history, effect, report)
            case SendMigrate():
                self._check_migration(history, effect, now, report)
            case Resign():
                state_checks.check_resignation(history, report)
            case RaiseAlarm(kind=kind, model=model) if kind in _BACKOFF_ALARMS:
                history.backoff_until_ms[model] = now + history.settings.decisions.retry_backoff_ms
            case _:
                pass

    def _check_migration(self, history: AgentHistory, effect: SendMigrate, now: int, report: ReportViolation) -> None:
        migration, state = effect.migration, history.agent.controller.state
        if not state.leading or history.epoch != migration.epoch or now >= history.deadline_ms:
            report("I21-fence", f"epoch {migration.epoch}, {now - history.deadline_ms} ms after the deadline")
        if history.stopping:
            report("I19-quiet", f"a migration from {migration.source.worker}")
        knobs = history.models[migration.model].migration
        MigrationCheck(state, knobs, migration, report).run(history.migrations.others_of(migration, state.fleet, now))
        history.migrations.add(effect, now)

    def _rivals(self, agent: SimulatedAgent) -> list[SimulatedAgent]:
        """Return the other agents that can know whether their epoch is over; none for an agent that cannot itself."""
        known = [one for one in self._world.agents.values() if _term(one) not in self._world.deposed_epochs]
        scope = agent.controller.settings.scope
        rivals = [one for one in known if one is not agent and one.controller.settings.scope == scope]
        return rivals if agent in known else []

    def _record_proposals(self, history: AgentHistory, now: int) -> None:
        """Record the proposals of this turn and the quorum of each pool, from the explanations."""
        state = history.agent.controller.state
        if not (state.leading and history.registry_read and history.acting):
            history.acting_since_ms = now
            history.proposals.clear()
            history.quorate_since_ms.clear()
            return
        fleet = history.settings.fleet
        decided = (one.decode() for one in state.explanations.entries[-len(history.models) :] if one.at_ms == now)
        holds = (model.hold for model in state.fleet.models.values() if model.hold is not None)
        for explanation in chain(decided, holds):
            if explanation.at_ms != now:
                continue
            if not (explanation.limits or any(one.reasons for one in explanation.recommendations)):
                self._report_for(history.agent, "I18-reasons", f"{explanation.outcome} {explanation.model}")
            for pool in state.fleet.models[explanation.model].pools.values():
                key = explanation.model, pool.name
                history.record_quorum(key, quorate(pool, fleet.stale_after_ms, fleet.quorum_ratio, now), now)
                if _was_guarded(explanation):
                    history.record_proposal(
                        key, explanation.recommendations[0].targets.get(pool.name, explanation.current[pool.name]), now
                    )

    # -- the store -----------------------------------------------------------------------------------------------------

    def _on_write(self, changes: list[StoreChange]) -> None:
        """Check committed decisions at the moment of the write."""
        for change in changes:
            if change.entry is None or not change.key.startswith(self._keys.decisions):
                continue
            decision = decode_decision(change.entry.value)
            if isinstance(decision, Decision):
                self.committed.add(decision, self._world.epoch_of(self._world.scopes[decision.model]))

    def _on_loss(self) -> None:
        """Record that the store loses data: its leaders cannot know at once, and another one may count from 1 again."""
        with self.committed.losing_data():
            for agent in self._world.agents.values():
                if agent.controller.leading:
                    self._world.deposed_epochs.add(_term(agent))

    # -- journals ------------------------------------------------------------------------------------------------------

    def _on_journal(self, agent: SimulatedAgent, journal: SampledJournal) -> None:
        journal.on_sample = partial(self._replay, agent)

    def _replay(self, agent: SimulatedAgent, segments: list[tuple[str, list[bytes]]]) -> None:
        """Replay a sample from its beginning, and from the beginning of its last segment."""
        self.samples += 1
        for begin in {0, len(segments) - 1}:
            found = journal_records.replay(segments[begin:])
            if found.difference:
                self._report_for(agent, "I11-replay", found.difference)


def _term(agent: SimulatedAgent) -> tuple[str, int]:
    return agent.controller.settings.scope, agent.controller.state.leadership.epoch


def _was_guarded(explanation: Explanation) -> bool:
    """Return True if the proposal reached the guardrails; one that was held before is not in their window."""
    return not explanation.limits or explanation.limits[0].code not in {ReasonCode.NOT_LEADER, ReasonCode.NOT_SETTLED}
