"""Local scaler as a process with real children and a real nats-server."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from loadline.client.scaler import ScalerClient
from loadline.core.vocabulary.decisions import PoolTarget
from loadline.core.vocabulary.events import DecisionAnswered
from loadline.rig.server_processes import NatsServer
from loadline.scalers.local.config import LocalKnobs, LocalModelKnobs, LocalPoolKnobs
from loadline.scalers.local.launcher import ChildLauncher
from loadline.scalers.local.lifetimes import Lifetime
from loadline.scalers.local.pools import LocalWorker
from loadline.scalers.local.scaler import LocalScaler
from loadline.scalers.local.state_file import StateFile
from loadline.wire.codec import encode
from loadline.wire.messages import DrainReport
from loadline.wire.subjects import Subjects
from tests.support.decisions import decision
from tests.support.local_scaler import host
from tests.support.memory import MemoryBus
from tests.waiting import SCENARIO_S, until

pytestmark = pytest.mark.process

SHELL = ["sh", "-c", "sleep 600 & wait", "{worker}"]
"""Program that exits on SIGTERM and has a child process."""
STUBBORN = ["sh", "-c", "trap '' TERM; while :; do sleep 1; done", "{worker}"]
SIDECAR = [
    "sh",
    "-c",
    "trap '' TERM; setsid sh -c 'echo $$ > engine.pid; sleep 600' & while :; do sleep 1; done",
    "{worker}",
]
"""Program that must be killed and has started another one in a session of its own, as sidecars start engines."""


def test_workers_are_started_restarted_drained_and_stopped(tmp_path: Path, nats_url: str, own_name: str) -> None:
    async def scenario() -> None:
        async with host(tmp_path, nats_url, own_name, SHELL) as scaler_host:
            scaler_host.announce(1, 3)
            await scaler_host.wait_for_workers("p-1", "p-2", "p-3")
            assert (await scaler_host.answered(1, "done")).observed == {"p": 3}
            assert scaler_host.answers[0].status == "accepted"
            assert b"FROM_CONFIG=yes" in _environment(scaler_host.children()["p-1"])

            os.kill(scaler_host.children()["p-2"], signal.SIGKILL)
            await scaler_host.wait_for_workers("p-1", "p-3", "p-4")

            scaler_host.announce(2, 2, "p-1")
            await scaler_host.answered(2, "accepted")
            scaler_host.announce(3, 2, "p-1")
            # An answer with counts follows a turn of the scaler: in two of them nobody has drained.
            assert (await scaler_host.answered(3, "progress")).observed == {"p": 3}
            await scaler_host.wait_for_workers("p-1", "p-3", "p-4")
            report = DrainReport("m", "p", "p-1", time.time_ns() // 1_000_000)
            await scaler_host.bus.publish(scaler_host.subjects.drained("m", "p", "p-1"), encode(report))
            await scaler_host.wait_for_workers("p-3", "p-4")
            assert (await scaler_host.answered(3, "done")).observed == {"p": 2}

            scaler_host.process.send_signal(signal.SIGHUP)  # nothing is reloaded, and nothing ends
            scaler_host.announce(4, 3)
            await scaler_host.answered(4, "done")

            scaler_host.process.send_signal(signal.SIGTERM)
            await until(lambda: scaler_host.process.poll() is not None, "the scaler has ended")
            assert scaler_host.process.returncode == 0
            ended = scaler_host.lifetimes()
            assert {name: lifetime.reason for name, lifetime in ended.items()} == {
                "p-1": "drained",
                "p-2": "failed",
                "p-3": "stopped",
                "p-4": "stopped",
                "p-5": "stopped",
            }
            assert all(
                lifetime.gpus == 2 and lifetime.ended_at_ms > lifetime.started_at_ms for lifetime in ended.values()
            )

    asyncio.run(scenario())


def test_a_worker_that_does_not_drain_is_terminated_then_killed(tmp_path: Path, nats_url: str, own_name: str) -> None:
    async def scenario() -> None:
        async with host(tmp_path, nats_url, own_name, STUBBORN) as scaler_host:
            scaler_host.announce(1, 1)
            await scaler_host.wait_for_workers("p-1")
            scaler_host.announce(2, 0, "p-1", drain_ttl_ms=300)
            await scaler_host.wait_for_workers()
            await scaler_host.answered(2, "done")
            assert scaler_host.lifetimes()["p-1"].reason == "drain_deadline"

    asyncio.run(scenario())


def test_workers_that_ignore_sigterm_are_killed(tmp_path: Path, nats_url: str, own_name: str) -> None:
    async def scenario() -> None:
        async with host(tmp_path, nats_url, own_name, STUBBORN) as scaler_host:
            scaler_host.announce(1, 2)
            await scaler_host.wait_for_workers("p-1", "p-2")
            pids = list(scaler_host.children().values())
            scaler_host.process.send_signal(signal.SIGINT)
            await until(lambda: scaler_host.process.poll() is not None, "the scaler has ended")
            assert scaler_host.process.returncode == 0
            assert not any(_alive(pid) for pid in pids)

    asyncio.run(scenario())


def test_an_engine_does_not_outlive_a_sidecar_that_must_be_killed(
    tmp_path: Path, nats_url: str, own_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    async def scenario() -> None:
        async with host(tmp_path, nats_url, own_name, SIDECAR) as scaler_host:
            scaler_host.announce(1, 1)
            written = tmp_path / "engine.pid"
            await until(lambda: written.exists() and written.read_text(), "the engine runs")
            engine = int(written.read_text())
            assert os.getpgid(engine) == engine
            scaler_host.announce(2, 0, "p-1", drain_ttl_ms=300)
            await scaler_host.answered(2, "done")
            await until(lambda: not _alive(engine), "the engine has ended")

    asyncio.run(scenario())


def test_no_worker_outlives_a_scaler_that_is_killed(tmp_path: Path, nats_url: str, own_name: str) -> None:
    async def scenario() -> None:
        async with host(tmp_path, nats_url, own_name, STUBBORN) as scaler_host:
            scaler_host.announce(1, 2)
            await scaler_host.wait_for_workers("p-1", "p-2")
            pids = list(scaler_host.children().values())
            scaler_host.process.kill()
            scaler_host.process.wait()
            await until(lambda: not any(_alive(pid) for pid in pids), "its workers have ended")

    asyncio.run(scenario())


def test_a_state_file_lets_workers_outlive_a_scaler_until_one_ends_them(
    tmp_path: Path, nats_url: str, own_name: str
) -> None:
    async def scenario() -> None:
        async with host(tmp_path, nats_url, own_name, SHELL, f'state_file = "{tmp_path}/state.json"') as scaler_host:
            scaler_host.announce(1, 2)
            await scaler_host.wait_for_workers("p-1", "p-2")
            await scaler_host.answered(1, "done")
            pids = list(scaler_host.children().values())
            for restarts, signal_number in enumerate((signal.SIGKILL, signal.SIGTERM), 1):
                scaler_host.process.kill()
                scaler_host.process.wait()
                assert all(map(_alive, pids))
                scaler_host.start()
                scaler_host.announce(1 + restarts, 2 + restarts)
                await scaler_host.answered(1 + restarts, "done")
                pids += scaler_host.children().values()
                assert len(pids) == 2 + restarts
                scaler_host.process.send_signal(signal_number)
            await until(lambda: scaler_host.process.poll() is not None, "the scaler has ended")
            assert not any(map(_alive, pids))
            ended = {name: lifetime.reason for name, lifetime in scaler_host.lifetimes().items()}
            assert ended == dict.fromkeys(("p-1", "p-2", "p-3", "p-4"), "stopped")

    asyncio.run(scenario())


def test_nothing_survives_of_a_worker_that_died_while_no_scaler_ran(
    tmp_path: Path, nats_url: str, own_name: str
) -> None:
    knobs = f'state_file = "{tmp_path}/state.json"\ngpus = ["0", "1"]\navoid_used_gpus = false'

    async def scenario() -> None:
        async with host(tmp_path, nats_url, own_name, SHELL, knobs) as scaler_host:
            scaler_host.announce(1, 1)
            await scaler_host.answered(1, "done")
            worker = scaler_host.children()["p-1"]
            await until(lambda: _children(worker), "the worker has started its core", deadline_s=10)
            [core] = _children(worker)
            scaler_host.process.kill()
            scaler_host.process.wait()
            os.kill(worker, signal.SIGKILL)
            await until(lambda: not _has_id(worker), "the worker has ended and its parent knows", deadline_s=10)
            assert _alive(core)
            scaler_host.start()
            await scaler_host.wait_for_workers("p-2")
            await until(lambda: not _alive(core), "its core has ended", deadline_s=10)

    asyncio.run(scenario())


@pytest.mark.parametrize("outlive", [True, False])
def test_a_crash_of_the_scaler_ends_workers_only_without_a_state_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, outlive: bool
) -> None:
    pool = LocalPoolKnobs("p", "decode", ("sleep", "600"))
    knobs = LocalKnobs((LocalModelKnobs("m", (pool,)),), state_file=str(tmp_path / "state.json"))

    async def scenario(state_file: StateFile) -> None:
        bus = MemoryBus()
        async with asyncio.timeout(SCENARIO_S), ScalerClient("s", ["m"], bus=bus) as scaler:
            local = LocalScaler(knobs, scaler, ChildLauncher(outlive=outlive), state_file if outlive else None)
            workers, seen = local._pools["m", "p"].workers, dict[str, LocalWorker]()

            async def crash() -> None:
                seen.update(workers)
                if seen:
                    raise RuntimeError("broken")

            monkeypatch.setattr(local, "_report", crash)
            target = PoolTarget("p", "decode", 1, 0)
            await bus.publish(Subjects(knobs.root).decision("m"), encode(decision(1, 1, target)))
            with pytest.raises(RuntimeError, match="broken"):
                await local.run(asyncio.Event())
            identity = seen["p-1"].process.identity
            assert identity is not None
            assert _alive(identity.pid) == outlive
            assert [(one.identity, one.process.signal) for one in state_file.read().workers] == (
                [(identity, "none")] if outlive else []
            )
            seen["p-1"].process.send("kill")
            await until(lambda: not workers, "it has ended")

    with StateFile(tmp_path / "state.json", "s") as file:
        asyncio.run(scenario(file))


def test_workers_are_left_at_a_stop_and_refused_without_their_pool(
    tmp_path: Path, nats_url: str, own_name: str
) -> None:
    knobs = f'state_file = "{tmp_path}/state.json"\non_stop = "leave"'

    async def scenario() -> None:
        async with host(tmp_path, nats_url, own_name, SHELL, knobs) as scaler_host:
            scaler_host.announce(1, 1)
            await scaler_host.wait_for_workers("p-1")
            [pid] = scaler_host.children().values()
            scaler_host.process.terminate()
            assert scaler_host.process.wait(60) == 0
            assert _alive(pid)
            try:
                text = scaler_host.config.read_text("utf-8")
                scaler_host.config.write_text(text.replace('name = "p"', 'name = "q"'), "utf-8")
                scaler_host.start()
                assert scaler_host.process.wait(60) == 2
                assert _alive(pid)
            finally:
                os.killpg(pid, signal.SIGKILL)

    asyncio.run(scenario())


def test_workers_are_kept_without_nats(tmp_path: Path, own_name: str, private_nats: Callable[[], NatsServer]) -> None:
    nats = private_nats()

    async def scenario() -> None:
        async with host(tmp_path, nats.url, own_name, SHELL) as scaler_host:
            scaler_host.announce(1, 2)
            await scaler_host.wait_for_workers("p-1", "p-2")
            nats.kill()
            await until(lambda: not scaler_host.bus.connected, "NATS is unreachable")
            os.kill(scaler_host.children()["p-1"], signal.SIGKILL)
            await scaler_host.wait_for_workers("p-2", "p-3")
            scaler_host.announce(2, 3)
            await nats.start_async()
            await scaler_host.wait_for_workers("p-2", "p-3", "p-4")
            await scaler_host.answered(2, "done")

    asyncio.run(scenario())


def test_a_decision_for_an_unknown_pool_is_refused(tmp_path: Path, nats_url: str, own_name: str) -> None:
    async def scenario() -> None:
        async with host(tmp_path, nats_url, own_name, SHELL) as scaler_host:
            scaler_host.announce(1, 1, pool="elsewhere")
            assert "elsewhere" in (await scaler_host.answered(1, "refused")).detail
            scaler_host.announce(2, 1)
            await scaler_host.answered(2, "done")

    asyncio.run(scenario())


def test_a_failing_command_is_retried_with_a_backoff(tmp_path: Path, nats_url: str, own_name: str) -> None:
    flag = tmp_path / "works"
    # It lives longer than `settle_ms`, as an engine that fails while it loads its model.
    command = ["sh", "-c", f"test -e {flag} || {{ sleep 0.3; exit 3; }}; sleep 600 & wait", "{worker}"]

    async def scenario() -> None:
        async with host(tmp_path, nats_url, own_name, command) as scaler_host:
            scaler_host.announce(1, 1)
            await until(lambda: len(scaler_host.lifetimes()) >= 4, "four failed starts")
            flag.touch()
            ended = list(scaler_host.lifetimes().values())
            assert {lifetime.reason for lifetime in ended} == {"failed"}
            # 50 ms, doubled each time; a later start may only be later.
            waits = [after.started_at_ms - before.ended_at_ms for before, after in pairwise(ended)]
            assert all(wait >= 40 * 2**number for number, wait in enumerate(waits[:3]))

            def newest() -> DecisionAnswered:
                return scaler_host.answers[-1]

            shown = rf"^p: p-\d+ exited with code 3, \d+ s after its start: see {tmp_path}/logs/p-\d+\.log$"
            assert any(re.match(shown, answer.detail) for answer in scaler_host.answers)
            await until(lambda: (newest().status, newest().detail) == ("done", ""), "the pool has recovered")

    asyncio.run(scenario())


def test_a_victim_that_exits_when_empty_counts_as_drained(tmp_path: Path) -> None:
    pool = LocalPoolKnobs("p", "decode", ("sleep", "600"))
    knobs = LocalKnobs((LocalModelKnobs("m", (pool,)),), lifetimes_file=str(tmp_path / "lifetimes.jsonl"))

    async def scenario() -> None:
        bus, stop, subjects = MemoryBus(), asyncio.Event(), Subjects(knobs.root)
        async with asyncio.timeout(SCENARIO_S), ScalerClient("s", ["m"], bus=bus) as scaler:
            local = LocalScaler(knobs, scaler, ChildLauncher(outlive=False))
            running = asyncio.create_task(local.run(stop))
            await bus.publish(subjects.decision("m"), encode(decision(1, 1, PoolTarget("p", "decode", 1, 0))))
            workers = local._pools["m", "p"].workers
            await until(lambda: workers, "a worker")
            # The scaler's task does not run between the report and the signal.
            await bus.publish(
                subjects.drained("m", "p", "p-1"), encode(DrainReport("m", "p", "p-1", time.time_ns() // 1_000_000))
            )
            workers["p-1"].process.send("kill")
            await until(lambda: "p-1" not in workers, "the worker has ended")
            stop.set()
            await running

    asyncio.run(scenario())
    first = msgspec.json.decode((tmp_path / "lifetimes.jsonl").read_bytes().splitlines()[0], type=Lifetime)
    assert (first.worker, first.reason) == ("p-1", "drained")


def test_an_invalid_configuration_is_explained(tmp_path: Path) -> None:
    config = tmp_path / "local.toml"
    config.write_text('models = [{ name = "m", pools = [{ name = "p", role = "decode", comand = ["x"] }] }]', "utf-8")
    command = [sys.executable, "-m", "loadline", "scaler", "local", "--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "models[0].pools[0]" in done.stderr
    assert "comand" in done.stderr


def test_output_that_workers_may_outlive_is_told(tmp_path: Path) -> None:
    """Without a reader, as after the end of `| tee`, their next line ends them."""
    config = tmp_path / "local.toml"
    pool = '{ name = "p", role = "decode", command = ["true"] }'
    config.write_text(f'state_file = "s.json"\nmodels = [{{ name = "m", pools = [{pool}] }}]', "utf-8")
    command = [sys.executable, "-m", "loadline", "scaler", "local", "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as scaler:
        assert scaler.stderr is not None
        assert "output_is_a_pipe" in scaler.stderr.readline()
        scaler.kill()


def _alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text("ascii").rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def _has_id(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()]


def _environment(pid: int) -> list[bytes]:
    return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
