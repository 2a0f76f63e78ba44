"""Sidecar process on real servers, with simulated engines behind a real API."""

import asyncio
import os
import select
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest

from loadline.adapters.parent_death import ending_with_parent
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.rig.server_processes import free_port
from tests.support.client_rig import Agent, agent_at
from tests.waiting import until

pytestmark = pytest.mark.process

ENGINE = [sys.executable, "-m", "loadline.demo.openai.server", "--model", "m", "--speed", "4"]
TOKENS = 300


@contextmanager
def process(command: list[str]) -> "Iterator[subprocess.Popen[bytes]]":
    child = subprocess.Popen(ending_with_parent(command))
    try:
        yield child
    finally:
        child.kill()
        child.wait()


class Servers:
    """Where everything is."""

    def __init__(self, nats_url: str, etcd_url: str, name: str) -> None:
        self.port = free_port()
        self.engine = [*ENGINE, "--port", str(self.port)]
        self.servers = nats_url, etcd_url, name
        self.url = f"http://127.0.0.1:{self.port}"

    def sidecar(self, *more: str) -> list[str]:
        nats_url, etcd_url, name = self.servers
        where = ["--nats", nats_url, "--etcd", etcd_url, "--root", name, "--namespace", name]
        which = ["--url", self.url, "--pool", "p", "--worker", "w", "--report-traffic"]
        return [sys.executable, "-m", "loadline", "sidecar", *where, *which, *more]

    @asynccontextmanager
    async def agent(self) -> AsyncIterator[Agent]:
        async with agent_at(*self.servers) as agent:
            yield agent

    async def stream(self) -> bool:
        """Return True if a request ended with all of its tokens."""
        body = {"model": "m", "prompt": "a b c", "max_tokens": TOKENS, "stream": True, "ignore_eos": True}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/v1/completions", json=body) as answer,
        ):
            lines = [line async for line in answer.content if line.startswith(b"data: ")]
        return lines[-1] == b"data: [DONE]\n" and any(b'"length"' in line for line in lines)


async def registered(agent: Agent, state: str) -> WorkerRecord:
    await agent.state_becomes(state)
    entry = await agent.entry()
    assert entry is not None
    return msgspec.json.decode(entry.value, type=WorkerRecord)


def test_an_engine_that_the_sidecar_started_finishes_its_streams_before_it_ends(
    nats_url: str, etcd_url: str, own_name: str
) -> None:
    servers = Servers(nats_url, etcd_url, own_name)

    async def scenario() -> None:
        async with servers.agent() as agent:
            with process(servers.sidecar("--", *servers.engine, "--max-batch-requests", "8")) as sidecar:
                record = await registered(agent, "ready")
                assert (record.model, record.base_url) == ("m", servers.url)
                assert record.kv_blocks_total
                streaming = asyncio.create_task(servers.stream())
                await until(lambda: any(load.samples[0].running_requests for load in agent.loads))
                assert (await agent.drain("aggregated", incarnation=record.incarnation)).accepted
                await agent.state_becomes("draining")
                assert await streaming
                await until(lambda: agent.drained)
                await agent.state_becomes(None)
                await until(lambda: sidecar.poll() is not None)
                assert sidecar.returncode == 0
            with pytest.raises(aiohttp.ClientConnectorError):
                await servers.stream()
        traffic = [event.sample for event in agent.traffic]
        assert (sum(sample.arrivals for sample in traffic), sum(sample.completed for sample in traffic)) == (1, 1)
        assert [sample.osl_tokens for sample in traffic if sample.completed] == [TOKENS]

    asyncio.run(scenario())


def test_an_engine_that_dies_and_comes_back_is_a_new_incarnation(nats_url: str, etcd_url: str, own_name: str) -> None:
    servers = Servers(nats_url, etcd_url, own_name)

    async def scenario() -> None:
        async with servers.agent() as agent:
            with process(servers.sidecar()) as sidecar:
                with process(servers.engine):
                    before = await registered(agent, "ready")
                    await agent.receives_load()
                away = await registered(agent, "starting")
                assert away.incarnation > before.incarnation
                with process(servers.engine) as engine:
                    back = await registered(agent, "ready")
                    assert back.incarnation >= away.incarnation
                    await until(lambda: any(load.incarnation == back.incarnation for load in agent.loads))
                    late = await agent.drain("aggregated", incarnation=before.incarnation)
                    assert not late.accepted, "the incarnation that is gone still answers"
                    sidecar.send_signal(signal.SIGTERM)
                    await until(lambda: sidecar.poll() is not None)
                    assert sidecar.returncode == 0
                    assert await agent.state() is None
                    assert engine.poll() is None, "it is not the sidecar's"

    asyncio.run(scenario())


def test_a_sidecar_ends_with_the_engine_that_it_started(nats_url: str, etcd_url: str, own_name: str) -> None:
    servers = Servers(nats_url, etcd_url, own_name)

    async def scenario() -> None:
        async with servers.agent() as agent:
            with process(servers.sidecar("--", "sh", "-c", "exit 3")) as sidecar:
                await until(lambda: sidecar.poll() is not None)
                assert sidecar.returncode == 1
            assert await agent.entry() is None

    asyncio.run(scenario())


def test_all_processes_of_an_engine_end_with_a_sidecar_that_is_killed(
    nats_url: str, etcd_url: str, own_name: str, tmp_path: Path
) -> None:
    servers = Servers(nats_url, etcd_url, own_name)
    started = tmp_path / "pid"
    engine = f"trap '' TERM; sleep 1000 & echo $! > {started}.new; mv {started}.new {started}; wait"

    async def scenario() -> None:
        with process(servers.sidecar("--", "sh", "-c", engine)) as sidecar:
            await until(started.exists)
            core = os.pidfd_open(int(started.read_text()))
            assert not ended(core)
            sidecar.kill()
            await until(lambda: ended(core), "the child of the engine ends")

    asyncio.run(scenario())


def test_an_engine_that_others_started_outlives_a_sidecar_that_is_killed(
    nats_url: str, etcd_url: str, own_name: str
) -> None:
    servers = Servers(nats_url, etcd_url, own_name)

    async def scenario() -> None:
        async with servers.agent() as agent:
            with process(servers.engine) as engine:
                with process(servers.sidecar()):
                    before = await registered(agent, "ready")
                with process(servers.sidecar()):
                    await until(lambda: any(load.incarnation > before.incarnation for load in agent.loads))
                assert engine.poll() is None

    asyncio.run(scenario())


def ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], 0)[0])
