"""Leader that commands migrations over a real bus, and records their reports and those of workers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from loadline.adapters.nats_bus import NatsBus
from loadline.config import NatsKnobs
from loadline.core.vocabulary.events import LoadReported, MigrationReported, TrafficReported, WorkerDrained
from loadline.core.vocabulary.migrations import MigrationEndpoint
from loadline.core.vocabulary.samples import WorkerSample
from loadline.wire.codec import Codec, encode
from loadline.wire.messages import MigrateCommand, MigrateReply
from loadline.wire.subjects import Subjects


class MigrationLeader:
    """Leader of all models under one root."""

    def __init__(self, bus: NatsBus, root: str) -> None:
        self.bus = bus
        self.subjects = Subjects(root)
        self._codec = Codec(self.subjects, 262_144)
        self.loads: dict[str, LoadReported] = {}
        """Newest load report of each worker."""
        self.reports: list[MigrationReported] = []
        self.drained: list[str] = []

    def ingest(self, subject: str, payload: bytes) -> None:
        match self._codec.decode(subject, payload):
            case MigrationReported() as event:
                self.reports.append(event)
            case LoadReported() as event:
                self.loads[event.worker] = event
            case WorkerDrained() as event:
                self.drained.append(event.worker)
            case TrafficReported():
                pass
            case event:
                pytest.fail(f"not understood: {event}")

    def sample(self, worker: str) -> WorkerSample:
        return self.loads[worker].samples[-1]

    def endpoint(self, worker: str) -> MigrationEndpoint:
        """Return the endpoint of the worker's newest incarnation."""
        load = self.loads[worker]
        return MigrationEndpoint(load.pool, load.worker, load.incarnation)

    def phases(self, command_id: str = "c") -> list[str]:
        return [report.phase for report in self.reports if report.command_id == command_id]

    async def migrate(self, source: str, destination: str, /, **changed: Any) -> MigrateReply:
        """Command the migration of all requests; ``changed`` replaces fields of the command."""
        to = self.endpoint(destination) if destination in self.loads else MigrationEndpoint("p", destination, 1)
        command = MigrateCommand(
            "c", self.loads[source].model, 1, self.endpoint(source), to, "decode_load", "NUM_REQ", "FCR", -1.0,
            requests_max=64, ttl_ms=60_000,
        )  # fmt: skip
        command = replace(command, **changed)
        reply = await self.bus.request(
            self.subjects.migrate(command.model, command.source.pool, source), encode(command), 5
        )
        return msgspec.json.decode(reply, type=MigrateReply)


@asynccontextmanager
async def leader_at(nats_url: str, root: str, timeout_s: float = 120.0) -> AsyncIterator[MigrationLeader]:
    """Yield a leader that receives all reports, for at most ``timeout_s``."""
    bus = NatsBus(NatsKnobs(servers=(nats_url,)), name="leader")
    leader = MigrationLeader(bus, root)
    try:
        await bus.connect(lambda _connected: None)
        for kind in ("load", "traffic", "migration", "drained"):
            await bus.subscribe(leader.subjects.all_of(kind), leader.ingest)
        async with asyncio.timeout(timeout_s):
            yield leader
    finally:
        await bus.close()
