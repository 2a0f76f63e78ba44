"""The source of Dynamo's figures as a process, with real servers, real ZeroMQ sockets and broken publishers."""

import asyncio
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest
import zmq
import zmq.asyncio

from loadline.adapters.nats_bus import NatsBus
from loadline.config import NatsKnobs
from loadline.core.vocabulary.samples import WorkerSample
from loadline.errors import BusUnavailable
from loadline.ports import Write
from loadline.rig.server_processes import EtcdServer, NatsServer, free_port
from tests.support.client_rig import Agent
from tests.support.sources import envelope, forward_pass, framed, idle_pass, source_at
from tests.waiting import until, until_async

pytestmark = pytest.mark.process

POOL = '[[pools]]\nmodel = "m"\nname = "p"\nrole = "decode"\ncomponent = "backend"\n'


class Engines:
    """Publisher of ZeroMQ messages, again and again."""

    def __init__(self) -> None:
        self.url = f"tcp://127.0.0.1:{free_port()}"
        self.messages: dict[str, list[bytes]] = {}
        self._context = zmq.asyncio.Context()

    @asynccontextmanager
    async def publishing(self) -> AsyncIterator[None]:
        socket = self._context.socket(zmq.PUB)
        socket.bind(self.url)

        async def publish() -> None:
            while True:
                for frames in list(self.messages.values()):
                    await socket.send_multipart(frames)
                await asyncio.sleep(0.02)

        task = asyncio.create_task(publish())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait({task})
            self._context.destroy(linger=0)


def newest(agent: Agent, worker: str) -> WorkerSample | None:
    """Return the newest sample of a worker, with what differs between two equal ones removed."""
    samples = [sample for report in agent.loads if report.worker == worker for sample in report.samples]
    return msgspec.structs.replace(samples[-1], sequence=0, timestamp_ms=0) if samples else None


async def is_silent(agent: Agent) -> bool:
    """Return True if nothing is reported for six report intervals."""
    count, later_s = len(agent.loads), time.monotonic() + 0.3
    await until(lambda: time.monotonic() > later_s)
    return len(agent.loads) == count


async def registered(agent: Agent, worker: str) -> bool:
    return await agent.entry(worker) is not None


def test_records_become_load_and_garbage_harms_nobody(
    tmp_path: Path, nats_url: str, etcd_url: str, own_name: str
) -> None:
    async def scenario() -> None:
        engines, found, broken = Engines(), Engines(), Engines()
        config = f'endpoints = ["{engines.url}", "{broken.url}"]\n'
        engines.messages = {"a": framed(forward_pass("a")), "b": framed(idle_pass("b"))}
        broken.messages = {
            "noise": [b"\xff" * 900, b"", b"\xc1"],
            "many": [b"x"] * 40,
            "large": [b"", bytes(8), bytes(100_000)],
            "other": framed({"events": []}, topic="kv-events"),
        }
        found.messages = {"c": framed(forward_pass("c"))}
        scope = f'dynamo_namespace = "{own_name}"\n'
        discovery = f'[discovery]\nendpoints = ["{etcd_url}"]\n'
        config = f"lost_after_s = 2\nlease_ttl_s = 5\n{POOL}{scope}{config}{discovery}"
        async with (
            engines.publishing(),
            found.publishing(),
            broken.publishing(),
            source_at(tmp_path, (nats_url, etcd_url), own_name, "dynamo", config) as (agent, process),
        ):
            await until(lambda: newest(agent, "a") and newest(agent, "b"), "samples of both workers")
            busy, idle = newest(agent, "a"), newest(agent, "b")
            assert busy is not None
            assert idle is not None
            assert (busy.waiting_requests, busy.running_requests, busy.decode_tokens) == (4, 5, 4_000)
            assert (idle.waiting_requests, idle.running_requests) == (0, 0)
            await until_async(lambda: registered(agent, "b"), "registered")
            del engines.messages["b"]  # it dies, while another one is heard
            await until_async(lambda: _none(agent, "b"), "a dead worker is removed")
            assert await registered(agent, "a")
            key = f"v1/event_channels/{own_name}/backend/forward-pass-metrics/7"
            channel = {
                "topic": "forward-pass-metrics",
                "namespace": own_name,
                "component": "backend",
                "transport": {"kind": "Zmq", "config": {"endpoint": found.url}},
            }
            await agent.store.commit([], [Write(key, msgspec.json.encode(channel))])
            await until_async(lambda: registered(agent, "c"), "a discovered worker")
            await agent.store.commit([], [Write(key, None)])
            await until_async(lambda: _none(agent, "c"), "a worker that left discovery is removed at once")
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
            assert await registered(agent, "a"), "a worker outlives the source"
        log = (tmp_path / "dynamo.log").read_text("utf-8")
        assert "record_refused" in log
        assert "Traceback" not in log

    asyncio.run(scenario())


