"""Watches every turn of every agent and every write of the store, and judges them. Liveness has a file of its own."""

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
from loadline.ports import Change
from loadline.runtime import record
from loadline.sim.chaos import state_checks as beliefs
from loadline.sim.chaos.agent_history import AgentHistory
from loadline.sim.chaos.commit_checks import CommitCheck, Report, quorate
from loadline.sim.chaos.invariants import Findings
from loadline.sim.chaos.journal import SampledJournal
from loadline.sim.chaos.migration_checks import EpochCheck, MigrationCheck
from loadline.sim.chaos.world import ChaosWorld
from loadline.sim.world.agent import SimulatedAgent, TurnObserver
from loadline.wire.codec import decode_decision
from loadline.wire.keys import Keys

_BACK_OFF_AFTER = frozenset({"commit_refused", "decision_refused", "decision_expired"})
"""Alarms that tell of a decision that came to nothing."""


class InvariantChecker(TurnObserver):
    """The invariants of safety.

    Args:
        world: What is watched.
    """

    def __init__(self, world: ChaosWorld) -> None:
        self.findings = Findings()
        self.decisions: dict[str, Decision] = {}
        """All decisions that were ever committed, by id."""
        self.counts: dict[str, int] = {}
        """Turns, lives of agents and effects of each kind."""
        self.samples = 0
        """Parts of journals that were replayed."""
        self._world = world
        self._histories: dict[int, AgentHistory] = {}
        self._highest_numbers: dict[str, tuple[int, int]] = {}
        self._sequences: set[tuple[str, int]] = set()
        self._keys = Keys("default")
        world.observers.append(self)
        world.store.on_write = self._on_write
        world.on_journal = self._on_journal
        world.on_violation = self.report
        world.on_migration_phase.append(EpochCheck(self.report).on_phase)
        world.on_migration_phase.append(lambda _worker, phase, _command: self._count(f"moves {phase}"))

    def history_of(self, agent: SimulatedAgent) -> AgentHistory:
        """What is remembered of a life."""
        known = self._histories.get(id(agent))
        if known is None or known.agent is not agent:
            known = self._histories[id(agent)] = AgentHistory(agent)
            self._count("lives")
        return known

    def report(self, name: str, detail: str) -> None:
        """Something does not hold now."""
        self.findings.add(name, self._world.timeline.now_ms, detail)

    # -- turns ---------------------------------------------------------------------------------------------------------

    def before_turn(self, agent: SimulatedAgent, events: Sequence[AnyEvent], now: int) -> None:
        """Remember what it is told."""
        self._count("turns")
        self.history_of(agent).record_events(events, now)

    def after_turn(
        self, agent: SimulatedAgent, events: Sequence[AnyEvent], effects: Sequence[AnyEffect], now: int
    ) -> None:
        """Judge what it believes and what it does."""
        memory = self.history_of(agent)
        report: Report = partial(self._report_for, agent)
        self._record_proposals(memory, now)
        for effect in effects:
            self._check_effect(memory, effect, now, report)
        memory.record_effects(effects)
        beliefs.check_turn(memory, now, report)
        if events and agent.turns.count % 16 == 0:
            beliefs.check_totals(memory, now, report)
        if self._world.scaler_bus.regression:
            self.report("I2-applied", self._world.scaler_bus.regression)

    def before_effect(self, agent: SimulatedAgent, effect: AnyEffect) -> None:
        """Count it."""
        del agent
        self._count(type(effect).__name__)

    def _count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    def _report_for(self, agent: SimulatedAgent, name: str, detail: str) -> None:
        self.report(name, f"{agent.name}: {detail}")

    def _check_effect(self, memory: AgentHistory, effect: AnyEffect, now: int, report: Report) -> None:
        match effect:
            case CommitDecision(decision=decision):
                CommitCheck(memory, decision, now, report).run(self._rivals(memory.agent))
            case AnnounceDecision(decision=decision, ttl_ms=ttl_ms):
                memory.announced[decision.model] = (decision.decision_id, now)
                if self.decisions.get(decision.decision_id) != decision:
                    report("I15-expiry", f"{decision.decision_id} was never committed")
                if now >= decision.expires_at_ms or not 0 < ttl_ms <= memory.settings.decisions.ttl_ms:
                    report("I15-expiry", f"{ttl_ms} ms left, {decision.expires_at_ms - now} ms by the decision")
            case SendDrain():
                memory.drain_requested_ms[effect.drain_id + effect.worker] = now
            case SendMigrate():
                self._check_migration(memory, effect, now, report)
            case Resign():
                beliefs.check_resignation(memory, report)
            case RaiseAlarm(kind=kind, model=model) if kind in _BACK_OFF_AFTER:
                memory.backoff_until_ms[model] = now + memory.settings.decisions.retry_backoff_ms
            case _:
                pass

    def _check_migration(self, memory: AgentHistory, effect: SendMigrate, now: int, report: Report) -> None:
        move, state = effect.migration, memory.agent.controller.state
        if not state.leading or memory.epoch != move.epoch or now >= memory.deadline_ms:
            report("I21-fence", f"epoch {move.epoch}, {now - memory.deadline_ms} ms after the deadline")
        if memory.stopping:
            report("I19-quiet", f"requests of {move.source.worker} are to move")
        knobs = memory.models[move.model].migration
        MigrationCheck(state, knobs, move, report).run(memory.migrations.others_of(move, state.fleet, now))
        memory.migrations.add(effect, now)

    def _rivals(self, agent: SimulatedAgent) -> list[SimulatedAgent]:
        """The other agents, but for those that cannot know that their term is over; of one that cannot itself, none."""
        known = [one for one in self._world.agents.values() if _epoch(one) not in self._world.deposed_epochs]
        return [one for one in known if one is not agent] if agent in known else []

    def _record_proposals(self, memory: AgentHistory, now: int) -> None:
        """Remember what was proposed in this turn, and whether there was data: as the explanations tell."""
        state = memory.agent.controller.state
        if not (state.leading and memory.registry_read and memory.acting):
            memory.acting_since_ms = now
            memory.proposals.clear()
            memory.quorate_since_ms.clear()
            return
        fleet = memory.settings.fleet
        for told in chain(
            state.explanations[-len(memory.models) :],
            (model.hold for model in state.fleet.models.values() if model.hold is not None),
        ):
            if told.at_ms != now:
                continue
            if not (told.limits or any(opinion.reasons for opinion in told.recommendations)):
                self._report_for(memory.agent, "I18-reasons", f"{told.outcome} {told.model}")
            for pool in state.fleet.models[told.model].pools.values():
                key = told.model, pool.name
                memory.record_quorum(key, quorate(pool, fleet.stale_after_ms, fleet.quorum_ratio, now), now)
                if _was_guarded(told):
                    memory.record_proposal(
                        key, told.recommendations[0].targets.get(pool.name, told.current[pool.name]), now
                    )

    # -- the store -----------------------------------------------------------------------------------------------------

    def _on_write(self, changes: list[Change]) -> None:
        """Judge the truth at the moment at which it becomes true."""
        for change in changes:
            if change.entry is None or not change.key.startswith(self._keys.decisions):
                continue
            decision = decode_decision(change.entry.value)
            if not isinstance(decision, Decision):
                continue
            leader = self._world.store.keys.get(self._keys.leader("all"))
            if leader is None or leader.create_revision != decision.epoch:
                term = leader.create_revision if leader else "nobody's"
                self.report("I2-fence", f"{decision.model}: epoch {decision.epoch} in the term {term}")
            number, highest = (decision.epoch, decision.sequence), self._highest_numbers.get(decision.model, (0, 0))
            if number <= highest or (decision.model, decision.sequence) in self._sequences:
                self.report("I1-order", f"{decision.model}: {number} after {highest}")
            self._highest_numbers[decision.model] = max(number, highest)
            self._sequences.add((decision.model, decision.sequence))
            self.decisions[decision.decision_id] = decision

    # -- journals ------------------------------------------------------------------------------------------------------

    def _on_journal(self, agent: SimulatedAgent, journal: SampledJournal) -> None:
        journal.on_sample = partial(self._replay, agent)

    def _replay(self, agent: SimulatedAgent, segments: list[tuple[str, list[bytes]]]) -> None:
        """From the beginning of the sample, and from the beginning of its last segment."""
        self.samples += 1
        for begin in {0, len(segments) - 1}:
            found = record.replay(segments[begin:])
            if found.difference:
                self._report_for(agent, "I11-replay", found.difference)


def _epoch(agent: SimulatedAgent) -> int:
    return agent.controller.state.leadership.epoch


def _was_guarded(told: Explanation) -> bool:
    """Whether the rails saw the proposal: what comes to nothing before that is no proposal."""
    return not told.limits or told.limits[0].code not in {ReasonCode.NOT_LEADER, ReasonCode.NOT_SETTLED}
