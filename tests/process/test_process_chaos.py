"""Faults on real processes: a short run, the plan of its faults, and the proxy that disturbs connections."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from loadline.cli.exit_codes import INTERRUPTED
from loadline.demo.openai.text import output_of, text_of, tokens_of
from tests.waiting import SCENARIO_S, until, until_async, until_true
from tools.process_chaos import faults
from tools.process_chaos.checks import TAKEOVER_S
from tools.process_chaos.engines import Client
from tools.process_chaos.plan import CLUSTER_MEMBERS, KINDS, Fault, Plan, alone, draw
from tools.process_chaos.proxy import Proxy
from tools.process_chaos.run import SETTLE_S, run

pytestmark = pytest.mark.process

LONG_S = 600.0


def test_a_seed_gives_every_kind_of_fault_and_always_the_same_plan() -> None:
    single, cluster = draw(4, LONG_S, SETTLE_S), draw(5, LONG_S, SETTLE_S)
    assert KINDS.keys() == faults.FAULTS.keys()
    assert {fault.kind for fault in cluster.faults} == KINDS.keys() - {"change_version"}
    assert {fault.kind for fault in single.faults} == KINDS.keys() - {"change_version", "move_etcd_leader"}
    assert (single.members, cluster.members) == (1, CLUSTER_MEMBERS)
    assert single == draw(4, LONG_S, SETTLE_S)
    assert single != draw(6, LONG_S, SETTLE_S)


def test_a_fault_is_alone_if_no_other_lasts_around_it() -> None:
    plan = [Fault(10.0, "kill_etcd", 2.0), Fault(13.0, "kill_leader", 0.0), Fault(30.0, "kill_leader", 0.0)]
    assert [alone(fault, plan, settle_s=5.0) for fault in plan] == [False, False, True]


def test_nothing_is_lost_when_processes_are_killed_frozen_and_cut_off(tmp_path: Path) -> None:
    lost = [
        Fault(8.0, "kill_leader", 0.0),
        Fault(17.0, "slow_leader_etcd", 3.0),
        Fault(17.5, "kill_standby", 0.0),
        Fault(18.0, "kill_engine", 0.0),
        Fault(18.0, "kill_etcd", 1.0),
        Fault(19.0, "kill_scaler", 0.0),
        Fault(19.0, "fill_journal_disk", 2.0),
        Fault(20.0, "kill_worker", 0.0),
        Fault(20.0, "garble_child", 0.0),
        Fault(20.0, "freeze_engine", 4.0),
        Fault(20.5, "kill_sidecar", 0.0),
        Fault(21.0, "stop_leader", 0.0),
    ]
    plan = Plan(seed=904, duration_s=24.0, members=CLUSTER_MEMBERS, secured=True, faults=lost)
    outcome = asyncio.run(run(plan, tmp_path, lambda _line: None, takeover_s=2 * TAKEOVER_S))
    assert outcome.violations == []
    assert [kind for kind, _ in outcome.takeovers] == ["kill_leader"]
    assert outcome.requests > 0
    assert outcome.answers > 0


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda text: text, ""),
        (lambda text: text[:-1], "is wrong"),
        (lambda text: text[0] + text, "is wrong"),
        (lambda _text: None, "no end"),
    ],
)
def test_the_client_notices_answers_that_are_not_those_of_the_engines(
    spoil: Callable[[str], str | None], problem: str
) -> None:
    async def answer(request: web.Request) -> web.Response:
        body = await request.json()
        text = spoil(text_of(output_of(tokens_of(body["prompt"]), body["max_tokens"], None)[0]))
        choices = {"choices": [{"text": text or ""}]}
        if not body["stream"]:
            return web.json_response(choices if text is not None else {})
        end = "data: [DONE]\n\n" if text is not None else ""
        return web.Response(text=f"data: {json.dumps(choices)}\n\n{end}")

    async def scenario() -> Client:
        application = web.Application()
        application.router.add_post("/v1/completions", answer)
        async with TestServer(application) as server:
            client = Client(str(server.make_url("")).rstrip("/"), Random(1))
            await client.ask_until(lambda: client.answers + len(client.problems) >= 50)
            return client

    client = asyncio.run(scenario())
    assert bool(client.answers) == (not problem)
    assert any(problem in one for one in client.problems) == bool(problem)


def test_a_signal_ends_all_processes_that_a_soak_has_started(tmp_path: Path) -> None:
    directory, mark = tmp_path / "soak", f"LOADLINE_TEST_RUN={tmp_path}"

    def running() -> list[int]:
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it has ended, or belongs to another user
                if mark.encode() in folder.joinpath("environ").read_bytes().split(b"\0"):
                    found.append(int(folder.name))
        return found

    with (tmp_path / "soak.log").open("wb") as log:
        soak = subprocess.Popen(
            [sys.executable, "-m", "tools.process_chaos.soak", "--for", "600", "--directory", str(directory)],
            cwd=Path(__file__).parents[2],
            env=os.environ | {"LOADLINE_TEST_RUN": str(tmp_path)},
            stdout=log,
            stderr=log,
        )
    until_true(lambda: len(list((directory / "workers").glob("*.log"))) > 1, "workers have started")
    assert len(running()) > len(list((directory / "workers").glob("*.log"))), "workers, and what started them"
    soak.terminate()
    assert soak.wait(SCENARIO_S) == INTERRUPTED
    until_true(lambda: not running(), "all processes have ended")


def test_a_proxy_passes_bytes_on_holds_them_back_and_cuts_connections() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionResetError):
            while data := await reader.read(100):
                writer.write(data)
        await closed(writer)

    async def scenario() -> None:
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        proxy = Proxy(server.sockets[0].getsockname()[1])
        await proxy.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"first")
        assert await reader.readexactly(5) == b"first"
        proxy.set_state("frozen")
        writer.write(b"second")
        answer = asyncio.create_task(reader.readexactly(6))
        await asyncio.sleep(0.05)  # what passes a frozen proxy would arrive at once
        assert not answer.done()
        proxy.set_state("slow")
        assert await answer == b"second"
        proxy.set_state("cut")
        assert await reader.read() == b""
        await closed(writer)
        await until_async(lambda: _is_refused(proxy.port), "the proxy refuses connections")
        proxy.set_state("open")
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(b"third")
        assert await reader.readexactly(5) == b"third"
        await closed(writer)
        await proxy.close()
        server.close()
        await until(lambda: asyncio.all_tasks() == {asyncio.current_task()}, "the echoes have ended")

    asyncio.run(scenario())


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionResetError):
        await writer.wait_closed()


async def _is_refused(port: int) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        return await reader.read() == b""
    except ConnectionResetError:
        return True
    finally:
        await closed(writer)
