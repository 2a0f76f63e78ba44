"""The source of Llumnix's engines as a process, with real Redis, gRPC, NATS and etcd."""

import asyncio
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import redis

from loadline.core.vocabulary.migrations import MigrationEndpoint
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.rig.server_processes import free_port
from loadline.wire.codec import encode
from loadline.wire.messages import MigrateCommand, MigrateReply, MigrationReport
from tests.support.client_rig import Agent
from tests.support.programs import find_program
from tests.support.sources import Llumlet, source_at
from tests.unit.sources.test_llumnix_status import metadata, status
from tests.waiting import until, until_async, until_true

REDIS = find_program("redis-server")
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(REDIS is None, reason="redis-server is not installed: apt-get install redis-server"),
]


class Redis:
    """A real server, and Llumnix's engines in it."""

    def __init__(self, directory: Path) -> None:
        self.port = free_port()
        self.directory = directory
        self.client = redis.Redis(port=self.port)
        self.start()

    def start(self) -> None:
        command = [str(REDIS), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--dir"]
        self._process = subprocess.Popen([*command, str(self.directory)], stdout=subprocess.DEVNULL)
        until_true(self._answers, "Redis answers")

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def store(self, name: str, at_ms: int, port: int = 1, **fields: int) -> None:
        described = metadata(instance_id=name, ip="127.0.0.1", llumlet_port=port)
        loaded = status(timestamp_ms=at_ms, num_total_gpu_tokens=16_000, num_available_migrate_in_slots=1, **fields)
        self.client.set(f"llumnix:instance_metadata:{name}", described)
        self.client.set(f"llumnix:instance_status:{name}", loaded)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Redis]:
    server = Redis(tmp_path)
    yield server
    server.client.close()
    server.kill()


def config(store: Redis) -> str:
    pool = '[[pools]]\nmodel = "m"\nname = "p"\nrole = "decode"\ninstance_type = "decode"\n'
    keys = "lost_after_s = 2\nlease_ttl_s = 5\nmetadata_interval_ms = 100\n"
    return f'{keys}{pool}[redis]\nurl = "redis://127.0.0.1:{store.port}"\n'


def waiting(agent: Agent, worker: str) -> int | None:
    """Return the waiting requests of the newest sample of a worker."""
    samples = [sample for report in agent.loads if report.worker == worker for sample in report.samples]
    return samples[-1].waiting_requests if samples else None


async def reads(agent: Agent, worker: str, requests: int) -> None:
    await until(lambda: waiting(agent, worker) == requests, "the status was read")


async def incarnation(agent: Agent, worker: str) -> int:
    """Return the incarnation of a registered worker; 0: it is not registered."""
    entry = await agent.entry(worker)
    return msgspec.json.decode(entry.value, type=WorkerRecord).incarnation if entry else 0


def test_engines_are_registered_reported_and_removed_and_an_outage_removes_nobody(
    tmp_path: Path, store: Redis, nats_url: str, etcd_url: str, own_name: str
) -> None:
    async def registered(agent: Agent, worker: str) -> bool:
        return await incarnation(agent, worker) > 0

    async def missing(agent: Agent, worker: str) -> bool:
        return await incarnation(agent, worker) == 0

    async def scenario() -> None:
        store.store("a", 1, num_waiting_requests=3)
        store.store("b", 1)
        store.client.set("llumnix:instance_metadata:bad", b"\xff\xff")
        servers = (nats_url, etcd_url)
        async with source_at(tmp_path, servers, own_name, "llumnix", config(store)) as (agent, process):
            await until(lambda: waiting(agent, "a") == 3 and waiting(agent, "b") == 0, "both engines")
            await until_async(lambda: registered(agent, "b"), "registered")
            store.kill()
            await until(lambda: "upstream_lost" in (tmp_path / "llumnix.log").read_text("utf-8"), "an outage")
            agent.loads.clear()
            store.start()  # it has lost all keys, which the engines write again
            store.store("a", 2, num_waiting_requests=7)
            await until(lambda: waiting(agent, "a") == 7, "reports again")
            await until_async(lambda: missing(agent, "b"), "an engine whose keys are gone is removed")
            assert await registered(agent, "a")
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
            assert await registered(agent, "a"), "a worker outlives the source"
        log = (tmp_path / "llumnix.log").read_text("utf-8")
        assert log.count("upstream_lost") == 1
        assert "engine_refused" in log
        assert "Traceback" not in log

    asyncio.run(scenario())


def test_a_command_of_the_agent_moves_requests_and_its_end_is_reported(
    tmp_path: Path, store: Redis, nats_url: str, etcd_url: str, own_name: str
) -> None:
    async def scenario() -> None:
        servers = (nats_url, etcd_url)
        async with (
            Llumlet().serving() as llumlet,
            source_at(tmp_path, servers, own_name, "llumnix", config(store)) as (agent, _process),
        ):
            store.store("a", 1, llumlet.port)
            store.store("b", 1)
            await until(lambda: waiting(agent, "a") == 0 and waiting(agent, "b") == 0, "both engines")
            reports: list[MigrationReport] = []
            subject = agent.subjects.migration("m", "p", "a")
            read = msgspec.json.Decoder(MigrationReport).decode
            await agent.bus.subscribe(subject, lambda _subject, data: reports.append(read(data)))
            command = MigrateCommand(
                command_id="c",
                model="m",
                epoch=1,
                source=MigrationEndpoint("p", "a", await incarnation(agent, "a")),
                destination=MigrationEndpoint("p", "b", await incarnation(agent, "b")),
                trigger="decode_load",
                rule="NUM_REQ",
                order="LR",
                value=1,
                ttl_ms=60_000,
            )
            answer = await agent.bus.request(agent.subjects.migrate("m", "p", "a"), encode(command), 30)
            assert msgspec.json.decode(answer, type=MigrateReply).accepted
            (request,) = llumlet.requests
            assert (request.src_engine_id, request.dst_engine_id, request.num_reqs) == ("a", "b", 1)
            for at_ms, leaving in ((2, 1), (3, 0)):
                store.store("a", at_ms, llumlet.port, num_migrate_out_reqs=leaving, num_waiting_requests=at_ms)
                await reads(agent, "a", at_ms)
            await until(lambda: any(one.phase == "done" and one.moved == 1 for one in reports), "the end is reported")

    asyncio.run(scenario())
