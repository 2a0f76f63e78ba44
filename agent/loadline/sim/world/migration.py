"""Handovers of a simulated worker: effects of ``client.handover``, executed in virtual time on a simulated engine."""

from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Final, Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from loadline.client.handover.bus import HandoverBus
from loadline.client.handover.effects import (
    AskRoom,
    CancelCopy,
    DiscardRequest,
    Effect,
    EndTransfer,
    ExpireRoom,
    PublishReports,
    ReleaseRoom,
    ReplyHandover,
    RunRequest,
    SendClaim,
    SendHandover,
    StartCopy,
    StopRequest,
    Transfer,
)
from loadline.client.handover.executor import EffectExecutor
from loadline.client.handover.held_requests import HeldRequests
from loadline.client.handover.messages import HandoverReply, HandoverRequest, RoomReply, RoomRequest
from loadline.client.handover.migrator import RequestMigrator
from loadline.client.handover.progress import SLOTS
from loadline.client.handover.source import StoppedRequest
from loadline.core.vocabulary.migrations import MigrationFailure
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.sim.engine import EngineEvent, Request, SimulatedEngine
from loadline.sim.world.bus import BusConnection
from loadline.sim.world.tasks import VirtualFuture, VirtualTask, sleep
from loadline.sim.world.timeline import Timeline
from loadline.wire.messages import MigrateCommand, MigrateReply, MigrationReport

HANDOVER_PREFIX: Final = "sim"
"""First token of the subjects on which requests are handed over."""
_TIMEOUT_S: Final = 2.0
_CLAIM_RETRY_MS: Final = 1_000
# More tasks than these cause the removal of ended ones.
_TASKS_PRUNED_ABOVE: Final = 64


class WorkerHost(Protocol):
    """Interface of a worker's process to its handovers."""

    record: WorkerRecord
    engine: SimulatedEngine
    peers: BusConnection
    """Connection to other workers and to the frontend."""
    held_requests: HeldRequests

    @property
    def held(self) -> list[str]:
        """Ids of the requests that the worker owns, or has claimed without an answer yet."""
        ...

    @property
    def serving(self) -> bool:
        """True if the worker accepts requests."""
        ...

    def run(self, request: Request) -> None:
        """Run a request that the worker holds."""
        ...

    def advance(self) -> None:
        """Process the events of the engine until now."""
        ...


class CopyTime(Protocol):
    """Duration of a copy of a request's KV cache to the destination."""

    @property
    def copying_ms(self) -> float:
        """Time in ms in which the request continues to run at the source."""
        ...

    @property
    def downtime_ms(self) -> float:
        """Time in ms in which the request runs on neither worker."""
        ...


class HandoverKnobs(Struct, frozen=True):
    """Copy times and migration slots of a worker; without slots it does not support handovers."""

    copy: Callable[[float, float], CopyTime]
    """Function that returns the copy time, given the number of tokens and their growth in tokens per ms."""
    slots_in: int = SLOTS
    slots_out: int = SLOTS

    @property
    def supported(self) -> bool:
        """True if the worker can hand requests over or receive them."""
        return self.slots_in + self.slots_out > 0


class _NoTime(Struct, frozen=True):
    copying_ms: float = 0.0
    downtime_ms: float = 0.0


NO_HANDOVERS: Final = HandoverKnobs(lambda _tokens, _tokens_per_ms: _NoTime(), 0, 0)
"""Knobs of a worker whose engine cannot hand requests over."""


def handover_bus(connection: BusConnection) -> HandoverBus:
    """Return the transport of handovers, for a worker or a frontend."""
    return HandoverBus(connection, HANDOVER_PREFIX, timeout_s=_TIMEOUT_S, handover_timeout_s=_TIMEOUT_S)


