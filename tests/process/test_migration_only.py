"""Agent that only migrates next to one that only scales, as processes with real servers."""

import asyncio
import subprocess
import sys
from contextlib import suppress

import msgspec
import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from loadline.adapters.nats_bus import NatsBus
from loadline.config import NatsKnobs
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.core.vocabulary.status import AgentStatus
from loadline.errors import BusUnavailable
from loadline.rig.rig import ChildAgent, Rig
from loadline.wire.codec import encode
from loadline.wire.messages import DrainOrder, LoadReport, MigrateCommand, MigrateReply, OperatorReply
from loadline.wire.subjects import Subjects
from tests.support.agents import assert_replays
from tests.support.migrating_worker import migrating_worker
from tests.waiting import SCENARIO_S, until, until_async

pytestmark = pytest.mark.process

SUBJECTS = Subjects("loadline")
POOLS = 'pools = [{ name = "decode", role = "decode", replicas_max = 4 }]'
MODEL = f'[[models]]\nname = "m"\nplanner = "static"\n{POOLS}\n'
MOVES = """[models.migration]
enabled = true
decode_load_threshold = 0.9
load_balance_threshold = 0.2
"""
BLOCKS = 1_000
RECORDS = [
    WorkerRecord("m", "decode", name, "decode", 1, kv_blocks_total=BLOCKS, block_size_tokens=16)
    for name in ("d1", "d2")
]


def start(rig: Rig, name: str, models: str, only: str = "") -> ChildAgent:
    agent = rig.agent(rig.config(models, name, agent={"only": only}), name)
    agent.wait_ready()
    return agent


async def report(client: Client, sequence: int, hot: int) -> None:
    for record, used in zip(RECORDS, (hot, 100), strict=True):
        sample = WorkerSample(
            sequence,
            0,
            kv_blocks_used=used,
            waiting_requests=0,
            running_requests=10,
            migration_slots_in=2,
            migration_slots_out=2,
        )
        report = LoadReport("m", "decode", record.worker, 1, [sample])
        await client.publish(SUBJECTS.load("m", "decode", record.worker), encode(report))


def run_command(rig: Rig, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "loadline", *arguments, "--nats", rig.nats.url]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def status(rig: Rig, *arguments: str) -> AgentStatus:
    printed = run_command(rig, "status", "--json", *arguments)
    assert printed.returncode == 0, printed.stderr
    return msgspec.json.decode(printed.stdout, type=AgentStatus)


def test_two_agents_lead_side_by_side_with_separate_tasks(rig: Rig) -> None:
    scales = start(rig, "scales", MODEL)
    moves = start(rig, "moves", MODEL + MOVES, only="migration")
    asyncio.run(rig.register(RECORDS))
    commands: list[MigrateCommand] = []

    async def accept(message: Msg) -> None:
        command = msgspec.json.decode(message.data, type=MigrateCommand)
        commands.append(command)
        await message.respond(encode(MigrateReply(command.command_id, accepted=True, requests=1, tokens=500)))

    async def scenario() -> None:
        client = await nats.connect(rig.nats.url)
        await client.subscribe(SUBJECTS.by_name("migrate", "d1"), cb=accept)
        sequence = 0

        async def overloaded() -> bool:
            nonlocal sequence
            sequence += 1
            await report(client, sequence, hot=BLOCKS - 10)
            await asyncio.sleep(0.1)
            return bool(commands)

        async with asyncio.timeout(SCENARIO_S):
            while not await overloaded():
                pass
        await client.close()

    asyncio.run(scenario())
    assert {(one.source.worker, one.destination.worker, one.trigger) for one in commands} == {
        ("d1", "d2", "decode_load")
    }
    mover, scaler = status(rig, "--only", "migration"), status(rig)
    assert (mover.agent, mover.leading, scaler.agent, scaler.leading) == ("moves", True, "scales", True)
    assert scaler.models[0].migrations is None
    found = mover.models[0].migrations
    assert found is not None
    assert any(key.startswith("decode_load:") for key in msgspec.to_builtins(found)["commands"])
    why = run_command(rig, "explain", "--only", "migration")
    assert "d1" in why.stdout
    assert "d2" in why.stdout
    code, text = moves.get("/metrics")
    assert code == 200
    assert "loadline_migrations_total{" in text
    assert moves.get("/healthz")[0] == moves.get("/readyz")[0] == 200
    output = run_command(rig, "status", "--only", "migration").stdout
    assert "m (migration only, default, priority 100)" in output
    assert not [word for word in ("planner", "desired", "pending", "scaled to zero", "missing") if word in output]
    assert "desired" in run_command(rig, "status").stdout
    refused = run_command(rig, "drain", "m", "decode", "d1", "--only", "migration")  # it drains no worker
    assert refused.returncode == 2
    assert "unrecognized arguments: --only" in refused.stderr
    assert moves.stop() == 0
    assert scales.stop() == 0
    assert_replays(rig, "moves")


def test_a_worker_drained_by_one_agent_is_evacuated_by_the_other(rig: Rig) -> None:
    its: dict[str, object] = {"root": "both", "namespace": "both"}
    model = MODEL.replace('name = "decode", role', 'name = "p", role')
    agents = [
        rig.agent(rig.config(model, "scales", agent=its), "scales"),
        rig.agent(rig.config(model + MOVES, "moves", agent={**its, "only": "migration"}), "moves"),
    ]

    async def scenario() -> None:
        bus = NatsBus(NatsKnobs(servers=(rig.nats.url,)), name="operator")
        await bus.connect(lambda _connected: None)
        async with (
            migrating_worker(rig.nats.url, rig.etcd.url, "both", "w1") as first,
            migrating_worker(rig.nats.url, rig.etcd.url, "both", "w2") as second,
        ):
            first.copied.set()

            async def accepted() -> bool:
                order = encode(DrainOrder("m", "p", "w1", "a test"))
                with suppress(BusUnavailable):
                    reply = await bus.request("both.v1.api.drain", order, 2)
                    return msgspec.json.decode(reply, type=OperatorReply).accepted
                return False

            await until_async(accepted, "the worker drains")
            await until(lambda: len(second.held) == 4 and not first.held, "all is moved")
        await bus.close()

    asyncio.run(scenario())
    for agent in agents:
        assert agent.stop() == 0
    for name in ("scales", "moves"):
        assert_replays(rig, name)


def test_a_standby_takes_over(rig: Rig) -> None:
    first = start(rig, "first", MODEL + MOVES, only="migration")
    first.wait_leading()
    second = start(rig, "second", MODEL + MOVES, only="migration")
    assert status(rig, "--only", "migration").agent == "first"
    answer = run_command(rig, "status")
    assert answer.returncode == 1
    assert answer.stderr.endswith("Start one, or add --only migration if only that agent runs.\n")
    assert run_command(rig, "explain").stderr.endswith(
        "Is an agent running and leading? Check with `loadline status`.\n"
    )
    assert first.stop() == 0

    async def scenario() -> None:
        await until(lambda: status(rig, "--only", "migration").agent == "second", "a takeover")

    asyncio.run(scenario())
    assert status(rig, "--only", "migration").leading
    assert second.stop() == 0
