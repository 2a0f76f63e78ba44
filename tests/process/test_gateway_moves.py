"""Streams that move between engines while a real gateway relays them: 200 of them, and one engine is killed."""

import asyncio
import itertools
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest

from loadline.core.vocabulary.migrations import MigrationEndpoint
from loadline.core.vocabulary.samples import WorkerSample
from loadline.wire.codec import encode
from loadline.wire.messages import MigrateCommand, MigrateReply, MigrationReport
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


async def move(agent: Agent, requests: int, source: str, destination: str, *, number: int) -> int:
    """Command a migration as an agent does; return the number of requests that the source has selected."""
    command = MigrateCommand(
        command_id=f"c{number}",
        model=MODEL,
        source=MigrationEndpoint("all", source, 1),
        destination=MigrationEndpoint("all", destination, 1),
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


async def has_workers(session: aiohttp.ClientSession, url: str, count: int) -> bool:
    """Return True if a gateway has a number of workers to which it sends requests."""
    async with session.get(f"{url}/metrics") as answer:
        return f'loadline_gateway_workers{{model="tiny"}} {count:.1f}' in await answer.text()


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
            await until_async(lambda: has_workers(session, url, 2), "it knows both")
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


CONFIG = """
agent = {{ name = "agent", root = "{name}", namespace = "{name}", reload_interval_ms = 0 }}
nats = {{ servers = ["{nats_url}"] }}
etcd = {{ endpoints = ["{etcd_url}"] }}
http = {{ port = 0 }}
[[models]]
name = "tiny"
planner = "static"
static.replicas = {{ all = 2 }}
pools = [{{ name = "all", role = "aggregated", replicas_max = 4 }}]
migration = {{ enabled = true, policies = [] }}
"""


@asynccontextmanager
async def loadline(*arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    child = await asyncio.create_subprocess_exec(sys.executable, "-m", "loadline", *arguments)
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.wait()


def test_an_operators_drain_moves_the_streams_of_a_plain_engine(
    nats_url: str, etcd_url: str, own_name: str, tmp_path: Path
) -> None:
    config = tmp_path / "loadline.toml"
    config.write_text(CONFIG.format(name=own_name, nats_url=nats_url, etcd_url=etcd_url), "utf-8")

    async def scenario() -> None:
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            agent = await enter(agent_at(nats_url, etcd_url, own_name))
            engines = [await enter(FakeEngine(pace=Gate(20))), await enter(FakeEngine())]
            session = await enter(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
            url = await enter(gateway_at(nats_url, etcd_url, own_name))

            async def sidecar(number: int) -> None:
                await enter(
                    loadline(
                        *("sidecar", "--config", str(config), "--url", engines[number].address),
                        *("--pool", "all", "--worker", f"w{number}"),
                    )
                )

            await sidecar(0)
            streams = [asyncio.create_task(ask(session, url, number)) for number in range(40)]
            await until(lambda: engines[0].open == 40, "all run")
            await sidecar(1)
            await enter(loadline("run", "--config", str(config)))

            def last(worker: str) -> WorkerSample | None:
                return next((one.samples[0] for one in reversed(agent.loads) if one.worker == worker), None)

            await until(lambda: (sample := last("w0")) and sample.unmovable_requests == 0, "all can move")
            await until(lambda: last("w1"), "there is a destination")

            async def drained() -> bool:
                async with loadline("drain", "--config", str(config), MODEL, "all", "w0") as ordered:
                    return await ordered.wait() == 0

            await until_async(drained, "the agent leads and drains")
            await until(lambda: engines[0].open == 0, "its streams have moved")
            for number, got in enumerate(await asyncio.gather(*streams)):
                assert got.text == greedy(body(number)[1], TOKENS, ignore_eos=True)[0]

    asyncio.run(scenario())
