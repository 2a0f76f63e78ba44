"""Worker that migrates requests, with a bus and a store in memory, a scripted engine and a scripted transport."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from msgspec.structs import replace

from loadline.client.handover.held_requests import HeldRequests
from loadline.client.handover.messages import (
    ClaimReply,
    ClaimRequest,
    HandedRequest,
    HandoverReply,
    HandoverRequest,
    RoomReply,
    RoomRequest,
)
from loadline.client.handover.source import StoppedRequest
from loadline.client.migratable_engine import MigrationOptions
from loadline.client.worker import Samples, WorkerClient
from loadline.core.migration.requests import MigratableRequest
from loadline.core.vocabulary.events import LoadReported, MigrationReported
from loadline.core.vocabulary.migrations import MigrationEndpoint
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.ports import Unsubscribe
from loadline.wire.codec import Codec, encode
from loadline.wire.messages import DrainCommand, DrainReply, MigrateCommand, MigrateReply
from loadline.wire.subjects import Subjects
from tests.support.memory import MemoryBus, MemoryStore

SUBJECTS = Subjects("loadline")
CODEC = Codec(SUBJECTS, 262_144)
BUSY = WorkerSample(0, 0, waiting_requests=1, running_requests=2)
COMMAND = MigrateCommand(
    "c", "m", 1, MigrationEndpoint("p", "w", 1_000), MigrationEndpoint("p", "other", 7),
    "decode_load", "NUM_REQ", "FCR", -1.0,
    requests_max=8, ttl_ms=60_000,
)  # fmt: skip


class ScriptedEngine:
    """Engine with two requests that copies, stops and fails as a test sets."""

    def __init__(self) -> None:
        self.candidates = [MigratableRequest("a", 100, 5), MigratableRequest("b", 200, 5)]
        self.held_requests = HeldRequests()
        for name in "abz":
            self.held_requests.assign(name, 0)
        self.copied = asyncio.Event()
        self.stopped = asyncio.Event()
        self.copy_errors: dict[str, Exception] = {}
        self.unresponsive = False
        self.ignores_cancellation = False
        self.copying: list[str] = []
        self.stopping: list[str] = []
        self.withdrawn: list[str] = []
        self.run_requests: list[HandedRequest] = []
        self.discarded: list[str] = []

    def migratable_requests(self) -> Sequence[MigratableRequest]:
        if self.unresponsive:
            raise RuntimeError("the engine does not answer")
        return self.candidates

    def has_room(self, kv_tokens: int) -> bool:
        if self.unresponsive:
            raise RuntimeError("the engine does not answer")
        return kv_tokens <= 1_000

    async def copy(self, request_id: str, _command: MigrateCommand) -> None:
        if request_id in self.copy_errors:
            raise self.copy_errors[request_id]
        self.copying.append(request_id)
        try:
            await self.copied.wait()
        except asyncio.CancelledError:
            self.withdrawn.append(request_id)
            if not self.ignores_cancellation:
                raise

    async def stop(self, request_id: str, _command: MigrateCommand) -> StoppedRequest | None:
        self.stopping.append(request_id)
        await self.stopped.wait()
        return StoppedRequest("f", request_id.encode()) if self.held_requests.hop(request_id) is not None else None

    def run(self, request: HandedRequest) -> None:
        if request.state == b"broken":
            raise ValueError("it cannot be read")
        self.run_requests.append(request)

    def discard(self, request_id: str) -> None:
        self.discarded.append(request_id)


class ScriptedTransport:
    """Transport to other workers and the frontend, whose answers a test sets."""

    def __init__(self) -> None:
        self.refused_handovers: set[str] = set()
        """Requests whose handover the destination refuses."""
        self.silent: list[str] = []
        """Kinds of messages that stay unanswered, once each."""
        self.fails = False
        self.room_requests: list[RoomRequest] = []
        self.handovers: list[HandoverRequest] = []
        self.claims: list[ClaimRequest] = []
        self.granted = True
        self.answer_room: Callable[[RoomRequest], Awaitable[RoomReply | None]] | None = None
        self.answer_handover: Callable[[HandoverRequest], Awaitable[HandoverReply | None]] | None = None

    def _is_silent(self, kind: str) -> bool:
        if self.fails:
            raise OSError("the connection is lost")
        if kind in self.silent:
            self.silent.remove(kind)
            return True
        return False

    async def ask_room(self, _worker: str, message: RoomRequest) -> RoomReply | None:
        self.room_requests.append(message)
        return None if self._is_silent("room") else RoomReply(granted=message.ttl_ms > 0)

    async def hand_over(self, _worker: str, message: HandoverRequest) -> HandoverReply | None:
        self.handovers.append(message)
        if self._is_silent("handover"):
            return None
        return HandoverReply(accepted=message.request.request_id not in self.refused_handovers)

    async def claim(self, _frontend: str, message: ClaimRequest) -> ClaimReply | None:
        self.claims.append(message)
        return None if self._is_silent("claim") else ClaimReply(self.granted)

    async def serve_worker(
        self,
        _worker: str,
        answer_room: Callable[[RoomRequest], Awaitable[RoomReply | None]],
        answer_handover: Callable[[HandoverRequest], Awaitable[HandoverReply | None]],
    ) -> Unsubscribe:
        self.answer_room, self.answer_handover = answer_room, answer_handover

        async def end() -> None:
            self.answer_room = self.answer_handover = None

        return end

    async def room(self, name: str, kv_tokens: int = 10, *, incarnation: int = 1_000, ttl_ms: int = 1_000) -> Any:
        """Request room at the worker; return whether it is granted."""
        assert self.answer_room is not None
        reply = await self.answer_room(RoomRequest(name, incarnation, kv_tokens, ttl_ms))
        return None if reply is None else reply.granted

    async def handover(self, name: str, hop: int = 1, state: bytes = b"", *, incarnation: int = 1_000) -> Any:
        """Hand a request over to the worker; return whether it accepts."""
        assert self.answer_handover is not None
        reply = await self.answer_handover(HandoverRequest(HandedRequest(name, "f", hop, 1, state), incarnation))
        return None if reply is None else reply.accepted


class DriverHarness:
    def __init__(self, *, migrates: bool, samples: Samples = BUSY, report_interval_ms: int = 5) -> None:
        self.bus = MemoryBus()
        self.engine = ScriptedEngine()
        self.transport = ScriptedTransport()
        self.empty = asyncio.Event()
        self.worker = WorkerClient(
            WorkerRecord("m", "p", "w", "decode", 1_000),
            bus=self.bus,
            store=MemoryStore(),
            sample=lambda: samples,
            on_drain=self.on_drain,
            report_interval_ms=report_interval_ms,
            lease_ttl_s=1,
            migration=MigrationOptions(self.engine, self.transport, slots_in=2, slots_out=3) if migrates else None,
        )

    async def on_drain(self, _command: DrainCommand) -> None:
        await self.empty.wait()

    async def command(self, **changed: Any) -> MigrateReply:
        reply = await self.bus.request(SUBJECTS.migrate("m", "p", "w"), encode(replace(COMMAND, **changed)), 5)
        return msgspec.json.decode(reply, type=MigrateReply)

    async def drain(self) -> None:
        command = DrainCommand("d", "m", "p", "w", "decode", 1_000, 1, 60_000)
        reply = await self.bus.request(SUBJECTS.drain("m", "p", "w"), encode(command), 5)
        assert msgspec.json.decode(reply, type=DrainReply).accepted

    def reports(self, command_id: str = "c") -> list[MigrationReported]:
        decoded = [CODEC.decode(subject, payload) for subject, payload in self.bus.published]
        return [event for event in decoded if isinstance(event, MigrationReported) and event.command_id == command_id]

    def phases(self, command_id: str = "c") -> list[str]:
        return [report.phase for report in self.reports(command_id)]

    async def next_slots(self) -> list[tuple[int | None, int | None]]:
        """Publish a report and return its free slots."""
        assert await self.worker.report_now()
        return self.last_slots()

    def last_slots(self) -> list[tuple[int | None, int | None]]:
        """Return the free slots of the last report."""
        loads = [CODEC.decode(subject, payload) for subject, payload in self.bus.published]
        newest = [event for event in loads if isinstance(event, LoadReported)][-1]
        return [(sample.migration_slots_in, sample.migration_slots_out) for sample in newest.samples]


@asynccontextmanager
async def driver_harness(
    *, migrates: bool = True, samples: Samples = BUSY, report_interval_ms: int = 5
) -> AsyncIterator[DriverHarness]:
    harness = DriverHarness(migrates=migrates, samples=samples, report_interval_ms=report_interval_ms)
    async with asyncio.timeout(60), harness.worker:
        yield harness
