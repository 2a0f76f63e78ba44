"""A worker whose engine knows no migration: its streams move by the gateways that relay them."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from loadline.adapters.nats_bus import NatsBus
from loadline.client.streams import StreamEngine
from loadline.client.worker import WorkerClient
from loadline.config import EtcdKnobs, NatsKnobs
from loadline.core.vocabulary.samples import WorkerSample
from loadline.wire.messages import DrainCommand
from tests.support.fake_engine import FakeEngine
from tests.support.gateway_rig import record
from tests.waiting import until


class StreamWorker:
    """A worker as a sidecar makes one."""

    def __init__(self, engine: FakeEngine, streams: StreamEngine, client: WorkerClient) -> None:
        self.engine = engine
        self.streams = streams
        self.client = client


@asynccontextmanager
async def stream_worker(
    nats_url: str, etcd_url: str, root: str, name: str, engine: FakeEngine
) -> AsyncIterator[StreamWorker]:
    bus = NatsBus(NatsKnobs(servers=(nats_url,)), name=f"streams-{name}")
    await bus.connect(lambda _connected: None)
    described = record(name, engine.address)
    streams = StreamEngine(described, bus, root, lambda _tokens: True)

    async def drain(_command: DrainCommand) -> None:
        await until(lambda: engine.open == 0, "the engine is empty")

    client = WorkerClient(
        described,
        bus=bus,
        etcd=EtcdKnobs(endpoints=(etcd_url,)),
        root=root,
        namespace=root,
        sample=lambda: WorkerSample(0, 0, waiting_requests=0, running_requests=engine.open),
        on_drain=drain,
        report_interval_ms=200,
        lease_ttl_s=2,
        migration=streams.options(),
    )
    try:
        async with client:
            await streams.start()
            await client.ready()
            yield StreamWorker(engine, streams, client)
    finally:
        await bus.close()