async def _none(agent: Agent, worker: str) -> bool:
    return not await registered(agent, worker)


def test_the_nats_plane_survives_its_server_and_reports_nothing_meanwhile(
    tmp_path: Path, etcd_url: str, nats_url: str, own_name: str, private_nats: Callable[[], NatsServer]
) -> None:
    async def scenario() -> None:
        plane = private_nats()
        url = plane.url
        subject = "namespace.dynamo.component.backend.endpoint.generate.forward-pass-metrics"
        bus = NatsBus(NatsKnobs(servers=(url,)), name="dynamo")
        await bus.connect(lambda _connected: None)

        async def publish() -> None:
            while True:
                with suppress(BusUnavailable):
                    await bus.publish(subject, envelope(forward_pass("a")))
                    await bus.publish(subject, b"\xffnoise")
                await asyncio.sleep(0.02)

        task = asyncio.create_task(publish())
        config = f'plane = "nats"\n{POOL}\n[dynamo_nats]\nservers = ["{url}"]\n'
        async with source_at(tmp_path, (nats_url, etcd_url), own_name, "dynamo", config) as (agent, _process):
            await until(lambda: newest(agent, "a"), "a sample")
            plane.kill()
            await until(lambda: not bus.connected, "the plane is away")
            await until_async(lambda: is_silent(agent), "silence is not zero")
            count = len(agent.loads)
            assert await registered(agent, "a"), "an outage removes nobody"
            await plane.start_async()
            await until(lambda: len(agent.loads) > count, "samples again")
        task.cancel()
        await asyncio.wait({task})
        await bus.close()

    asyncio.run(scenario())


def test_the_agents_servers_may_go_away_and_come_back(
    tmp_path: Path,
    own_name: str,
    private_nats: Callable[[], NatsServer],
    private_etcd: Callable[[], EtcdServer],
) -> None:
    async def scenario() -> None:
        engines, nats, etcd = Engines(), private_nats(), private_etcd()
        engines.messages = {"a": framed(forward_pass("a"))}
        config = f'lease_ttl_s = 2\n{POOL}endpoints = ["{engines.url}"]\n'
        log = tmp_path / "dynamo.log"
        async with (
            engines.publishing(),
            source_at(tmp_path, (nats.url, etcd.url), own_name, "dynamo", config) as (agent, _process),
        ):
            await until(lambda: newest(agent, "a"), "a sample")
            await until_async(lambda: registered(agent, "a"), "registered")
            nats.kill()
            etcd.kill()
            await until(lambda: "registration_retried" in log.read_text("utf-8"), "both are away")
            await nats.start_async()
            await etcd.start_async()
            agent.loads.clear()
            await until(lambda: newest(agent, "a"), "samples again")
            await until_async(lambda: registered(agent, "a"), "registered again")
        assert "Traceback" not in log.read_text("utf-8")

    asyncio.run(scenario())
