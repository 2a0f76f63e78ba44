"""The one door of the core: events and a time in, effects out.

A turn is: take the events, see to leadership, plan the models whose picture changed or that are due, keep the ledger
and the drains going. Nothing here reads a clock, waits or raises; the same events at the same times give the same
effects.
"""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from loadline.core import state as states
from loadline.core.decide import Decider
from loadline.core.effects import AnyEffect, Effect, RaiseAlarm, ReadDecisions, WritePause
from loadline.core.events import (
    AnnouncementRequested,
    AnyEvent,
    BusConnectionChanged,
    CampaignLost,
    CommitRefused,
    CommitUnknown,
    DecisionAnswered,
    DecisionCommitted,
    DecisionsRead,
    DecisionsUnread,
    DrainAnswered,
    DrainRequested,
    LeaderChanged,
    LeadershipWon,
    LeaseRenewalFailed,
    LeaseRenewed,
    LoadReported,
    PauseChanged,
    PauseRequested,
    PausesRead,
    RegistryRead,
    ShutdownRequested,
    StoreConnectionChanged,
    TrafficReported,
    WorkerDeregistered,
    WorkerDrained,
    WorkerRegistered,
)
from loadline.core.report import Rejection
from loadline.core.settings import Settings
from loadline.core.targets import Decision, Victim

SEQUENCE_MAX = 2**52
"""Far beyond what is ever reached, and one more still fits into a message."""
Handler = Callable[..., Sequence[Effect] | None]


