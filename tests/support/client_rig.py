"""A worker client on real servers, and the other end of its bus and store."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from loadline.adapters.etcd_store import EtcdStore
from loadline.adapters.nats_bus import NatsBus
from loadline.client.worker import WorkerClient
from loadline.config import EtcdKnobs, NatsKnobs
from loadline.core.vocabulary.events import DecisionAnswered, LoadReported, TrafficReported, WorkerDrained
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.core.vocabulary.scalars import Role
from loadline.errors import StoreUnavailable
from loadline.ports import StoreEntry
from loadline.wire.codec import Codec, encode
from loadline.wire.keys import Keys
from loadline.wire.messages import DrainCommand, DrainReply, ScalingDecision
from loadline.wire.subjects import Subjects
from tests.waiting import until, until_async


class Agent:
    """Agent's side of bus and store: receives all messages, and announces decisions and commands."""

    def __init__(self, bus: NatsBus, store: EtcdStore, name: str) -> None:
        self.bus = bus
        self.store = store
        self.subjects = Subjects(name)
        self.keys = Keys(name)
        self._codec = Codec(self.subjects, 262_144)
        self.loads: list[LoadReported] = []
        self.traffic: list[TrafficReported] = []
        self.answers: list[DecisionAnswered] = []
        self.drained: list[WorkerDrained] = []

    def receive(self, subject: str, payload: bytes) -> None:
        event = self._codec.decode(subject, payload)
        match event:
            case LoadReported():
                self.loads.append(event)
            case TrafficReported():
                self.traffic.append(event)
            case DecisionAnswered():
                self.answers.append(event)
            case WorkerDrained():
                self.drained.append(event)
            case _:
                pytest.fail(f"not understood: {event}")

    async def entry(self, worker: str = "w") -> StoreEntry | None:
        try:
            snapshot = await self.store.read(self.keys.worker("m", "p", worker))
        except StoreUnavailable:
            return None
        return snapshot.entries[0] if snapshot.entries else None

    async def state(self) -> str | None:
        entry = await self.entry()
        return msgspec.json.decode(entry.value, type=WorkerRecord).state if entry else None

    async def state_becomes(self, expected: str | None) -> None:
        async def is_it() -> bool:
            return await self.state() == expected

        await until_async(is_it, f"state {expected}")

    async def receives_load(self) -> None:
        count = len(self.loads)
        await until(lambda: len(self.loads) > count, "a load report")

    async def drain(self, role: Role, incarnation: int = 1, drain_id: str = "d", epoch: int = 1) -> DrainReply:
        command = DrainCommand(drain_id, "m", "p", "w", role, incarnation, epoch, 60_000)
        reply = await self.bus.request(self.subjects.drain("m", "p", "w"), encode(command), 5)
        return msgspec.json.decode(reply, type=DrainReply)

    async def announce(self, announced: ScalingDecision) -> None:
        await self.bus.publish(self.subjects.decision(announced.model), encode(announced))


@asynccontextmanager
async def agent_at(nats_url: str, etcd_url: str, name: str) -> AsyncIterator[Agent]:
    bus = NatsBus(NatsKnobs(servers=(nats_url,)), name="test-agent")
    store = EtcdStore(EtcdKnobs(endpoints=(etcd_url,)))
    agent = Agent(bus, store, name)
    try:
        await bus.connect(lambda _connected: None)
        for kind in ("load", "traffic", "applied", "drained"):
            await bus.subscribe(agent.subjects.all_of(kind), agent.receive)
        async with asyncio.timeout(120):
            yield agent
    finally:
        await bus.close()
        await store.close()


class Engine:
    """Engine that is empty once a test sets it."""

    def __init__(self) -> None:
        self.empty = asyncio.Event()

    async def drain(self, command: DrainCommand) -> None:
        assert command.worker == "w"
        await self.empty.wait()


def worker_at(nats_url: str, etcd_url: str, name: str, engine: Engine, role: Role = "decode") -> WorkerClient:
    return WorkerClient(
        WorkerRecord("m", "p", "w", role, incarnation=1),
        nats=NatsKnobs(servers=(nats_url,)),
        etcd=EtcdKnobs(endpoints=(etcd_url,)),
        root=name,
        namespace=name,
        sample=lambda: WorkerSample(0, 0, waiting_requests=0),
        on_drain=engine.drain,
        report_interval_ms=50,
        lease_ttl_s=2,
    )
