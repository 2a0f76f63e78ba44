"""Turns: decode the inbox, record it, handle it and start the effects.

The caller of ``turn`` supplies the time and the way to run effects, so that the same turns run on asyncio and the
system's clock, or in virtual time.
"""

from collections.abc import Callable, Coroutine

from loadline.core.controller import Controller
from loadline.core.vocabulary.effects import AnyEffect
from loadline.core.vocabulary.events import (
    AnyEvent,
    DecisionAnswered,
    LoadReported,
    RegistryRead,
    SettingsChanged,
    TrafficReported,
    WorkerDeregistered,
    WorkerRegistered,
)
from loadline.core.vocabulary.rejections import Rejection
from loadline.ports import Bus, DecisionTraces, Fitter, Journal, Store
from loadline.runtime import journal_records
from loadline.runtime.effects import EffectRunner, FollowModels, follow_nothing
from loadline.runtime.history import DecisionHistory
from loadline.runtime.inbox import Inbox, WorkerNames
from loadline.runtime.problem_log import Log
from loadline.wire.codec import Codec, Rejected, WireEvent
from loadline.wire.keys import Keys
from loadline.wire.subjects import Subjects

FRAME_KINDS = ("load", "traffic", "applied", "drained", "migration")
"""Kinds of subjects to which an agent subscribes."""

Spawn = Callable[[AnyEffect, Coroutine[object, object, None]], object]
"""Starts an effect concurrently with the turns."""


class Turns:
    """Turns of one agent.

    Args:
        controller: The core.
        bus: Carries announcements and commands.
        store: Holds decisions.
        fitter: Makes forecasts.
        journal: Records every turn; None: no journal.
        subjects: Subjects of the agent's root.
        keys: Keys of the agent's namespace.
        inbox: Inbox of the next turn.
        spawn: Starts an effect.
        log: Receives the log of effects.
        batch_max: Maximum number of frames in one turn.
        frame_bytes_max: Larger frames are refused.
        version: Version written to the journal.
        on_rejected: Called with every refused frame.
        follow: Subscribes to the reports of models, if agents share them.
        traces: Receives the decisions that have ended; None: no traces.
    """

    def __init__(
        self,
        *,
        controller: Controller,
        bus: Bus,
        store: Store,
        fitter: Fitter,
        journal: Journal | None,
        subjects: Subjects,
        keys: Keys,
        inbox: Inbox,
        spawn: Spawn,
        log: Log,
        batch_max: int,
        frame_bytes_max: int,
        version: str,
        on_rejected: Callable[[Rejected], None],
        follow: FollowModels = follow_nothing,
        traces: DecisionTraces | None = None,
    ) -> None:
        self.controller = controller
        self.inbox = inbox
        self.count = 0
        self.frames = 0
        self._journal = journal
        self._spawn = spawn
        self._batch_max = batch_max
        self._version = version
        self._admitted = 0
        self._on_rejected = on_rejected
        self._codec = Codec(subjects, frame_bytes_max)
        self._effects = EffectRunner(
            agent=controller.settings.agent,
            bus=bus,
            store=store,
            fitter=fitter,
            subjects=subjects,
            keys=keys,
            put=inbox.put,
            log=log,
            follow=follow,
            traced=traces is not None,
        )
        self._traces = traces
        self._decisions = DecisionHistory()

    def turn(self, now: int) -> None:
        """Run one turn at ``now`` (Unix ms)."""
        own, frames = self.inbox.pop_batch(self._batch_max)
        events = own.copy()
        others: list[tuple[str, WireEvent]] = []
        decode = self._codec.decode
        for subject, payload in frames:
            event = decode(subject, payload)
            if event.__class__ is LoadReported:
                events.append(event)
            elif isinstance(event, Rejected):
                self._on_rejected(event)
            else:
                events.append(event)
                others.append((subject, event))
        self.count += 1
        self.frames += len(frames)
        self._record(events, now)
        effects = self.controller.handle(events, now)
        self._update_senders(own, others)
        if effects:
            if self._journal is not None:
                self._journal.append(journal_records.encode(journal_records.EffectsRecord(effects)), at_once=True)
            for effect in effects:
                self._spawn(effect, self._effects.perform(effect))
        if self._traces is not None:
            for record in self._decisions.observe(self.controller.state, events, effects, now):
                self._traces.export(record)

    def _update_senders(self, own: list[AnyEvent], others: list[tuple[str, WireEvent]]) -> None:
        """Tell the inbox which senders the core knows after a turn."""
        for change in own:
            self._update_workers(change)
        if self.controller.state.fleet.admitted != self._admitted:  # no event tells which workers
            self._admitted = self.controller.state.fleet.admitted
            self._list_workers()
        for subject, event in others:
            if self._is_accepted(event):
                self.inbox.accept(subject)

    def _update_workers(self, event: AnyEvent) -> None:
        """Tell the inbox which workers the core has in its fleet after an event: it may have refused one."""
        match event:
            case WorkerRegistered(worker=registered):
                if self._has_worker(registered.record.names):
                    self.inbox.add_worker(registered.record)
            case WorkerDeregistered():
                names = event.model, event.pool, event.worker
                self.inbox.remove_worker(names, draining=self._has_worker(names))
            case RegistryRead() | SettingsChanged():
                self._list_workers()

    def _list_workers(self) -> None:
        pools = self.controller.state.fleet.pools()
        self.inbox.set_workers(worker.record for _, pool in pools for worker in pool.workers.values())

    def _has_worker(self, names: WorkerNames) -> bool:
        model, pool, worker = names
        found = self.controller.state.fleet.find_pool(model, pool)
        return not isinstance(found, Rejection) and worker in found.workers

    def _is_accepted(self, event: WireEvent) -> bool:
        """Return True if an event comes from a frontend that counts, or a scaler of a configured model."""
        model = self.controller.state.fleet.models.get(event.model)
        match event:
            case TrafficReported(frontend=frontend):
                return model is not None and frontend in model.traffic.frontends
            case DecisionAnswered():
                return model is not None
        return False

    def _record(self, events: list[AnyEvent], now: int) -> None:
        journal = self._journal
        if journal is None:
            return
        if journal.wants_snapshot:
            journal.begin(self._segment_start(now))
        journal.append(journal_records.encode(journal_records.TurnRecord(now, events)))

    def _segment_start(self, now: int) -> Callable[[bool], bytes]:
        """Return the encoder of a segment's first record, as of now; the journal calls it later."""
        version, settings, capture = self._version, self.controller.settings, self.controller.capture()
        return lambda continues: journal_records.encode(
            journal_records.SegmentStart(journal_records.FORMAT, version, now, continues, settings, capture())
        )
