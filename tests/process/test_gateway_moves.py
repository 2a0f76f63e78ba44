"""Streams that move between engines while a real gateway relays them: 200 of them, and one engine is killed."""

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import aiohttp
import msgspec
import pytest

from loadline.core.vocabulary.migrations import MigrationEndpoint
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.wire.codec import encode
from loadline.wire.messages import DrainCommand, DrainReply, MigrateCommand, MigrateReply, MigrationReport
from tests.process.test_gateway import gateway_at
from tests.support.client_rig import Agent, agent_at
from tests.support.fake_engine import FakeEngine, Gate, greedy
from tests.support.gateway_rig import MODEL, Streamed, stream_from
from tests.support.stream_worker import stream_worker
from tests.waiting import until, until_async

pytestmark = pytest.mark.process

STREAMS = 200
TOKENS = 60


def body(number: int) -> tuple[str, str]:
    """Return path and prompt of a stream."""
    return ("/v1/chat/completions", "/v1/completions")[number % 2], f"prompt {number}"


async def ask(session: aiohttp.ClientSession, url: str, number: int) -> Streamed:
    path, text = body(number)
    prompt = {"messages": [{"role": "user", "content": text}]} if "chat" in path else {"prompt": text}
    return await stream_from(session, url + path, **prompt, max_tokens=TOKENS, ignore_eos=True)


async def move(
    agent: Agent, requests: int, source: str, destination: str, *, number: int, incarnations: tuple[int, int] = (1, 1)
) -> int:
    """Command a migration as an agent does; return the number of requests that the source has selected."""
    command = MigrateCommand(
        command_id=f"c{number}",
        model=MODEL,
        source=MigrationEndpoint("all", source, incarnations[0]),
        destination=MigrationEndpoint("all", destination, incarnations[1]),
        trigger="test",
        epoch=1,
        rule="NUM_REQ",
        order="FCR",
        value=requests,
        requests_max=requests,
        ttl_ms=20_000,
    )
    reply = await agent.bus.request(agent.subjects.migrate(MODEL, "all", source), encode(command), 5)
    answered = msgspec.json.decode(reply, type=MigrateReply)
    return answered.requests if answered.accepted else 0


def test_streams_move_and_an_engine_dies_and_nobody_notices(nats_url: str, etcd_url: str, own_name: str) -> None:
    async def scenario() -> None:
        reports: dict[str, MigrationReport] = {}

        def receive(_subject: str, payload: bytes) -> None:
            report = msgspec.json.decode(payload, type=MigrationReport)
            reports[report.command_id] = report

        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            agent = await enter(agent_at(nats_url, etcd_url, own_name))
            await agent.bus.subscribe(agent.subjects.all_of("migration"), receive)
            gates = [Gate(20), Gate(25), Gate(10)]
            engines = [await enter(FakeEngine(pace=gate)) for gate in gates]
            session = await enter(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
            url = await enter(gateway_at(nats_url, etcd_url, own_name))
            worker = [
                await enter(stream_worker(nats_url, etcd_url, own_name, f"w{number}", engine))
                for number, engine in enumerate(engines[:2])
            ]
            streams = [asyncio.create_task(ask(session, url, number)) for number in range(STREAMS)]
            await until(lambda: [one.open for one in engines[:2]] == [STREAMS // 2] * 2, "half of them each")
            listed = worker[0].streams.migratable_requests
            await until(lambda: sum(one.output_tokens >= 20 for one in listed()) == STREAMS // 2, "all are reported")
            await enter(stream_worker(nats_url, etcd_url, own_name, "w2", engines[2]))
            moved, numbers = 0, itertools.count()
            while moved < STREAMS // 2:
                selected = await move(agent, STREAMS, "w0", "w2", number=next(numbers))
                moved += selected
                await asyncio.sleep(0 if selected else 0.05)
            await until(lambda: engines[0].open == 0, "the source is empty")
            await until(lambda: sum(one.moved for one in reports.values()) == STREAMS // 2, "all are reported moved")
            assert sum(one.failed for one in reports.values()) == 0
            for gate in gates:
                gate.advance(gate.at + 15)
            await engines[1].kill()
            for gate in gates:
                gate.advance()
            for number, got in enumerate(await asyncio.gather(*streams)):
                assert got.text == greedy(body(number)[1], TOKENS, ignore_eos=True)[0]
                assert got.complete
            assert len(engines[2].bodies) >= STREAMS // 2

    asyncio.run(scenario())


@asynccontextmanager
async def sidecar_at(
    nats_url: str, etcd_url: str, name: str, worker: str, engine: FakeEngine
) -> AsyncIterator[asyncio.subprocess.Process]:
    servers = ("--nats", nats_url, "--etcd", etcd_url, "--root", name, "--namespace", name)
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadline", "sidecar", "--url", engine.address, "--pool", "all", "--worker", worker),
        *servers,
    )
    try:
        yield child
    finally:
        child.kill()
        await child.wait()


def test_a_drained_sidecar_has_its_streams_moved(nats_url: str, etcd_url: str, own_name: str) -> None:
    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            agent = await enter(agent_at(nats_url, etcd_url, own_name))
            gate = Gate(20)
            engines = [await enter(FakeEngine(pace=gate)), await enter(FakeEngine())]
            session = await enter(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))

            async def record(worker: str) -> WorkerRecord:
                found: list[WorkerRecord] = []

                async def ready() -> bool:
                    entry = await agent.store.get(agent.keys.worker(MODEL, "all", worker))
                    found[:] = [] if entry is None else [msgspec.json.decode(entry.value, type=WorkerRecord)]
                    return bool(found) and found[0].state == "ready"

                await until_async(ready, f"{worker} is ready")
                return found[0]

            await enter(sidecar_at(nats_url, etcd_url, own_name, "w0", engines[0]))
            source = await record("w0")
            url = await enter(gateway_at(nats_url, etcd_url, own_name))
            streams = [asyncio.create_task(ask(session, url, number)) for number in range(40)]
            await until(lambda: engines[0].open == 40, "all run")
            await enter(sidecar_at(nats_url, etcd_url, own_name, "w1", engines[1]))
            destination = await record("w1")
            movable = [(40, 0)]
            await until(
                lambda: (
                    [
                        (one.samples[0].running_requests, one.samples[0].unmovable_requests)
                        for one in agent.loads
                        if one.worker == "w0"
                    ][-1:]
                    == movable
                ),
                "all can move",
            )
            command = DrainCommand("d", MODEL, "all", "w0", "aggregated", source.incarnation, 1, 60_000)
            drain = agent.subjects.drain(MODEL, "all", "w0")
            assert msgspec.json.decode(await agent.bus.request(drain, encode(command), 5), type=DrainReply).accepted
            incarnations = source.incarnation, destination.incarnation
            assert await move(agent, 40, "w0", "w1", number=1, incarnations=incarnations) == 40
            await until(lambda: agent.drained, "the worker is drained")
            for number, got in enumerate(await asyncio.gather(*streams)):
                assert got.text == greedy(body(number)[1], TOKENS, ignore_eos=True)[0]

    asyncio.run(scenario())