class SimulatedMigration(EffectExecutor):
    """Handovers of one incarnation of a worker.

    Args:
        timeline: Virtual time.
        host: Process of the worker.
        knobs: Copy times and slots of the worker.
        publish: Function that publishes a report.
    """

    def __init__(
        self,
        timeline: Timeline,
        host: WorkerHost,
        knobs: HandoverKnobs,
        publish: Callable[[MigrationReport], None],
    ) -> None:
        super().__init__()
        self.migrator = RequestMigrator(
            host.record,
            host.held_requests,
            slots_in=knobs.slots_in,
            slots_out=knobs.slots_out,
            supported=knobs.supported,
            claim_retry_ms=_CLAIM_RETRY_MS,
            claim_timeout_ms=None,
        )
        self.copies_hang = False
        """True: a faulty worker, whose copies start and never end."""
        self.refuses_room = False
        """True: a faulty worker, which refuses every request for room."""
        self.on_phase: Callable[[str, MigrateCommand], None] = lambda _phase, _command: None
        """Callback for all phases of migrations, including ``accepted`` and ``switching``, which are not reported."""
        self._timeline = timeline
        self._host = host
        self._transport = handover_bus(host.peers)
        self._publish = publish
        self._knobs = knobs
        self._commands: dict[str, MigrateCommand] = {}
        self._downtimes_ms: dict[Transfer, float] = {}
        self._extractions: dict[str, VirtualFuture[EngineEvent]] = {}
        self._replies: dict[tuple[str, int], VirtualFuture[HandoverReply]] = {}
        self._next_tick_ms: float | None = None
        self._tasks: list[VirtualTask] = []
        self._ended = False
        if knobs.supported:
            self._start(self._transport.serve_worker(host.record.worker, self._answer_room, self._answer_handover))

    def with_slots(self, sample: WorkerSample) -> WorkerSample:
        """Return a sample with the free slots."""
        if not self._knobs.supported:
            return sample
        free = self.migrator.free_slots(len(self._host.held))
        return replace(sample, migration_slots_in=free.incoming, migration_slots_out=free.outgoing)

    def end(self) -> None:
        """Abort all handovers without a message, since the process has ended."""
        self._ended = True
        for task in self._tasks:
            task.kill()
        self._tasks.clear()

    def on_extracted(self, event: EngineEvent) -> bool:
        """Continue the handover of a request that was removed from the engine; return False if there is none."""
        future = self._extractions.pop(event.request_id, None)
        if future is not None:
            future.set_result(event)
        return future is not None

    def _start(self, coroutine: Coroutine[object, object, object]) -> None:
        """Run a coroutine until the process ends."""
        if self._ended:
            coroutine.close()
            return
        if len(self._tasks) > _TASKS_PRUNED_ABOVE:
            self._tasks = [task for task in self._tasks if not task.done]
        self._tasks.append(VirtualTask(coroutine))

    @property
    def _now_ms(self) -> int:
        return int(self._timeline.now_ms)

    # -- messages ------------------------------------------------------------------------------------------------------

    def answer(self, command: MigrateCommand) -> MigrateReply | None:
        """Answer a command and start it after the reply; return None if it addresses another incarnation."""
        reply = self.migrator.answer(command, self._host.engine.migratable_requests(), self._now_ms)
        if reply is not None and reply.accepted:
            self._timeline.call_later(0.0, partial(self._begin, command))
        return reply

    def _begin(self, command: MigrateCommand) -> None:
        effects = self.migrator.source.begin(command.command_id)
        if effects:
            self._commands[command.command_id] = command
            self.on_phase("accepted", command)
        self.execute(effects)
        self._schedule_tick()

    async def _answer_room(self, message: RoomRequest) -> RoomReply | None:
        host, destination = self._host, self.migrator.destination
        if not destination.is_addressed(message.incarnation):
            return None
        fits = host.serving and host.engine.fits(message.kv_tokens, message.kv_tokens_max or message.kv_tokens)
        reply, effects = destination.on_room_request(message, fits=fits and not self.refuses_room)
        self.execute(effects)
        return reply

    async def _answer_handover(self, message: HandoverRequest) -> HandoverReply | None:
        destination = self.migrator.destination
        if not destination.is_addressed(message.incarnation):
            return None
        reply, effects = destination.on_handover_request(message, self._now_ms)
        key = message.request.request_id, message.request.hop
        future = None if reply else self._replies.setdefault(key, VirtualFuture[HandoverReply]())
        self.execute(effects)
        return reply if future is None else await future

    # -- effects -------------------------------------------------------------------------------------------------------

    def ask_room(self, effect: AskRoom) -> None:
        """Request room at a destination for the current KV tokens of the request."""
        engine, name = self._host.engine, effect.transfer.request_id
        message = replace(effect.message, kv_tokens=engine.kv_tokens(name), kv_tokens_max=engine.kv_tokens_max(name))

        async def request_room() -> None:
            reply = await self._transport.ask_room(effect.worker, message)
            self.execute(self.migrator.source.on_room_reply(effect.transfer, reply, self._now_ms))

        self._start(request_room())

    def release_room(self, effect: ReleaseRoom) -> None:
        """Release the room at a destination."""

        async def release() -> None:
            await self._transport.ask_room(effect.worker, effect.message)

        self._start(release())

    def start_copy(self, effect: StartCopy) -> None:
        """Start a copy, which ends after its copy time."""
        engine, transfer = self._host.engine, effect.transfer
        itl_ms = engine.load().itl_ms
        time = self._knobs.copy(engine.kv_tokens(transfer.request_id), 1.0 / itl_ms if itl_ms else 0.0)
        self._downtimes_ms[transfer] = time.downtime_ms
        if not self.copies_hang:
            self._timeline.call_later(time.copying_ms, partial(self._copied, transfer))

    def _copied(self, transfer: Transfer) -> None:
        if not self._ended:
            self.execute(self.migrator.source.on_copied(transfer, self._now_ms))

    def cancel_copy(self, effect: CancelCopy) -> None:
        """Cancel an overdue copy, which ends at once."""
        self._execute_overdue(self.migrator.source.on_copied(effect.transfer, self._now_ms))

    def stop_request(self, effect: StopRequest) -> None:
        """Remove a request from the engine at the end of the current iteration."""
        self._start(self._stop(effect.transfer))

    async def _stop(self, transfer: Transfer) -> None:
        host, name, source = self._host, transfer.request_id, self.migrator.source
        request = host.engine.detach(name, self._timeline.now_ms)
        if request is None:
            reason: MigrationFailure = "withdrawn" if name in host.engine.held else "finished"
            self.execute(source.on_failure(transfer, reason, self._now_ms))
            return
        extraction = self._extractions[name] = VirtualFuture[EngineEvent]()
        host.advance()
        event = await extraction
        state = msgspec.msgpack.encode(
            replace(request, last_token_ms=event.last_token_ms, token_gap_max_ms=event.token_gap_max_ms)
        )
        self.execute(source.on_stopped(transfer, StoppedRequest(host.record.model, state), self._now_ms))

    def send_handover(self, effect: SendHandover) -> None:
        """Send a request to its destination after the downtime, in which the rest of the cache is copied."""
        transfer = effect.transfer

        async def send() -> None:
            self.on_phase("switching", self._commands[transfer.command_id])
            await sleep(self._timeline, self._downtimes_ms[transfer])
            reply = await self._transport.hand_over(effect.worker, effect.message)
            self.execute(self.migrator.source.on_handover_reply(transfer, reply, self._now_ms))

        self._start(send())

    def send_claim(self, effect: SendClaim) -> None:
        """Send a claim to a frontend after ``delay_ms``."""

        async def send() -> None:
            await sleep(self._timeline, effect.delay_ms)
            reply = await self._transport.claim(effect.frontend, effect.message)
            name, hop = effect.message.request_id, effect.message.hop
            self.execute(self.migrator.on_claim_reply(name, hop, reply, self._now_ms))

        self._start(send())

    def run_request(self, effect: RunRequest) -> None:
        """Submit a request to the engine."""
        handed = effect.request
        request = msgspec.msgpack.decode(handed.state, type=Request)
        self._host.run(replace(request, hop=handed.hop, migrations=handed.migrations))

    def discard_request(self, effect: DiscardRequest) -> None:
        """Abort a request if it is in the engine."""
        self._host.engine.abort(effect.request_id, self._timeline.now_ms)

    def expire_room(self, effect: ExpireRoom) -> None:
        """Release a reservation after ``delay_ms``."""
        expire = self.migrator.destination.on_room_expired
        self._timeline.call_later(effect.delay_ms, partial(expire, effect.request_id, effect.reservation))

    def reply_handover(self, effect: ReplyHandover) -> None:
        """Answer the sources of a handover."""
        future = self._replies.pop((effect.request_id, effect.hop), None)
        if future is not None:
            future.set_result(effect.message)
        self._host.advance()

    def publish_reports(self, effect: PublishReports) -> None:
        """Publish reports, and call ``on_phase`` for each."""
        command = self._commands[effect.reports[-1].command_id]
        self._publish_all(effect.reports)
        for report in effect.reports:
            self.on_phase(report.phase, command)

    def end_transfer(self, effect: EndTransfer) -> None:
        """Remove a transfer, and advance the engine."""
        self._downtimes_ms.pop(effect.transfer, None)
        self._host.advance()

    # -- time ----------------------------------------------------------------------------------------------------------

    def _publish_all(self, reports: Iterable[MigrationReport]) -> None:
        for report in reports:
            self._publish(report)
            if report.phase in ("done", "aborted"):
                self._commands.pop(report.command_id, None)
        self._schedule_tick()

    def _execute_overdue(self, effects: Iterable[Effect]) -> None:
        """Execute the effects of passed deadlines without calling ``on_phase`` for their reports."""
        for effect in effects:
            if isinstance(effect, PublishReports):
                self._publish_all(effect.reports)
            else:
                self.execute([effect])

    def _schedule_tick(self) -> None:
        wake_ms = self.migrator.next_wake_ms()
        if wake_ms is not None and (self._next_tick_ms is None or wake_ms < self._next_tick_ms):
            self._next_tick_ms = float(wake_ms)
            self._timeline.call_at(self._next_tick_ms, partial(self._tick, self._next_tick_ms))

    def _tick(self, at_ms: float) -> None:
        if at_ms != self._next_tick_ms or self._ended:
            return
        self._next_tick_ms = None
        self._execute_overdue(self.migrator.tick(self._now_ms))
        self._schedule_tick()
