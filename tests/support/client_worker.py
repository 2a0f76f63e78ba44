"""Worker client on a bus and a store in memory, with an engine that a test empties."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec

from loadline.client.worker import Samples, WorkerClient
from loadline.core.vocabulary.events import LoadReported, WorkerDrained
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.core.vocabulary.scalars import Role
from loadline.ports import StoreEntry
from loadline.wire.codec import Codec, encode
from loadline.wire.keys import Keys
from loadline.wire.messages import DrainCommand, DrainReply
from loadline.wire.subjects import Subjects
from tests.support.memory import MemoryBus, MemoryStore

SUBJECTS = Subjects("loadline")
CODEC = Codec(SUBJECTS, 262_144)
KEY = Keys("default").worker("m", "p", "w")
INCARNATION = 1_000
IDLE = WorkerSample(0, 0)


class WorkerClientHarness:
    """Worker client with bus, store and engine."""

    def __init__(self, role: Role, samples: Samples) -> None:
        self.bus = MemoryBus()
        self.store = MemoryStore()
        self.samples = samples
        self.drains: list[DrainCommand] = []
        self.empty = asyncio.Event()
        self.failing = False
        self.worker = WorkerClient(
            WorkerRecord("m", "p", "w", role, INCARNATION),
            bus=self.bus,
            store=self.store,
            sample=self.sample,
            on_drain=self.on_drain,
            report_interval_ms=5,
            lease_ttl_s=1,
        )

    def sample(self) -> Samples:
        if self.failing:
            raise RuntimeError("the engine does not answer")
        return self.samples

    async def on_drain(self, command: DrainCommand) -> None:
        self.drains.append(command)
        if self.failing:
            raise RuntimeError("the engine does not empty")
        await self.empty.wait()

    @property
    def state(self) -> str | None:
        held = self.held
        return msgspec.json.decode(held.value, type=WorkerRecord).state if held else None

    @property
    def held(self) -> StoreEntry | None:
        return self.store.server.keys.get(KEY)

    def lose_lease(self) -> int:
        """Expire the lease of the registration; return its id."""
        held = self.held
        assert held is not None
        self.store.server.revoke(held.lease_id)
        return held.lease_id

    def received(self) -> list[LoadReported | WorkerDrained]:
        decoded = [CODEC.decode(subject, payload) for subject, payload in self.bus.published]
        return [event for event in decoded if isinstance(event, LoadReported | WorkerDrained)]

    async def command(
        self, drain_id: str = "d", *, epoch: int = 1, incarnation: int = INCARNATION, ttl_ms: int = 60_000
    ) -> DrainReply:
        command = DrainCommand(drain_id, "m", "p", "w", "decode", incarnation, epoch, ttl_ms)
        reply = await self.bus.request(SUBJECTS.drain("m", "p", "w"), encode(command), 5)
        return msgspec.json.decode(reply, type=DrainReply)


@asynccontextmanager
async def harness(role: Role = "decode", samples: Samples = IDLE) -> AsyncIterator[WorkerClientHarness]:
    new_client = WorkerClientHarness(role, samples)
    async with asyncio.timeout(60), new_client.worker:
        yield new_client
    assert new_client.state is None, "a worker that left is no longer registered"