class Controller:
    """Drives everything that is decided. ``settings`` is all that it is told from outside the events."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.state = states.initial_state(settings)
        self._decider = Decider(settings, self.state, states.initial_planners(settings))
        self._names = tuple(model.name for model in settings.models)
        self._dirty: dict[str, None] = {}
        self._handlers: dict[type[AnyEvent], Handler] = {
            LoadReported: self._load_reported,
            TrafficReported: self._traffic_reported,
            RegistryRead: self._registry_read,
            WorkerRegistered: self._worker_registered,
            WorkerDeregistered: self._worker_deregistered,
            LeadershipWon: self._leadership_won,
            CampaignLost: self._campaign_lost,
            LeaseRenewed: self._lease_renewed,
            LeaseRenewalFailed: self._lease_renewal_failed,
            LeaderChanged: self._leader_changed,
            DecisionsRead: self._decisions_read,
            DecisionsUnread: self._decisions_unread,
            DecisionCommitted: self._decision_committed,
            CommitRefused: self._commit_refused,
            CommitUnknown: self._commit_unknown,
            DecisionAnswered: self._decision_answered,
            DrainAnswered: self._drain_answered,
            WorkerDrained: self._worker_drained,
            DrainRequested: self._drain_requested,
            PauseRequested: self._pause_requested,
            AnnouncementRequested: self._announcement_requested,
            PausesRead: self._pauses_read,
            PauseChanged: self._pause_changed,
            BusConnectionChanged: self._bus_connection_changed,
            StoreConnectionChanged: self._store_connection_changed,
            ShutdownRequested: self._shutdown_requested,
        }

    # -- the door ------------------------------------------------------------------------------------------------------

    def handle(self, events: Sequence[AnyEvent], now: int) -> list[AnyEffect]:
        """Take events that happened up to ``now`` (ms) and give the effects that follow, in order."""
        effects: list[Effect] = []
        for event in events:
            follow = self._handlers[type(event)](event, now)
            if follow:
                effects += follow
        effects += self._keep_leading(now)
        for name in self._models_to_plan(now):
            effects += self._decider.plan(name, now)
        if self.leading:
            effects += self._keep_deciding(now)
        for effect in effects:
            if type(effect) is RaiseAlarm:
                self._count(f"alarm_{effect.kind}")
        return effects  # type: ignore[return-value]  # every Effect is one of AnyEffect

    def next_wake(self) -> int | None:
        """When (ms) to call ``handle`` again even if nothing happens; None: only an event can change anything."""
        wakes = [self.state.leadership.next_wake(), min(self.state.due.values(), default=None)]
        if self.leading:
            wakes += [self.state.ledger.next_wake(), self.state.drains.next_wake()]
            if not self.state.decisions_read and not self.state.reading:
                wakes.append(self.state.read_at_ms)
        return min((wake for wake in wakes if wake is not None), default=None)

    def snapshot(self) -> bytes:
        """Everything that is known, as JSON."""
        return msgspec.json.encode(self.picture()())

    def picture(self) -> Callable[[], dict[str, Any]]:
        """What ``snapshot`` gives, to be finished and encoded later, in any thread."""
        return states.picture(self.state, self._decider.planners)

    def restore(self, snapshot: bytes) -> None:
        """Become the controller that gave this snapshot under the same settings."""
        self.state, planners = states.decode_snapshot(self.settings, snapshot)
        self._decider = Decider(self.settings, self.state, planners)

    @property
    def leading(self) -> bool:
        """Whether this agent decides."""
        return self.state.leadership.phase == "leading"

    # -- what the workers and frontends say ----------------------------------------------------------------------------

    def _load_reported(self, event: LoadReported, now: int) -> None:
        refused, why = self.state.fleet.report(event, now)
        if why is not None:
            self._reject(why, refused)
        if refused < len(event.samples):
            self._dirty[event.model] = None

    def _traffic_reported(self, event: TrafficReported, now: int) -> None:
        model = self.state.fleet.models.get(event.model)
        why = Rejection.UNKNOWN_MODEL if model is None else model.traffic.apply(event, now)
        if why is not None:
            self._reject(why)
        else:
            self._dirty[event.model] = None

    # -- the registry --------------------------------------------------------------------------------------------------

    def _registry_read(self, event: RegistryRead, now: int) -> list[Effect]:
        refused = self.state.fleet.replace(event.workers, now)
        for why in refused:
            self._reject(why)
        self.state.registry_read = True
        if self.leading and self.state.decisions_read:
            self._go_on_draining(now)  # the decisions came first, and their victims were not known yet
        self._dirty.update(dict.fromkeys(self._names))
        if not refused:
            return []
        text = f"{len(refused)} registered workers are not counted: {', '.join(sorted(set(refused)))}"
        return [RaiseAlarm("worker_refused", "", text)]

    def _worker_registered(self, event: WorkerRegistered, now: int) -> list[Effect]:
        record = event.worker.record
        why = self.state.fleet.register(event.worker, now)
        if why is None:
            self._dirty[record.model] = None
            return []
        self._reject(why)
        return [
            RaiseAlarm("worker_refused", record.model, f"{record.worker} of pool {record.pool} is not counted: {why}")
        ]

    def _worker_deregistered(self, event: WorkerDeregistered, now: int) -> None:
        why = self.state.fleet.deregister(event.model, event.pool, event.worker, now)
        if why is None:
            self._dirty[event.model] = None

    # -- leadership ----------------------------------------------------------------------------------------------------

    def _leadership_won(self, event: LeadershipWon, now: int) -> list[Effect]:
        effects = self.state.leadership.won(event, now)
        if self.leading:
            self._count("leaderships_won")
            self._read_again(now)
            if self.state.ledger.rewind(event.epoch):
                text = "etcd has lost data: who saw a later epoch refuses ours; restart the scalers and the workers"
                effects.append(RaiseAlarm("store_went_back", "", text))
        return effects

    def _campaign_lost(self, event: CampaignLost, now: int) -> None:
        self.state.leadership.lost_campaign(event.leader, now)

    def _lease_renewed(self, event: LeaseRenewed, _now: int) -> None:
        self.state.leadership.renewed(event)

    def _lease_renewal_failed(self, event: LeaseRenewalFailed, now: int) -> list[Effect]:
        return self.state.leadership.renewal_failed(event, now)

    def _leader_changed(self, event: LeaderChanged, now: int) -> list[Effect]:
        return self.state.leadership.leader_changed(event, now)

    def _bus_connection_changed(self, event: BusConnectionChanged, now: int) -> None:
        self.state.bus_connected, self.state.bus_since_ms = event.connected, now
        self.state.leadership.bus_changed(event.connected, now)
        self._dirty.update(dict.fromkeys(self._names))

    def _store_connection_changed(self, event: StoreConnectionChanged, _now: int) -> None:
        self.state.store_connected = event.connected

    def _shutdown_requested(self, _event: ShutdownRequested, _now: int) -> None:
        self.state.stopping = True

    def _keep_leading(self, now: int) -> list[Effect]:
        state = self.state
        # A commit under way is waited for: its result would otherwise have to be read back by whoever comes next.
        busy = state.stopping and self.leading and any(entry.pending for entry in state.ledger.entries.values())
        effects = state.leadership.resign(now) if state.stopping and not busy else state.leadership.tick(now)
        if not self.leading:
            if state.led:
                state.acting_since_ms = -1
                state.drains.abandon(state.fleet, now)
                state.ledger.forget_pending()
            state.led = False
            return effects
        state.led = True
        if state.decisions_read or state.reading or now < state.read_at_ms:
            return effects
        state.reading = True
        state.read_request += 1
        effects.append(ReadDecisions(state.read_request))
        return effects

    # -- decisions -----------------------------------------------------------------------------------------------------

    def _decisions_read(self, event: DecisionsRead, now: int) -> list[Effect]:
        state = self.state
        if event.request != state.read_request or not self.leading:
            return []
        state.reading, state.decisions_read = False, True
        known = [stored for stored in event.decisions if stored.decision.model in self._names]
        believed = [stored for stored in known if self._believable(stored.decision)]
        for decision in state.ledger.read(believed, event.revision, now):
            self._adopt(decision, now)
            if not self._within_bounds(decision):
                state.ledger.silence(decision.model)
        self._go_on_draining(now)
        self._dirty.update(dict.fromkeys(self._names))
        refused = {stored.decision.model: stored.revision for stored in known if stored not in believed}
        refused.update((model, at) for model, at in event.unreadable.items() if model in self._names)
        for model, revision in refused.items():
            state.ledger.entry(model).revision = revision  # so that the next decision takes its place
        text = "its key in etcd holds no decision that an agent could have made; the next decision replaces it"
        return [RaiseAlarm("stored_decision_refused", model, text) for model in sorted(refused)]

    def _believable(self, decision: Decision) -> bool:
        """Whether an agent can have written it: none has led in a later term, or counts that far."""
        return decision.epoch <= self.state.leadership.epoch and decision.sequence < SEQUENCE_MAX

    def _within_bounds(self, decision: Decision) -> bool:
        """Whether it may be announced: bounds may be tighter now than when it was made."""
        pools = self.state.fleet.models[decision.model].pools
        return all(t.pool in pools and t.replicas <= pools[t.pool].knobs.replicas_max for t in decision.targets)

    def _decisions_unread(self, event: DecisionsUnread, now: int) -> None:
        if event.request == self.state.read_request:
            self.state.reading = False
            self.state.read_at_ms = now + self.settings.leadership.retry_ms

    def _read_again(self, now: int) -> None:
        """What we believe of the store is out of date: nothing is decided until it was read."""
        # An answer under way, or in this very turn, may be older than what it has to tell: it is not that of the next.
        self.state.read_request += 1
        self.state.decisions_read = self.state.reading = False
        self.state.read_at_ms = now

    def _decision_committed(self, event: DecisionCommitted, now: int) -> None:
        decision = self.state.ledger.committed(event.decision_id, event.model, event.revision, now)
        if decision is not None:
            self._count("decisions_committed")
            self._stand_on_previous(decision, now)
            self._adopt(decision, now)
            if self.leading:
                self._drain_victims(decision, now)

    def _commit_refused(self, event: CommitRefused, now: int) -> list[Effect]:
        if not self.state.ledger.dropped(event.decision_id, event.model, now):
            return []
        self._count("commits_refused")
        if event.fenced:
            self._read_again(now)
        return [RaiseAlarm("commit_refused", event.model, event.detail)]

    def _commit_unknown(self, event: CommitUnknown, now: int) -> list[Effect]:
        if not self.state.ledger.unknown(event.decision_id, event.model):
            return []
        self._count("commits_unknown")
        self._read_again(now)
        return [RaiseAlarm("commit_unknown", event.model, event.detail)]

    def _decision_answered(self, event: DecisionAnswered, now: int) -> list[Effect]:
        if not self.leading:
            return []  # whoever leads knows what stands; here it may never have been read
        why, effects = self.state.ledger.answered(event, now)
        if why is not None:
            self._reject(why)
        elif event.status == "refused" and effects:  # a repeat raises no alarm and changes nothing
            self._reground(event.model, now)
        return effects

    def _adopt(self, decision: Decision, now: int) -> None:
        """A decision stands: its counts are what is desired."""
        pools = self.state.fleet.models[decision.model].pools
        for target in decision.targets:
            pool = pools.get(target.pool)
            if pool is None:
                continue
            pool.set_desired(min(target.replicas, self.state.fleet.knobs.workers_max), now)
        self._dirty[decision.model] = None

    def _stand_on_previous(self, decision: Decision, now: int) -> None:
        """The first decision of a model changes what there was, and is a growth or a shrink of that."""
        pools = self.state.fleet.models[decision.model].pools
        for target in decision.targets:
            pool = pools.get(target.pool)
            if pool is not None and pool.desired is None:
                pool.reground(target.previous, now)

    def _drain_victims(self, decision: Decision, now: int) -> None:
        for target in decision.targets:
            for victim in target.victims:
                self.state.drains.start(
                    self.state.fleet, decision.model, target.pool, victim, decision.decision_id, now
                )

    def _go_on_draining(self, now: int) -> None:
        """Whoever led before, this agent or another, may have left victims half way out."""
        for entry in self.state.ledger.entries.values():
            if entry.decision is not None:
                self._drain_victims(entry.decision, now)

    def _reground(self, model: str, now: int) -> None:
        """A decision came to nothing: what there is, is what is desired, but no less than both counts it lay between.

        Workers that are away for a moment must not turn a refused growth into a shrink.
        """
        decision = self.state.ledger.entries[model].decision
        least = {t.pool: min(t.previous, t.replicas) for t in decision.targets} if decision else {}
        for pool in self.state.fleet.models[model].pools.values():
            # For some seconds a dead worker and the one that replaces it are both there: bounds hold all the same.
            there_are = min(pool.ready + pool.supply(now).starting, pool.knobs.replicas_max)
            pool.reground(max(there_are, least.get(pool.name, 0)), now)
        self.state.due[model] = now  # in the state, not only in this turn: a snapshot may be taken before the next one

    def _keep_deciding(self, now: int) -> list[Effect]:
        state = self.state
        effects: list[Effect] = []
        for model in list(state.ledger.live):
            effects += state.ledger.tick(model, now)
            if model not in state.ledger.live:
                self._reground(model, now)
        hearing_since_ms = state.bus_since_ms if state.bus_connected else None
        return effects + state.drains.tick(state.fleet, state.leadership.epoch, hearing_since_ms, now)

    # -- drains and pauses ---------------------------------------------------------------------------------------------

    def _drain_answered(self, event: DrainAnswered, now: int) -> list[Effect]:
        return self.state.drains.answered(event, self.state.bus_connected, now)

    def _worker_drained(self, event: WorkerDrained, now: int) -> None:
        if not self.leading:
            return
        why = self.state.drains.drained(event, self.state.fleet, now)
        if why is None:
            self._count("workers_drained")
            self._dirty[event.model] = None
        # An unknown drain is a repeat of the report: it says so until its process ends.

    def _drain_requested(self, event: DrainRequested, now: int) -> None:
        if not self.leading:
            return
        pool = self.state.fleet.locate(event.model, event.pool)
        worker = None if isinstance(pool, Rejection) else pool.workers.get(event.worker)
        if worker is None:
            self._reject(Rejection.UNKNOWN_WORKER)
            return
        for known in self.state.fleet.models[event.model].pools.values():
            if known.desired is None:
                known.reground(known.target_now(now), now)  # its place is to be filled, not given up
        victim = Victim(event.worker, worker.record.incarnation)
        self.state.drains.start(self.state.fleet, event.model, event.pool, victim, f"operator-{now}", now, again=True)
        # Decided again with this victim in it: a scaler knows whom to delete, and a new leader whom to drain.
        self.state.renewals[event.model] = None
        self._dirty[event.model] = None

    def _pause_requested(self, event: PauseRequested, _now: int) -> list[Effect]:
        return [WritePause(event.model, event.paused, event.by)] if event.model in self._names else []

    def _announcement_requested(self, event: AnnouncementRequested, now: int) -> None:
        entry = self.state.ledger.entries.get(event.model)
        if not self.leading or not self.state.decisions_read or entry is None or entry.decision is None:
            return
        if not self.state.ledger.repeat(event.model, now):
            self.state.renewals[event.model] = None
            self._dirty[event.model] = None

    def _pauses_read(self, event: PausesRead, _now: int) -> None:
        self.state.paused = dict(sorted(event.paused.items()))
        self._dirty.update(dict.fromkeys(self._names))

    def _pause_changed(self, event: PauseChanged, _now: int) -> None:
        self.state.paused.pop(event.model, None)
        if event.paused:
            self.state.paused[event.model] = event.by
        if event.model in self._names:
            self._dirty[event.model] = None

    def _models_to_plan(self, now: int) -> list[str]:
        for name, at in self.state.due.items():
            if at <= now:
                self._dirty[name] = None
        names = sorted(self._dirty)
        self._dirty.clear()
        return names

    def _reject(self, why: Rejection, count: int = 1) -> None:
        self.state.rejected[why] = self.state.rejected.get(why, 0) + count

    def _count(self, what: str) -> None:
        self.state.count(what)
