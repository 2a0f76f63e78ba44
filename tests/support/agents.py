"""Agents in processes of their own, and workers in this process whose load a test sets."""

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import msgspec

from loadline.adapters.etcd_store import EtcdStore
from loadline.adapters.nats_bus import NatsBus
from loadline.client.scaler import ScalerClient
from loadline.client.worker import WorkerClient
from loadline.config import EtcdKnobs, NatsKnobs
from loadline.core.vocabulary.decisions import Decision
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.core.vocabulary.scalars import Role
from loadline.core.vocabulary.status import AgentStatus, WorkerStatus
from loadline.ports import StoreChange, StoreSnapshot
from loadline.rig.rig import Rig
from loadline.wire.keys import Keys
from loadline.wire.messages import DrainCommand, ScalingDecision
from loadline.wire.subjects import Subjects
from tests.waiting import until

MODEL = "m"
# Sampled every 50 ms over half a second: the default rules, sixty times as fast.
MODELS = """
[[models]]
name = "m"
planner = "threshold"
[models.threshold]
metric_pulling_interval_ms = 50
adjustment_interval_ms = 500
new_decode_worker_grace_intervals = 1
[models.guardrails]
stabilisation_ms = 500
warm_up_ms = 500
[[models.pools]]
name = "decode"
role = "decode"
replicas_max = 9
[[models.pools]]
name = "prefill"
role = "prefill"
"""
LEASE_TTL_S = 3


def config(rig: Rig, name: str, models: str = MODELS, *, lease_ttl_s: int = LEASE_TTL_S) -> str:
    """Return the configuration of one of several agents: a short lease, and workers stale after 1.5 s."""
    leadership: dict[str, object] = {"lease_ttl_s": lease_ttl_s, "margin_ms": 1_000}
    return rig.config(models, name, leadership=leadership, fleet={"stale_after_ms": 1_500})


class TestWorker:
    """Worker whose reported load is set by the test."""

    __test__ = False

    def __init__(self, rig: Rig, pool: Role, name: str, incarnation: int = 1) -> None:
        self.name = name
        self.kv = 0.7
        self.waiting = 0
        self.running = 1
        self.drain: DrainCommand | None = None
        self.may_leave = asyncio.Event()
        self.client = WorkerClient(
            WorkerRecord(MODEL, pool, name, pool, incarnation),
            nats=NatsKnobs(servers=(rig.nats.url,)),
            etcd=EtcdKnobs(endpoints=(rig.etcd.url,)),
            sample=lambda: WorkerSample(
                0, 0, kv_usage_ratio=self.kv, waiting_requests=self.waiting, running_requests=self.running
            ),
            on_drain=self._on_drain,
            report_interval_ms=100,
            lease_ttl_s=2,
        )

    async def _on_drain(self, command: DrainCommand) -> None:
        self.drain = command
        await self.may_leave.wait()


class Observer:
    """Observer of all that agents commit and announce."""

    def __init__(self) -> None:
        self.committed: list[Decision] = []
        self.announced: list[ScalingDecision] = []
        self.statuses: dict[str, AgentStatus] = {}
        self.leaders: list[str] = []

    def leader(self) -> AgentStatus | None:
        """Return the newest status of an agent that leads."""
        leading = [status for status in self.statuses.values() if status.leading]
        return max(leading, key=lambda status: status.epoch, default=None)

    def desired(self) -> dict[str, int]:
        """Return the leader's desired counts by pool."""
        status = self.leader()
        return {pool.pool: pool.desired for model in status.models for pool in model.pools} if status else {}

    def check_order(self) -> None:
        """Assert that the sequences of a model's commits rise and its epochs never fall."""
        for model in {decision.model: None for decision in self.committed}:
            order = [(decision.sequence, decision.epoch) for decision in self.committed if decision.model == model]
            assert [sequence for sequence, _ in order] == sorted({sequence for sequence, _ in order})
            assert [epoch for _, epoch in order] == sorted(epoch for _, epoch in order)

    def on_status(self, _subject: str, payload: bytes) -> None:
        status = msgspec.json.decode(payload, type=AgentStatus)
        self.statuses[status.agent] = status

    def on_decision(self, _subject: str, payload: bytes) -> None:
        self.announced.append(msgspec.json.decode(payload, type=ScalingDecision))

    def on_snapshot(self, snapshot: StoreSnapshot) -> None:
        for entry in snapshot.entries:
            self._commit(entry.value)

    def on_changes(self, changes: list[StoreChange]) -> None:
        for change in changes:
            if change.entry is not None:
                self._commit(change.entry.value)

    def _commit(self, value: bytes) -> None:
        decision = msgspec.json.decode(value, type=Decision)
        if decision not in self.committed:
            self.committed.append(decision)


