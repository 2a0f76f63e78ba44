"""A worker's process in virtual time: an engine, and what ``client.worker`` does around a real one.

It registers under a lease, reports its load, drains when it is told to and leaves when it is empty.
"""

from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from loadline.client.handover.held_requests import HeldRequests
from loadline.client.incarnation import DRAINED_INTERVAL_MS, DRAINED_REPEATS_MAX, WorkerIncarnation
from loadline.client.leased_key import LeasedKey, LeaseStep
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.core.vocabulary.scalars import WorkerPhase
from loadline.errors import BusUnavailable, LoadlineError
from loadline.sim.engine import EngineEvent, Request, SimulatedEngine
from loadline.sim.world.bus import BusConnection
from loadline.sim.world.migration import NO_HANDOVERS, HandoverKnobs, SimulatedMigration
from loadline.sim.world.store import StoreConnection
from loadline.sim.world.tasks import VirtualFuture, VirtualTask
from loadline.sim.world.timeline import START_MS, Timeline
from loadline.wire.codec import Rejected, decode_as, encode
from loadline.wire.keys import Keys
from loadline.wire.messages import DrainCommand, MigrateCommand, MigrationReport
from loadline.wire.subjects import Subjects

_RETRY_MS: Final = 500.0


class SimulatedWorkerKnobs(Struct, frozen=True):
    """How a worker's process behaves, beside its engine."""

    start_delay_ms: float = 0.0
    """From the start of the process until its engine can serve."""
    report_interval_ms: float = 1_000.0
    lease_ttl_s: int = 10
    drained_linger_ms: float = 1_000.0
    """How long it stays after it has said that it is empty."""
    handovers: HandoverKnobs = NO_HANDOVERS


