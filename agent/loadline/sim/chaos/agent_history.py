"""Record of one agent's lifetime from its inputs and effects alone, as a reference for checks of its state."""

from collections import deque
from collections.abc import Collection, Sequence
from typing import Any, Final

from msgspec import json

from loadline.core.decisions.drains import FinishedDrain
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary import events as ev
from loadline.core.vocabulary.decisions import Decision
from loadline.core.vocabulary.effects import AnyEffect, Campaign, CommitDecision, ReadDecisions, RenewLease
from loadline.sim.chaos.demand_history import DemandHistory
from loadline.sim.chaos.outstanding_migrations import OutstandingMigrations
from loadline.sim.world.agent import SimulatedAgent

PoolKey = tuple[str, str]
_NEVER: Final = -(2**60)


class AgentHistory:
    """Inputs and effects of one lifetime of an agent. Times are those of the agent's own clock, in ms."""

    def __init__(self, agent: SimulatedAgent) -> None:
        self.agent, self.settings = agent, agent.controller.settings
        self.models: dict[str, ModelKnobs] = {model.name: model for model in self.settings.models}
        self.bus_connected = self.stopping = False
        self.bus_changed_ms = _NEVER
        self.paused: set[str] = set()
        self._pause_revisions: dict[str, int] = {}
        # leadership
        self.epoch = self.lease_id = self.won_revision = self.campaigns = 0
        self.lease_requested_ms = _NEVER
        """Request time of the newest successful grant or renewal of its lease."""
        self.led_epoch = self.deposed_epoch = 0
        """Epoch that it led at the end of the last turn, and epoch that this turn reported to be over; 0: none."""
        self.keep_alive_calls: dict[int, int] = {}
        """Lease -> number of unanswered keep-alive calls."""
        # reads
        self.registry_read = self.decisions_read = self.acting = False
        """``acting``: it has read the decisions in this epoch, even if it must read them again."""
        self.first_read_request = 0
        """First read that it requested in this epoch; 0: none yet."""
        self.store_went_back = False
        """True if the store has lost data since it read the decisions."""
        self.acting_since_ms = _NEVER
        # commits
        self.in_flight: dict[tuple[str, int], Decision] = {}
        """(model, epoch) -> decision whose commit has no answer yet."""
        self.unknown: dict[str, tuple[str, int]] = {}
        """Model -> decision of unknown outcome, and the read that resolves it; 0: not requested yet."""
        self.tried: dict[tuple[str, int], int] = {}
        """(model, epoch) -> highest sequence that it tried to commit."""
        self.backoff_until_ms: dict[str, int] = {}
        # planning
        self.proposals: dict[PoolKey, deque[tuple[int, int]]] = {}
        self.quorate_since_ms: dict[PoolKey, int] = {}
        # decisions and drains
        self.announced: dict[str, tuple[str, int]] = {}
        """Model -> decision, and the time of its newest announcement or of its acceptance."""
        self.answers: list[ev.DecisionAnswered] = []
        """Answers of this turn."""
        # Victims of accepted decisions: model, pool, name and incarnation.
        self.accepted_victims: set[tuple[str, str, str, int]] = set()
        self.ledger_states: dict[str, tuple[str, str]] = {}
        """Model -> decision and its ledger state at the end of the last turn."""
        self.draining: dict[str, tuple[int, int]] = {}
        """Drain -> incarnation and deadline."""
        self.last_finished: FinishedDrain | None = None
        """Newest drain that had finished at the end of the last turn."""
        self.drained_workers: set[tuple[str, str, str]] = set()
        """Workers that reported in this turn that they are drained."""
        self.newest_samples: dict[str, tuple[int, int]] = {}
        """Worker -> incarnation, and sequence of its newest sample, as of the last check of totals."""
        self.totals_checked_ms = _NEVER
        self.drain_requested_ms: dict[str, int] = {}
        self.drain_failures: dict[str, int] = {}
        self.migrations = OutstandingMigrations()
        """Migrations of this epoch."""
        self.demand = DemandHistory(self.settings)

    @property
    def deadline_ms(self) -> int:
        """Time from which it must not commit: the lease's end less the margin."""
        knobs = self.settings.leadership
        return self.lease_requested_ms + knobs.lease_ttl_s * 1_000 - knobs.margin_ms

    # -- inputs --------------------------------------------------------------------------------------------------------

    def record_events(self, events: Sequence[ev.AnyEvent], now: int) -> None:
        """Record the events of a turn."""
        self.answers.clear()
        self.drained_workers.clear()
        self.demand.reporting.clear()
        self.deposed_epoch = 0
        for event in events:
            match event:
                case ev.LoadReported():
                    pass  # the bulk of all events
                case ev.DecisionAnswered():
                    self.answers.append(event)
                case ev.WorkerDrained(model=model, pool=pool, worker=worker):
                    self.drained_workers.add((model, pool, worker))
                case ev.SettingsChanged(settings=settings):
                    self._retain_models({model.name for model in json.decode(settings, type=Settings).models})
                case ev.DrainAnswered():
                    self._record_drain_answer(event)
                case ev.MigrationAnswered() | ev.MigrationReported():
                    self.migrations.record(event)
                case ev.DecisionsRead():
                    self._record_read(event)
                case ev.DecisionCommitted() | ev.CommitRefused() | ev.CommitUnknown():
                    self._record_commit(event)
                case _:
                    self._record_environment(event, now)
                    self._record_leadership(event)

    def _record_environment(self, event: ev.AnyEvent, now: int) -> None:
        match event:
            case ev.TrafficReported():
                self.demand.record(event, now)
            case ev.BusConnectionChanged(connected=connected):
                self.bus_connected, self.bus_changed_ms = connected, now
            case ev.RegistryRead(workers=workers):
                self.registry_read = True
                self.migrations.retain_workers({(one.record.pool, one.record.worker) for one in workers})
            case ev.WorkerDeregistered(pool=pool, worker=worker):
                self.migrations.drop_worker(pool, worker)
            case ev.PausesRead() | ev.PauseChanged():
                self._record_pauses(event)
            case ev.ShutdownRequested():
                self.stopping = True

    def _record_pauses(self, event: ev.PausesRead | ev.PauseChanged) -> None:
        """Record which models are paused: of several changes, the one of the highest revision counts."""
        revisions = self._pause_revisions
        if isinstance(event, ev.PausesRead):
            later = {model for model, known in revisions.items() if known > event.revision and not event.went_back}
            self.paused = (set(event.paused) - later) | (self.paused & later)
            self._pause_revisions = {model: revisions[model] for model in later}
        elif event.revision >= revisions.get(event.model, 0):
            self.paused = self.paused | {event.model} if event.paused else self.paused - {event.model}
            revisions[event.model] = event.revision

    def _record_leadership(self, event: ev.AnyEvent) -> None:
        match event:
            case ev.LeadershipWon(epoch=epoch, lease_id=lease_id, requested_at_ms=requested_ms, revision=revision):
                self.campaigns -= 1
                self.epoch, self.lease_id, self.lease_requested_ms = epoch, lease_id, requested_ms
                self.won_revision = revision
                self.decisions_read, self.acting, self.first_read_request = False, False, 0
                self.migrations.clear()
            case ev.CampaignLost():
                self.campaigns -= 1
            case ev.LeaseRenewed(lease_id=lease_id, requested_at_ms=requested_ms):
                self.keep_alive_calls.pop(lease_id, None)
                if lease_id == self.lease_id:
                    self.lease_requested_ms = max(self.lease_requested_ms, requested_ms)
            case ev.LeaseRenewalFailed(lease_id=lease_id, lost=lost):
                self.keep_alive_calls.pop(lease_id, None)
                if lost and lease_id == self.lease_id:
                    self.deposed_epoch = self.epoch
            case ev.LeaderChanged(lease_id=lease_id, revision=revision):
                if event.store_went_back:
                    self.won_revision, self.store_went_back = min(self.won_revision, revision), True
                if lease_id != self.lease_id and revision >= self.won_revision:
                    self.deposed_epoch = self.epoch

    def _record_read(self, event: ev.DecisionsRead) -> None:
        request, self.store_went_back = event.request, False
        if 0 < self.first_read_request <= request:
            self.decisions_read = self.acting = True
        # A decision that was read has been committed, even if the answer to its own commit is still to come.
        there = {stored.decision.decision_id for stored in event.decisions}
        self.in_flight = {key: one for key, one in self.in_flight.items() if one.decision_id not in there}
        for model, (_, request_id) in list(self.unknown.items()):
            if 0 < request_id <= request:
                del self.unknown[model]

    def _record_commit(self, event: ev.DecisionCommitted | ev.CommitRefused | ev.CommitUnknown) -> None:
        for key, decision in list(self.in_flight.items()):
            if decision.decision_id == event.decision_id:
                del self.in_flight[key]
                is_own = self.led_epoch == decision.epoch
                if is_own and isinstance(event, ev.CommitUnknown):
                    self.unknown[event.model] = (event.decision_id, 0)
                elif is_own and isinstance(event, ev.CommitRefused) and event.fenced:
                    self.decisions_read, self.first_read_request = False, 0  # its view of the store is outdated

    def _record_drain_answer(self, event: ev.DrainAnswered) -> None:
        key = f"{event.model}\0{event.pool}\0{event.worker}"
        if not event.accepted and self.bus_connected and key in self.draining:
            self.drain_failures[key] = self.drain_failures.get(key, 0) + 1

    def record_acceptances(self) -> None:
        """Record the victims of the decisions in force that the answers of this turn accept."""
        for answer in self.answers:
            entry = self.agent.controller.state.ledger.entries.get(answer.model)
            decision = entry.decision if entry is not None else None
            numbers = answer.decision_id, answer.epoch, answer.sequence
            if decision is None or numbers != (decision.decision_id, decision.epoch, decision.sequence):
                continue
            if answer.status != "refused":
                self.accepted_victims.update(
                    (answer.model, target.pool, victim.worker, victim.incarnation)
                    for target in decision.targets
                    for victim in target.victims
                )

    # -- effects -------------------------------------------------------------------------------------------------------

    def record_effects(self, effects: Sequence[AnyEffect]) -> None:
        """Record the requests that the effects of a turn start."""
        for effect in effects:
            match effect:
                case Campaign():
                    self.campaigns += 1
                case RenewLease(lease_id=lease_id):
                    self.keep_alive_calls[lease_id] = self.keep_alive_calls.get(lease_id, 0) + 1
                case ReadDecisions(request=request):
                    self.first_read_request = self.first_read_request or request
                    self.unknown = {
                        model: (decision, read or request) for model, (decision, read) in self.unknown.items()
                    }
                case CommitDecision(decision=decision):
                    key = decision.model, decision.epoch
                    self.in_flight[key] = decision
                    self.tried[key] = max(decision.sequence, self.tried.get(key, 0))

    def record_quorum(self, pool: PoolKey, quorate: bool, now: int) -> None:  # noqa: FBT001 - a fact
        """Record since when a pool has a quorum of fresh workers."""
        if not quorate:
            self.quorate_since_ms.pop(pool, None)
        else:
            self.quorate_since_ms.setdefault(pool, now)

    def _retain_models(self, models: Collection[str]) -> None:
        """Forget all models but these: a model that returns to the settings starts without a history."""
        self.demand.retain_models(models)
        by_pool: tuple[dict[PoolKey, Any], ...] = (self.proposals, self.quorate_since_ms)
        for remembered in by_pool:
            for pool in [pool for pool in remembered if pool[0] not in models]:
                del remembered[pool]

    def record_proposal(self, pool: PoolKey, count: int, now: int) -> None:
        """Record the count proposed for a pool."""
        proposals = self.proposals.setdefault(pool, deque())
        if not proposals or proposals[-1][1] != count:
            proposals.append((now, count))
        oldest = now - self.models[pool[0]].effective_guardrails.stabilisation_ms
        while len(proposals) > 1 and proposals[1][0] <= oldest:
            proposals.popleft()

    def highest_proposal(self, pool: PoolKey) -> int:
        """Return the highest proposal of the stabilisation window, the newest included."""
        return max((count for _, count in self.proposals.get(pool, ())), default=0)