class AgentFleet:
    """Fleet of workers with an observer and a bus on a rig."""

    def __init__(self, rig: Rig, bus: NatsBus, observer: Observer, stack: AsyncExitStack) -> None:
        self.rig = rig
        self.bus = bus
        self.observer = observer
        self.workers: dict[str, TestWorker] = {}
        self._stack = stack

    async def add(self, pool: Role, *names: str, incarnation: int = 1) -> None:
        """Start workers and wait until the leader reports all of them as ready."""
        for name in names:
            worker = TestWorker(self.rig, pool, name, incarnation)
            await self._stack.enter_async_context(worker.client)
            await worker.client.ready()
            self.workers[name] = worker
        await until(lambda: set(names) <= self.ready())

    async def accept_decisions(self) -> None:
        """Start a scaler that accepts every decision and applies none."""
        nats = NatsKnobs(servers=(self.rig.nats.url,))
        scaler = await self._stack.enter_async_context(ScalerClient("scaler", [MODEL], nats=nats))
        self._stack.push_async_callback(_end, asyncio.create_task(_accept_all(scaler)))

    def ready(self) -> set[str]:
        """Return the names of the workers that the leader reports as ready."""
        return {worker.worker for worker in self._workers() if worker.state == "ready" and worker.age_ms is not None}

    def registered(self) -> set[str]:
        """Return the names of the workers in the leader's registry."""
        return {worker.worker for worker in self._workers()}

    def _workers(self) -> list[WorkerStatus]:
        status = self.observer.leader()
        return [worker for model in status.models for pool in model.pools for worker in pool.workers] if status else []

    def load(self, *, kv: float, waiting: int = 0) -> None:
        """Set the load that every worker reports from now on."""
        for worker in self.workers.values():
            worker.kv, worker.waiting = kv, waiting


def loadline(rig: Rig, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command of ``loadline`` to its end."""
    where = [] if arguments[0] == "replay" else ["--nats", rig.nats.url]
    command = [sys.executable, "-m", "loadline", *arguments, *where]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def assert_replays(rig: Rig, name: str) -> None:
    """Assert that the journal of an agent replays byte for byte."""
    done = loadline(rig, "replay", str(rig.directory / f"journal-{name}"))
    assert done.returncode == 0, done.stderr
    assert "the replay is exact" in done.stdout


@asynccontextmanager
async def fleet(rig: Rig) -> AsyncIterator[AgentFleet]:
    """Yield a fleet without workers whose observer sees every message; check the order of commits at the end."""
    async with AsyncExitStack() as stack:
        observer = Observer()
        bus = NatsBus(NatsKnobs(servers=(rig.nats.url,)), name="observer")
        stack.push_async_callback(bus.close)
        await bus.connect(lambda _connected: None)
        subjects = Subjects("loadline")
        await bus.subscribe(subjects.all_of("status"), observer.on_status)
        await bus.subscribe(subjects.all_of("decision"), observer.on_decision)
        store = EtcdStore(EtcdKnobs(endpoints=(rig.etcd.url,)))
        stack.push_async_callback(store.close)
        keys = Keys("default")
        follow = store.follow(keys.decisions, observer.on_snapshot, observer.on_changes, lambda _connected: None)
        following = asyncio.create_task(follow)
        stack.push_async_callback(_end, following)
        yield AgentFleet(rig, bus, observer, stack)
        observer.check_order()


async def _accept_all(scaler: ScalerClient) -> None:
    async for received in scaler:
        await scaler.accept(received)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
