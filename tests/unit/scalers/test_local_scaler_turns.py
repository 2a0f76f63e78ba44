"""Turns of the local scaler: nothing is started that the state file cannot list, and who ends beyond the count."""

import asyncio
import socket
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from loadline.client.scaler import ScalerClient
from loadline.core.vocabulary.decisions import PoolTarget
from loadline.scalers.local.config import LocalKnobs, read
from loadline.scalers.local.host import Allotment
from loadline.scalers.local.launcher import Launcher, WorkerProcess
from loadline.scalers.local.plan import Process
from loadline.scalers.local.pools import LocalPool, LocalWorker
from loadline.scalers.local.scaler import LocalScaler
from loadline.scalers.local.state_file import StateFile

CONFIG = """
nats.servers = ["nats://127.0.0.1:1"]
models = [{ name = "m", pools = [{ name = "p", role = "decode", command = ["true"] }] }]
"""


class FullDisk:
    """State file that cannot be written."""

    def write(self, _numbers: Mapping[str, int], _workers: Sequence[object]) -> None:
        raise OSError(28, "No space left on device")


class Nobody:
    """Scaler client without reports, launcher that starts nothing, and process that is sent nothing."""

    identity = None

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


def test_workers_that_do_not_listen_are_told_only_where_there_are_too_many(tmp_path: Path) -> None:
    pool = LocalPool("m", knobs_of(tmp_path).models[0].pools[0])
    with closing(socket.create_server(("127.0.0.1", 0))) as listening, closing(socket.socket()) as bound:
        bound.bind(("127.0.0.1", 0))
        ports = [listening.getsockname()[1], bound.getsockname()[1]]
        process = cast(WorkerProcess, Nobody())
        for number, port in enumerate(ports):
            seen = Process(f"p-{number}", 1, 0)
            pool.workers[seen.worker] = LocalWorker(seen, process, Allotment(number, port, ()), 0)
        found = []
        for replicas in (1, 2):
            pool.target = PoolTarget("p", "decode", replicas, 2)
            found.append(asyncio.run(pool.unready_surplus()))
    assert found == [{"p-1"}, frozenset()]
