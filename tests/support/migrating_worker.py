"""A worker with a toy engine that migrates requests over NATS, in this process or in one of its own.

python -m tests.support.migrating_worker NATS_URL ETCD_URL ROOT NAME

In a process of its own, its copies never end.
"""

import asyncio
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import msgspec

from loadline.adapters.nats_bus import NatsBus
from loadline.client.handover.bus import HandoverBus
from loadline.client.handover.held_requests import HeldRequests
from loadline.client.handover.messages import HandedRequest
from loadline.client.handover.ownership import RequestOwners
from loadline.client.handover.source import StoppedRequest
from loadline.client.migratable_engine import MigrationOptions
from loadline.client.worker import WorkerClient
from loadline.config import EtcdKnobs, NatsKnobs
from loadline.core.migration.requests import MigratableRequest
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.wire.messages import DrainCommand, MigrateCommand

LEASE_TTL_S = 2


class BlockingEngine:
    """An engine whose copies end when a test says so."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.held: dict[str, MigratableRequest] = {}
        self.held_requests = HeldRequests()
        self.copied = asyncio.Event()
        self.withdrawn: list[str] = []

    def sample(self) -> WorkerSample:
        return WorkerSample(0, 0, waiting_requests=0, running_requests=len(self.held))

    async def drain(self, _command: DrainCommand) -> None:
        while self.held:  # noqa: ASYNC110 - as an engine would
            await asyncio.sleep(0.02)

    def migratable_requests(self) -> Sequence[MigratableRequest]:
        return list(self.held.values())

    def has_room(self, kv_tokens: int) -> bool:
        return kv_tokens < 10_000

    async def copy(self, request_id: str, _command: MigrateCommand) -> None:
        try:
            await self.copied.wait()
        except asyncio.CancelledError:
            self.withdrawn.append(request_id)
            raise

    async def stop(self, request_id: str, _command: MigrateCommand) -> StoppedRequest | None:
        request = self.held.get(request_id)
        return None if request is None else StoppedRequest(request_id.partition("-")[0], msgspec.json.encode(request))

    def run(self, request: HandedRequest) -> None:
        state = msgspec.json.decode(request.state, type=MigratableRequest)
        self.held[request.request_id] = msgspec.structs.replace(state, hops=request.migrations)

    def discard(self, request_id: str) -> None:
        self.held.pop(request_id, None)


@asynccontextmanager
async def migrating_worker(
    nats_url: str, etcd_url: str, root: str, name: str, incarnation: int = 1, *, slots_in: int = 4
) -> AsyncIterator[BlockingEngine]:
    """Run a worker ``name`` of the model ``m`` with two requests, and their frontend, and wait until it is ready."""
    bus = NatsBus(NatsKnobs(servers=(nats_url,)), name=f"engine-{name}")
    await bus.connect(lambda _connected: None)
    handovers, owners, engine = HandoverBus(bus, root), RequestOwners(), BlockingEngine(name)
    for number in range(2):
        request_id = f"{name}-{number}"
        engine.held[request_id] = MigratableRequest(request_id, 100, 5)
        engine.held_requests.assign(request_id, owners.assign(request_id, name, incarnation))
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
        migration=MigrationOptions(engine, handovers, slots_in=slots_in),
    )
    try:
        await handovers.serve_frontend(name, owners.answer)
        async with worker:
            await worker.ready()
            yield engine
    finally:
        await bus.close()


async def _live(nats_url: str, etcd_url: str, root: str, name: str) -> None:
    async with migrating_worker(nats_url, etcd_url, root, name):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_live(*sys.argv[1:5]))
