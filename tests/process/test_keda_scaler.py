"""KEDA scaler as a process, with a real agent, NATS and KEDA's calls over gRPC."""

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from loadline.adapters import grpc_server
from loadline.client.frontend import FrontendClient
from loadline.config import NatsKnobs
from loadline.rig.rig import Rig
from loadline.rig.server_processes import free_port
from tests.process.test_sleep import SCALE_TO_ZERO
from tests.support.agents import MODEL, AgentFleet, config, fleet
from tests.support.keda import Keda, Pushes, keda_at
from tests.unit.scalers.test_keda import serving
from tests.waiting import SCENARIO_S, until, until_async

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "loadline", "scaler", "keda"]
DECODE = {"model": MODEL, "pool": "decode"}


@contextmanager
def keda_scaler(rig: Rig, port: int) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the scaler; kill it at the end."""
    file = rig.directory / "keda.toml"
    file.write_text(
        f'models = ["{MODEL}"]\nport = {port}\nhold_ms = 3000\n[nats]\nservers = ["{rig.nats.url}"]\n', "utf-8"
    )
    process = subprocess.Popen([*COMMAND, "--config", str(file)])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


async def code_of(keda: Keda) -> str:
    """Return the status of a call for the metric."""
    try:
        await keda.value(**DECODE)
    except grpc.aio.AioRpcError as error:
        return str(error.code().name)
    return "OK"


def decision_state(agent_fleet: AgentFleet) -> str:
    status = agent_fleet.observer.leader()
    decision = status.models[0].decision if status else None
    return decision.state if decision else ""


def test_the_first_request_starts_the_first_worker(tmp_path: Path) -> None:
    async def scenario(rig: Rig, scaler: "subprocess.Popen[bytes]", port: int) -> None:
        nats = NatsKnobs(servers=(rig.nats.url,))
        async with (
            asyncio.timeout(SCENARIO_S),
            fleet(rig) as agent_fleet,
            FrontendClient(MODEL, "f", nats=nats, interval_ms=200) as frontend,
            keda_at(port) as keda,
        ):
            frontend.in_flight = 1
            await agent_fleet.add("decode", "d1")
            await agent_fleet.add("prefill", "p1")
            for worker in agent_fleet.workers.values():
                worker.running = 0
            await until(lambda: agent_fleet.observer.desired() == {"decode": 1, "prefill": 1})
            frontend.in_flight = 0
            await until(lambda: agent_fleet.observer.desired() == {"decode": 0, "prefill": 0})

            async def at_zero() -> bool:
                return await code_of(keda) == "OK" and await keda.value(**DECODE) == 0

            await until_async(at_zero, "KEDA reads 0")
            pushes = Pushes(keda.call("StreamIsActive", **DECODE))
            assert await keda.value(**DECODE) == 0
            assert pushes.received == []
            assert not any(worker.drain for worker in agent_fleet.workers.values())  # KEDA selects the pods

            frontend.queued = 1
            frontend.arrived(100)
            await frontend.report_now()
            await until(lambda: pushes.received == [True])
            assert await keda.value(**DECODE) == 1
            await until(lambda: decision_state(agent_fleet) == "applied", "the ready workers complete the decision")

            rig.nats.kill()
            assert await keda.value(**DECODE) == 1  # kept for hold_ms

            async def unavailable() -> bool:
                return await code_of(keda) == "UNAVAILABLE"

            await until_async(unavailable, "the count is not kept for ever")
            rig.nats.start()

            async def available() -> bool:
                return await code_of(keda) == "OK"

            await until_async(available, "the count is back")
            assert pushes.received == [True]  # the stream has survived
            scaler.terminate()
            await pushes.task
            assert await pushes.call.code() is grpc.StatusCode.OK
            assert await asyncio.to_thread(scaler.wait, 60) == 0

    with Rig(tmp_path) as rig:
        agent = rig.agent(config(rig, "a", SCALE_TO_ZERO), "a")
        agent.wait_ready()
        port = free_port()
        with keda_scaler(rig, port) as scaler:
            asyncio.run(scenario(rig, scaler, port))
        assert agent.stop() == 0


FROZEN_PEER = """
import asyncio, sys
from tests.support.keda import keda_at

async def stream(port):
    async with keda_at(port) as keda:
        call = keda.call("StreamIsActive", model="m", pool="decode")
        await call.read()
        print("open", flush=True)
        await call.read()

asyncio.run(stream(int(sys.argv[1])))
"""


def test_the_stream_of_a_frozen_peer_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel still acknowledges packets, so only pings find it."""
    quick = {"grpc.keepalive_time_ms": 1_000, "grpc.http2.ping_timeout_ms": 1_000}
    assert quick.keys() <= dict(grpc_server._OPTIONS).keys()
    monkeypatch.setattr(grpc_server, "_OPTIONS", tuple({**dict(grpc_server._OPTIONS), **quick}.items()))

    async def scenario() -> None:
        async with asyncio.timeout(SCENARIO_S), serving() as (scaler, _):
            scaler.decide(1)
            before = len(asyncio.all_tasks())
            port = str(scaler.port)
            command = [sys.executable, "-c", FROZEN_PEER, port]
            peer = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE)
            try:
                assert peer.stdout is not None
                assert await peer.stdout.readline() == b"open\n"
                assert len(asyncio.all_tasks()) > before
                peer.send_signal(signal.SIGSTOP)
                await until(lambda: len(asyncio.all_tasks()) <= before, "its stream has ended")
            finally:
                peer.kill()
                await peer.wait()

    asyncio.run(scenario())


def test_a_port_in_use_is_explained(tmp_path: Path) -> None:
    file = tmp_path / "keda.toml"

    async def scenario() -> None:
        server = await asyncio.start_server(lambda _reader, _writer: None, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            file.write_text(f'models = ["m"]\nport = {port}\n', "utf-8")
            done = await asyncio.to_thread(
                subprocess.run,
                [*COMMAND, "--config", str(file)],
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 2
            assert re.search(
                rf"host: cannot listen on 127.0.0.1:{port}: .*\. Correct host, port or the files of tls\.", done.stderr
            )

    asyncio.run(scenario())