class SimulatedWorker:
    """One life of one worker.

    Args:
        timeline: Virtual time.
        record: What it is; registered as ``starting`` first.
        engine: What does its work.
        bus: Its connection to the bus.
        store: Its connection to the store.
        knobs: How it behaves.
        on_event: Told of everything that happens to a request.
        on_change: Told when it becomes ready, begins to drain or ends; whoever routes looks again.
        peers: Its connection to other workers and to the frontend.
        root: First tokens of all subjects.
        namespace: Namespace of all keys.
    """

    def __init__(
        self,
        timeline: Timeline,
        record: WorkerRecord,
        engine: SimulatedEngine,
        bus: BusConnection,
        store: StoreConnection,
        *,
        peers: BusConnection,
        knobs: SimulatedWorkerKnobs,
        on_event: "Callable[[SimulatedWorker, EngineEvent], None]",
        on_change: "Callable[[SimulatedWorker], None]",
        root: str = "loadline",
        namespace: str = "default",
    ) -> None:
        self.record = replace(record, state="starting")
        self.engine = engine
        self.bus, self.store, self.peers = bus, store, peers
        self.started_ms = timeline.now_ms
        self.ended_ms: float | None = None
        self.draining = False
        """Told to empty itself: it takes no new request."""
        self.drained = False
        """Empty, and says so."""
        self.silent_until_ms = 0.0
        """It sends no load report before this time."""
        self.never_drains = False
        """It never becomes empty, whatever it is told."""
        self._timeline = timeline
        self._knobs = knobs
        self._on_event = on_event
        self._on_change = on_change
        subjects = Subjects(root)
        self._load_subject = subjects.load(record.model, record.pool, record.worker)
        self._drain_subject = subjects.drain(record.worker)
        self._drained_subject = subjects.drained(record.worker)
        self._migrate_subject = subjects.migrate(record.worker)
        self._migration_subject = subjects.migration(record.worker)
        self._life = WorkerIncarnation(record)
        self.held_requests = HeldRequests()
        self.migration = SimulatedMigration(timeline, self, knobs.handovers, self._publish_migration)
        key = Keys(namespace).worker(record.model, record.pool, record.worker)
        self._leased = LeasedKey(store, key, encode(self.record), knobs.lease_ttl_s, self._life.is_later)
        self._next_event_ms: float | None = None
        self._registration_changed = VirtualFuture[None]()
        self._tasks = [
            VirtualTask(self.bus.answer(self._drain_subject, self._answer_drain)),
            VirtualTask(self.bus.answer(self._migrate_subject, self._answer_migrate)),
            VirtualTask(self._keep_registered()),
        ]
        timeline.call_later(knobs.start_delay_ms, self._become_ready)
        self._schedule_report()

    @property
    def alive(self) -> bool:
        """Whether the process is there."""
        return self.ended_ms is None

    @property
    def held(self) -> list[str]:
        """Ids of all requests that are its own, or may be."""
        return [*self.engine.held, *(name for name, _ in self.held_requests.unresolved())]

    @property
    def serving(self) -> bool:
        """Whether it may be given a request."""
        return self.alive and self.record.state == "ready" and not self.draining

    def submit(self, request: Request) -> bool:
        """Give it a request; says whether it runs it under this hop. It does so once, however often it is given it."""
        name, hop = request.request_id, request.hop
        if self.held_requests.hop(name) == hop:
            return True
        if not self.held_requests.assign(name, hop):
            return False
        self.run(request)
        return True

    def run(self, request: Request) -> None:
        """Run a request that it holds, and that under an earlier hop no more."""
        now_ms = self._timeline.now_ms
        self.engine.abort(request.request_id, now_ms)
        self.engine.submit(request, now_ms)
        self.advance()

    def advance(self) -> None:
        """Take what the engine has done until now, and come back when its next step ends."""
        now_ms = self._timeline.now_ms
        for event in self.engine.advance(now_ms):
            self._on_engine_event(event)
        if not self.alive:
            return
        at_ms = self.engine.next_event_ms()
        if at_ms is not None and at_ms != self._next_event_ms:
            self._timeline.call_at(at_ms, partial(self._on_engine_due, at_ms))
        self._next_event_ms = at_ms
        if self.draining and not self.drained and not self.never_drains and not self.held:
            self._finish_drain()

    def _on_engine_event(self, event: EngineEvent) -> None:
        if event.kind == "detached" and self.migration.extracted(event):
            return
        self._on_event(self, event)
        if event.kind != "preempted" and (event.kind != "first_token" or self.record.role == "prefill"):
            self.held_requests.end(event.request_id)

    def kill(self) -> list[str]:
        """The process ends where it stands; gives the requests that it held. Its lease runs out by itself."""
        if not self.alive:
            return []
        self.ended_ms = self._timeline.now_ms
        for task in self._tasks:
            task.kill()
        lost = list(self.engine.held)
        self.migration.end()
        for port in (self.bus, self.store, self.peers):
            VirtualTask(port.close())
        self._on_change(self)
        return lost

    def _on_engine_due(self, at_ms: float) -> None:
        if at_ms == self._next_event_ms and self.alive:
            self._next_event_ms = None
            self.advance()

    # -- what it says of itself ----------------------------------------------------------------------------------------

    def _become_ready(self) -> None:
        if self.alive and not self.draining:
            self._register("ready")
            self._report()
            self._on_change(self)

    def _schedule_report(self) -> None:
        """At the next whole interval: workers that report at the same moment are taken in one turn."""
        interval_ms = self._knobs.report_interval_ms
        self._timeline.call_at((self._timeline.now_ms // interval_ms + 1.0) * interval_ms, self._report_and_reschedule)

    def _report_and_reschedule(self) -> None:
        if self.alive:
            self.advance()
        if self.alive:
            self._report()
            self._schedule_report()

    def _report(self) -> None:
        if self._timeline.now_ms < self.silent_until_ms:
            return
        report = self._life.report(
            [self.migration.with_slots(self.engine.load())], START_MS + int(self._timeline.now_ms)
        )
        self._publish(self._load_subject, report)

    def _publish(self, subject: str, message: Struct) -> None:
        try:
            self.bus.publish_now(subject, encode(message))
        except BusUnavailable:
            return  # what cannot be said now is never said

    # -- moving requests -----------------------------------------------------------------------------------------------

    async def _answer_migrate(self, payload: bytes) -> bytes | None:
        command = decode_as(MigrateCommand, payload, self._migrate_subject)
        if self.alive:
            self.advance()
        if isinstance(command, Rejected) or not self.alive:
            return None
        reply = self.migration.answer(command)
        return None if reply is None else encode(reply)

    def _publish_migration(self, report: MigrationReport) -> None:
        self._publish(self._migration_subject, report)

    # -- draining ------------------------------------------------------------------------------------------------------

    async def _answer_drain(self, payload: bytes) -> bytes | None:
        command = decode_as(DrainCommand, payload, self._drain_subject)
        if isinstance(command, Rejected) or not self.alive:
            return None
        reply = self._life.answer(command, drained=self.drained)
        if reply is None:
            return None
        if reply.accepted:
            # After the reply, as a real worker does it: being empty is told by a report of its own.
            self._timeline.call_later(0.0, self._start_drain)
        return encode(reply)

    def _start_drain(self) -> None:
        if self.draining or not self.alive:
            return
        self.draining = True
        self.migration.migrator.drain()
        self._register("draining")
        if self.record.role == "decode":
            self._withdraw()
        self._on_change(self)
        self.advance()
        if self._knobs.handovers.supported:
            self._report()  # it has more slots now

    def _finish_drain(self) -> None:
        self.drained = True
        self._withdraw()
        self._publish_drained(0)
        self._timeline.call_later(self._knobs.drained_linger_ms, self.kill)

    def _publish_drained(self, repeats: int) -> None:
        if self.alive and repeats < DRAINED_REPEATS_MAX:
            self._publish(self._drained_subject, self._life.drain_report())
            self._timeline.call_later(DRAINED_INTERVAL_MS, partial(self._publish_drained, repeats + 1))

    # -- the registry --------------------------------------------------------------------------------------------------

    def _register(self, state: WorkerPhase) -> None:
        self.record = replace(self.record, state=state)
        self._leased.write(encode(self.record), replace_lost=state != "draining")
        self._registration_changed.set_result(None)

    def _withdraw(self) -> None:
        self._leased.withdraw()
        self._registration_changed.set_result(None)

    async def _keep_registered(self) -> None:
        """Keep the record under a lease until it is withdrawn; the store may be away for any time."""
        while not self._leased.gone:
            self._registration_changed = VirtualFuture[None]()
            wait_ms = self._knobs.lease_ttl_s * 1_000.0 / 3.0
            try:
                step = await self._leased.step(self._timeline.now_ms / 1_000.0)
                if step is LeaseStep.LOST:
                    continue
                if step is LeaseStep.SUPERSEDED and not self.draining:
                    self._timeline.call_later(0.0, self.kill)
            except LoadlineError:
                wait_ms = _RETRY_MS
            self._timeline.call_later(wait_ms, partial(self._registration_changed.set_result, None))
            await self._registration_changed
