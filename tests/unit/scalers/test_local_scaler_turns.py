"""Turns of the local scaler: nothing is started that the state file cannot list, and who ends beyond the count."""

import asyncio
import socket
import threading
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec.structs import replace

from loadline.client.scaler import ScalerClient
from loadline.core.vocabulary.decisions import PoolTarget, Victim
from loadline.scalers.local.config import LocalKnobs, read
from loadline.scalers.local.host import Allotment
from loadline.scalers.local.launcher import Launcher, WorkerProcess
from loadline.scalers.local.plan import Process
from loadline.scalers.local.pools import LocalWorker
from loadline.scalers.local.scaler import LocalScaler
from loadline.scalers.local.state_file import StateFile
from loadline.scalers.local.worker_logs import LOG_BYTES_MAX, WorkerLogs

CONFIG = """
nats.servers = ["nats://127.0.0.1:1"]
models = [{ name = "m", pools = [{ name = "p", role = "decode", command = ["true"] }] }]
"""


class FullDisk:
    """State file that cannot be written after some times."""

    def __init__(self, writes: int = 0) -> None:
        self.writes = writes

    def write(self, _numbers: Mapping[str, int], _workers: Sequence[object]) -> None:
        self.writes -= 1
        if self.writes < 0:
            raise OSError(28, "No space left on device")


class Started:
    """Process that keeps what it is sent."""

    identity = None

    def __init__(self) -> None:
        self.sent: list[str] = []

    def send(self, kind: str) -> None:
        self.sent.append(kind)


class Nobody:
    """Scaler client without reports, and launcher that starts nothing."""

    def drained(self, *_: object) -> bool:
        return False

    async def create(self, *_: object) -> WorkerProcess:
        pytest.fail("a worker was created")


def knobs_of(folder: Path) -> LocalKnobs:
    (folder / "local.toml").write_text(CONFIG, "utf-8")
    return read(folder / "local.toml")


def test_no_worker_is_created_while_the_state_file_cannot_be_written(tmp_path: Path) -> None:
    """Each try would take a number, a log and the place of an older log with a reason."""
    nobody: Any = Nobody()
    scaler = LocalScaler(
        knobs_of(tmp_path), cast(ScalerClient, nobody), cast(Launcher, nobody), cast(StateFile, FullDisk())
    )
    (pool,) = scaler._pools.values()
    pool.target = PoolTarget("p", "decode", 2, 0)
    asyncio.run(scaler._turn())
    assert pool.detail.startswith("the state file cannot be written")
    assert (pool.workers, dict(scaler._numbers)) == ({}, {})


def test_a_worker_that_the_state_file_does_not_list_is_killed_and_is_no_failure(tmp_path: Path) -> None:
    process = Started()

    class Launching(Nobody):
        async def create(self, *_: object) -> WorkerProcess:
            return cast(WorkerProcess, process)

    nobody: Any = Launching()
    disk = cast(StateFile, FullDisk(writes=1))
    scaler = LocalScaler(knobs_of(tmp_path), cast(ScalerClient, nobody), cast(Launcher, nobody), disk)
    (pool,) = scaler._pools.values()
    pool.target = PoolTarget("p", "decode", 1, 0)
    asyncio.run(scaler._turn())
    assert process.sent == ["kill"]
    scaler._exited(pool, "p-1", -9)
    assert (pool.failure, pool.failures.count) == (None, 0)
    assert pool.detail.startswith("the state file cannot be written")


def test_a_worker_that_has_not_loaded_ends_before_one_that_serves(tmp_path: Path) -> None:
    """A port whose queue of connections is full is that of a busy engine."""
    nobody: Any = Nobody()
    scaler = LocalScaler(knobs_of(tmp_path), cast(ScalerClient, nobody), cast(Launcher, nobody))
    (pool,) = scaler._pools.values()
    processes = []
    with closing(socket.create_server(("127.0.0.1", 0))) as listening, closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        for number, socket_ in enumerate((bound, listening)):
            processes.append(Started())
            seen = Process(f"p-{number}", 1, number)
            allotment = Allotment(number, socket_.getsockname()[1], ())
            pool.workers[seen.worker] = LocalWorker(seen, cast(WorkerProcess, processes[-1]), allotment, 0)
        pool.target = PoolTarget("p", "decode", 2, 2)
        assert asyncio.run(pool.unready_surplus()) == frozenset(), "nobody is asked while there are not too many"
        pool.target = PoolTarget("p", "decode", 1, 2)
        asyncio.run(scaler._turn())
    assert [process.sent for process in processes] == [["terminate"], []]


def test_victims_of_a_decision_that_comes_while_ports_are_tried_are_drained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody: Any = Nobody()
    scaler = LocalScaler(knobs_of(tmp_path), cast(ScalerClient, nobody), cast(Launcher, nobody))
    (pool,) = scaler._pools.values()
    processes = [Started() for _ in range(3)]
    for number, process in enumerate(processes):
        seen = Process(f"p-{number}", 1, number)
        pool.workers[seen.worker] = LocalWorker(seen, cast(WorkerProcess, process), Allotment(number, 1, ()), 0)

    async def decided_meanwhile() -> frozenset[str]:
        pool.target = PoolTarget("p", "decode", 1, 3, (Victim("p-0", 1), Victim("p-1", 1)))
        pool.drain_ttl_ms = 60_000
        return frozenset()

    pool.target = PoolTarget("p", "decode", 3, 3)
    monkeypatch.setattr(pool, "unready_surplus", decided_meanwhile)
    asyncio.run(scaler._turn())
    assert [process.sent for process in processes] == [[], [], []]
    assert [worker.seen.leaving for worker in pool.workers.values()] == [True, True, False]


def test_the_logs_of_running_workers_are_bounded_in_each_turn(tmp_path: Path) -> None:
    nobody: Any = Nobody()
    knobs = replace(knobs_of(tmp_path), log_directory=str(tmp_path))
    scaler = LocalScaler(knobs, cast(ScalerClient, nobody), cast(Launcher, nobody))
    (pool,) = scaler._pools.values()
    process = cast(WorkerProcess, Started())
    pool.workers["p-1"] = LocalWorker(Process("p-1", 1, 0), process, Allotment(0, 1, ()), 0)
    pool.target = PoolTarget("p", "decode", 1, 1)
    for name in ("p-1.log", "p-2.log"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(LOG_BYTES_MAX + 1)
    asyncio.run(scaler._turn())
    sizes = {path.name: path.stat().st_size for path in tmp_path.glob("*.log*")}
    assert sizes == {"p-1.log": 0, "p-1.log.1": LOG_BYTES_MAX, "p-2.log": LOG_BYTES_MAX + 1}


def test_the_scaler_reads_messages_while_it_copies_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody: Any = Nobody()
    knobs = replace(knobs_of(tmp_path), log_directory=str(tmp_path))
    scaler = LocalScaler(knobs, cast(ScalerClient, nobody), cast(Launcher, nobody))
    received, copied = threading.Event(), list[bool]()
    monkeypatch.setattr(WorkerLogs, "bound", lambda *_: copied.append(received.wait(5.0)))

    async def scenario() -> None:
        asyncio.get_running_loop().call_later(0.01, received.set)
        await scaler._turn()

    asyncio.run(scenario())
    assert copied == [True]
