"""A worker's process in virtual time: a simulated engine with the protocol of ``client.worker``.

The worker registers under a lease, reports its load, drains on command and exits when it is empty.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from loadline.client.handover.held_requests import HeldRequests
from loadline.client.incarnation import DRAINED_INTERVAL_MS, DRAINED_REPEATS_MAX, WorkerIncarnation
from loadline.client.leased_key import LeasedKey, LeaseStep
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.core.vocabulary.scalars import Role, WorkerPhase
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
_LEAVE_MS: Final = 3_000.0
"""Time in which a client that ends revokes its lease."""


class SimulatedWorkerKnobs(Struct, frozen=True):
    """Timing and handovers of a worker's process."""

    start_delay_ms: float = 0.0
    """Time from the start of the process until its engine can serve."""
    report_interval_ms: float = 1_000.0
    registration_delay_ms: float = 0.0
    """Time from the start of the process until it registers, at most ``start_delay_ms``."""
    lease_ttl_s: int = 10
    drained_linger_ms: float = 1_000.0
    """Time from the first drained report to the exit of the process."""
    handovers: HandoverKnobs = NO_HANDOVERS


class SimulatedWorker:
    """One incarnation of a worker.

    Args:
        timeline: Virtual time.
        record: Its record; registered as ``starting`` first.
        engine: Its engine.
        bus: Its connection to the bus.
        store: Its connection to the store.
        knobs: Its timing and handovers.
        on_event: Called with every event of a request.
        on_change: Called when it becomes ready, starts to drain or ends, so that routing can change.
        peers: Its connection to other workers and to the frontend.
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
    ) -> None:
        self.record = replace(record, state="starting")
        self.engine = engine
        self.bus, self.store, self.peers = bus, store, peers
        self.started_ms = timeline.now_ms
        self.alive = True
        """True while the process runs."""
        self.ended_ms: float | None = None
        self.draining = False
        """True if it drains: it accepts no new request."""
        self.drained = False
        """True if it is empty after a drain and reports so."""
        self.silent_until_ms = 0.0
        """Virtual time before which it sends no load report."""
        self.never_drains = False
        """True if its drains never finish."""
        self._leaving = False
        self._timeline = timeline
        self._knobs = knobs
        self._on_event = on_event
        self._on_change = on_change
        self._subjects, self._keys = Subjects("loadline"), Keys("default")
        self._answered_pools: set[str] = set()
        self._load_subject = self._subjects.load(*record.names)
        self._drained_subject = self._subjects.drained(*record.names)
        self._incarnation = WorkerIncarnation(record)
        self.held_requests = HeldRequests()
        self.migration = SimulatedMigration(timeline, self, knobs.handovers, self._publish_migration)
        key = self._keys.worker(*record.names)
        self._leased = LeasedKey(store, key, encode(self.record), knobs.lease_ttl_s, self._incarnation.is_later)
        self._next_event_ms: float | None = None
        self._registration_changed: VirtualFuture[None] = VirtualFuture()
        self._tasks: list[VirtualTask] = []
        self._answer_commands()
        if knobs.registration_delay_ms:
            timeline.call_later(knobs.registration_delay_ms, self._start_registration)
        else:
            self._start_registration()
        timeline.call_later(knobs.start_delay_ms, self.become_ready)
        self._schedule_report()

    @property
    def held(self) -> list[str]:
        """Ids of the requests that the worker owns, or has claimed without an answer yet."""
        return [*self.engine.held, *(name for name, _ in self.held_requests.unresolved())]

    @property
    def serving(self) -> bool:
        """True if it accepts requests: alive, ready, and neither draining nor leaving."""
        return self.alive and self.record.state == "ready" and not (self.draining or self._leaving)

    def submit(self, request: Request) -> bool:
        """Submit a request; return whether it runs under this hop. Repeated submissions have no effect."""
        name, hop = request.request_id, request.hop
        if self.held_requests.hop(name) == hop:
            return True
        if not self.held_requests.assign(name, hop):
            return False
        self.run(request)
        return True

    def move(self, pool: str, role: Role) -> None:
        """Serve in another pool, in its role, unless it drains or has ended."""
        if not self.serving:
            return
        home = self.record.home
        self.record = replace(self.record, pool=pool, role=role, home_pool="" if pool == home else home)
        self._incarnation.record = self.record
        self.migration.migrator.move(self.record)
        self._load_subject = self._subjects.load(*self.record.names)
        if pool not in self._answered_pools:
            self._answer_commands()
        self._leased.move(self._keys.worker(*self.record.names), encode(self.record))
        self._registration_changed.set_result(None)
        self._report()
        self._on_change(self)

    def _answer_commands(self) -> None:
        """Answer commands under the names of the record; those to a former pool are left to other workers."""
        self._answered_pools.add(self.record.pool)
        self._drain_subject = self._subjects.drain(*self.record.names)
        self._migrate_subject = self._subjects.migrate(*self.record.names)
        self._tasks.append(VirtualTask(self.bus.answer(self._drain_subject, self._answer_drain)))
        self._tasks.append(VirtualTask(self.bus.answer(self._migrate_subject, self._answer_migrate)))

    def run(self, request: Request) -> None:
        """Run a request that it holds, and abort its execution under an earlier hop."""
        now_ms = self._timeline.now_ms
        self.engine.abort(request.request_id, now_ms)
        self.engine.submit(request, now_ms)
        self.advance()

    def advance(self) -> None:
        """Process the engine's events until now and schedule the end of its next step."""
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
        if event.kind == "detached" and self.migration.on_extracted(event):
            return
        self._on_event(self, event)
        if event.kind != "preempted" and (event.kind != "first_token" or self.record.role == "prefill"):
            self.held_requests.end(event.request_id)

    def kill(self) -> list[str]:
        """Kill the process at once and return the ids of the requests in its engine. Its lease expires later."""
        if not self.alive:
            return []
        self.alive, self.ended_ms = False, self._timeline.now_ms
        for task in self._tasks:
            task.kill()
        lost = list(self.engine.held)
        self.migration.end()
        for port in (self.bus, self.store, self.peers):
            VirtualTask(port.close())
        self._on_change(self)
        return lost

    def leave(self) -> None:
        """Exit without a drain: stop to report, revoke the lease, and end."""
        self._leaving, self.silent_until_ms = True, math.inf
        self._withdraw()
        self._on_change(self)
        self._timeline.call_later(_LEAVE_MS, self.kill)

    def _on_engine_due(self, at_ms: float) -> None:
        if at_ms == self._next_event_ms and self.alive:
            self._next_event_ms = None
            self.advance()

    # -- readiness and load reports ------------------------------------------------------------------------------------

    def become_ready(self) -> None:
        """Register as ready and report, unless it drains or has ended."""
        if self.alive and not self.draining:
            self._register("ready")
            self._report()
            self._on_change(self)

    def _schedule_report(self) -> None:
        """Schedule the next report at a multiple of the interval, so that one turn takes the reports of all workers."""
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
        report = self._incarnation.report(
            [self.migration.with_slots(self.engine.load())], START_MS + int(self._timeline.now_ms)
        )
        self._publish(self._load_subject, report)

    def _publish(self, subject: str, message: Struct) -> None:
        try:
            self.bus.publish_now(subject, encode(message))
        except BusUnavailable:
            return  # a report that cannot be published now is dropped

    # -- migration -----------------------------------------------------------------------------------------------------

    async def _answer_migrate(self, payload: bytes) -> bytes | None:
        command = decode_as(MigrateCommand, payload, self._migrate_subject)
        if self.alive:
            self.advance()
        if isinstance(command, Rejected) or not self.alive:
            return None
        reply = self.migration.answer(command)
        return None if reply is None else encode(reply)

    def _publish_migration(self, report: MigrationReport) -> None:
        self._publish(self._subjects.migration(*self.record.names), report)

    # -- draining ------------------------------------------------------------------------------------------------------

    async def _answer_drain(self, payload: bytes) -> bytes | None:
        command = decode_as(DrainCommand, payload, self._drain_subject)
        if isinstance(command, Rejected) or not self.alive:
            return None
        reply = self._incarnation.answer(command, drained=self.drained)
        if reply is None:
            return None
        if reply.accepted:
            # After the reply, as in a real worker, so that the drained report never precedes it.
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
            self._report()  # a drain has more outgoing slots

    def _finish_drain(self) -> None:
        self.drained = True
        self._withdraw()
        self._publish_drained(0)
        self._timeline.call_later(self._knobs.drained_linger_ms, self.kill)

    def _publish_drained(self, repeats: int) -> None:
        if self.alive and repeats < DRAINED_REPEATS_MAX:
            self._publish(self._drained_subject, self._incarnation.drain_report())
            self._timeline.call_later(DRAINED_INTERVAL_MS, partial(self._publish_drained, repeats + 1))

    # -- the registry --------------------------------------------------------------------------------------------------

    def _register(self, state: WorkerPhase) -> None:
        self.record = replace(self.record, state=state)
        self._leased.write(encode(self.record), replace_lost=state != "draining")
        self._registration_changed.set_result(None)

    def _withdraw(self) -> None:
        self._leased.withdraw()
        self._registration_changed.set_result(None)

    def _start_registration(self) -> None:
        if self.alive:
            self._tasks.append(VirtualTask(self._run_registration()))

    async def _run_registration(self) -> None:
        """Renew the lease of the record until it is withdrawn; retry every 500 ms while the store is unavailable."""
        while not self._leased.gone:
            self._registration_changed = VirtualFuture()
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
