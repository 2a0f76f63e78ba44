"""A worker with a toy engine that gives requests away over NATS, in this process or in one of its own to be killed.

python -m tests.support.moving_worker NATS_URL ETCD_URL ROOT NAME

In a process of its own its copies never end.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from loadline.adapters.nats_bus import NatsBus
from loadline.client.mover import MoveRefused
from loadline.client.worker import WorkerClient
from loadline.config import EtcdKnobs, NatsKnobs
from loadline.core.migration.requests import MigratableRequest
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.errors import BusUnavailable
from loadline.wire.messages import DrainCommand, MigrateCommand

LEASE_TTL_S = 2


class Engine:
    """Holds requests; a copy ends when a test says so."""

    def __init__(self, bus: NatsBus, root: str) -> None:
        self._bus = bus
        self._root = root
        self.held: dict[str, MigratableRequest] = {}
        self.copied = asyncio.Event()
        self.withdrawn: list[str] = []
        self.worker: WorkerClient | None = None

    def sample(self) -> WorkerSample:
        return WorkerSample(0, 0, waiting_requests=0, running_requests=len(self.held))

    async def drain(self, _command: DrainCommand) -> None:
        while self.held:  # noqa: ASYNC110 - as an engine would
            await asyncio.sleep(0.02)

    async def room(self, payload: bytes) -> bytes:
        """A source asks for room."""
        assert self.worker is not None
        return b"yes" if self.worker.admit(payload.decode()) else b"no"

    async def take(self, payload: bytes) -> bytes:
        """A source hands over, or has given up."""
        assert self.worker is not None
        name, _, gives = payload.decode().partition(" ")
        self.worker.settle(name)
        if gives:
            self.held[name] = MigratableRequest(name, 100, 5, hops=1)
        return b"taken"

    def select(self, _command: MigrateCommand) -> Sequence[MigratableRequest]:
        return list(self.held.values())

    async def copy(self, request_id: str, command: MigrateCommand, admitted: Callable[[], None]) -> None:
        if await self._ask("room", command, request_id) != b"yes":
            raise MoveRefused(detail="it has no room")
        admitted()
        try:
            await self.copied.wait()
        except asyncio.CancelledError:
            self.withdrawn.append(request_id)
            await self._ask("take", command, request_id)
            raise

    async def switch(self, request_id: str, command: MigrateCommand) -> bool:
        await self._ask("take", command, f"{request_id} gives")
        del self.held[request_id]
        return True

    async def _ask(self, what: str, command: MigrateCommand, text: str) -> bytes:
        try:
            return await self._bus.request(f"{self._root}.{what}.{command.destination.worker}", text.encode(), 5)
        except BusUnavailable as error:
            raise MoveRefused("destination_lost", str(error)) from error


@asynccontextmanager
async def moving_worker(
    nats_url: str, etcd_url: str, root: str, name: str, incarnation: int = 1, *, slots_in: int = 4
) -> AsyncIterator[Engine]:
    """A worker ``name`` of the model ``m`` with two requests, ready."""
    bus = NatsBus(NatsKnobs(servers=(nats_url,)), name=f"engine-{name}")
    await bus.connect(lambda _connected: None)
    engine = Engine(bus, root)
    engine.held = {f"{name}-{number}": MigratableRequest(f"{name}-{number}", 100, 5) for number in range(2)}
    worker = WorkerClient(
        WorkerRecord("m", "p", name, "decode", incarnation),
        nats=NatsKnobs(servers=(nats_url,)),
        etcd=EtcdKnobs(endpoints=(etcd_url,)),
        root=root,
        namespace=root,
        sample=engine.sample,
        on_drain=engine.drain,
        report_interval_ms=50,
        lease_ttl_s=LEASE_TTL_S,
        mover=engine,
        slots_in=slots_in,
    )
    try:
        async with worker:
            engine.worker = worker
            await bus.answer(f"{root}.room.{name}", engine.room)
            await bus.answer(f"{root}.take.{name}", engine.take)
            await worker.ready()
            yield engine
    finally:
        await bus.close()


async def _live(nats_url: str, etcd_url: str, root: str, name: str) -> None:
    async with moving_worker(nats_url, etcd_url, root, name):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_live(*sys.argv[1:5]))
