"""The demo fleet as real processes on real servers: whatever becomes of a worker, no request is lost."""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadline.adapters.etcd_store import EtcdStore
from loadline.adapters.nats_bus import NatsBus
from loadline.config import EtcdKnobs, NatsKnobs
from loadline.core.observed import WorkerRecord
from loadline.core.scalars import Role
from loadline.demo.link import submit_subject
from loadline.rig.servers import EtcdServer, NatsServer
from loadline.wire.codec import encode
from loadline.wire.keys import Keys
from loadline.wire.messages import DrainCommand, DrainReply, DrainReport
from loadline.wire.subjects import Subjects
from tests.waiting import until_true

pytestmark = pytest.mark.process

MODEL = "llama"
REQUESTS = 300
# 300 requests of the trace are one minute: 3 s at this speed, after a start of about 1 s.
SPEED = "20"
PATIENCE_S = 60.0


class Fleet:
    """Processes of the demo under one root; all are gone at the end of the test."""

    def __init__(self, folder: Path, nats: str, etcd: str, name: str) -> None:
        self.summary = folder / "summary.json"
        self._folder = folder
        self._nats, self._etcd, self._root = nats, etcd, name
        self._common = ["--model", MODEL, "--nats", nats, "--etcd", etcd, "--root", name, "--namespace", name]
        self._common += ["--speed", SPEED]
        self._processes: list[subprocess.Popen[bytes]] = []

    def worker(self, role: Role, name: str) -> subprocess.Popen[bytes]:
        own = ["--pool", role, "--role", role, "--name", f"{self._root}-{name}", "--lease-ttl-s", "2"]
        return self._start("worker", [*own, "--start-delay-s", "0.2", "--report-interval-ms", "100"], name)

    def gateway(self, *more: str) -> subprocess.Popen[bytes]:
        own = ["--load", "1", "--requests-max", str(REQUESTS), "--summary-file", str(self.summary)]
        return self._start("gateway", [*own, *more], "gateway")

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    def drain(self, role: Role, name: str) -> tuple[bool, DrainReport]:
        """Drain a worker as the agent does; gives whether routers have lost sight of it by the end, and its report."""
        return asyncio.run(self._drain(role, f"{self._root}-{name}"))

    async def _drain(self, role: Role, worker: str) -> tuple[bool, DrainReport]:
        key, subjects = Keys(self._root).worker(MODEL, role, worker), Subjects(self._root)
        store = EtcdStore(EtcdKnobs(endpoints=(self._etcd,)))
        bus = NatsBus(NatsKnobs(servers=(self._nats,)), name="test")
        reports: asyncio.Queue[DrainReport] = asyncio.Queue()
        try:
            await bus.connect(lambda _connected: None)
            await bus.subscribe(
                subjects.drained(worker),
                lambda _subject, data: reports.put_nowait(msgspec.json.decode(data, type=DrainReport)),
            )
            record = msgspec.json.decode((await store.read(key)).entries[0].value, type=WorkerRecord)
            command = DrainCommand("d1", MODEL, role, worker, role, record.incarnation, epoch=1, ttl_ms=60_000)
            reply = await bus.request(subjects.drain(worker), encode(command), timeout_s=PATIENCE_S)
            assert msgspec.json.decode(reply, type=DrainReply).accepted
            async with asyncio.timeout(PATIENCE_S):
                report = await reports.get()
                return not [e for e in (await store.read(key)).entries if b'"ready"' in e.value], report
        finally:
            await bus.close()
            await store.close()

    def wait_for_work(self, name: str) -> None:
        """Wait until the gateway sends a worker something."""

        async def listen() -> None:
            sent = asyncio.Event()
            bus = NatsBus(NatsKnobs(servers=(self._nats,)), name="test")
            try:
                await bus.connect(lambda _connected: None)
                await bus.subscribe(submit_subject(self._root, f"{self._root}-{name}"), lambda *_: sent.set())
                async with asyncio.timeout(PATIENCE_S):
                    await sent.wait()
            finally:
                await bus.close()

        asyncio.run(listen())

    def registered(self, role: Role, name: str) -> bool:
        """Whether the registry still has the worker."""

        async def read() -> bool:
            store = EtcdStore(EtcdKnobs(endpoints=(self._etcd,)))
            try:
                key = Keys(self._root).worker(MODEL, role, f"{self._root}-{name}")
                return bool((await store.read(key)).entries)
            finally:
                await store.close()

        return asyncio.run(read())

    def stop(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, module: str, options: list[str], name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"loadline.demo.{module}", *self._common, *options]
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        self._processes.append(process)
        return process


@pytest.fixture
def fleet(tmp_path: Path, nats_url: str, etcd_url: str, own_name: str) -> Iterator[Fleet]:
    made = Fleet(tmp_path, nats_url, etcd_url, own_name)
    yield made
    made.stop()


def account(fleet: Fleet, gateway: subprocess.Popen[bytes]) -> dict[str, Any]:
    """The gateway's summary, once it has ended by itself."""
    assert gateway.wait(PATIENCE_S) == 0, fleet.log("gateway")
    summary: dict[str, Any] = json.loads(fleet.summary.read_bytes())
    return summary


def begun(fleet: Fleet) -> bool:
    return "replay_begins" in fleet.log("gateway")


def test_all_requests_finish_and_everybody_leaves(fleet: Fleet) -> None:
    workers = [fleet.worker(role, f"{role}-{i}") for role in ("prefill", "decode") for i in range(2)]
    summary = account(fleet, fleet.gateway())
    assert (summary["arrived"], summary["finished"], summary["lost"], summary["retried"]) == (REQUESTS, REQUESTS, 0, 0)
    # The profile's shortest prefill takes 32 ms and its shortest iteration 17.6 ms: no time of a real clock is in it.
    assert summary["ttft_p50_ms"] > 32.0
    assert 17.0 < summary["itl_p50_ms"] < 68.0
    began_s = time.monotonic()
    fleet.stop()
    assert [worker.returncode for worker in workers] == [0] * 4
    assert time.monotonic() - began_s < 10.0


def test_aggregated_workers_serve_alone(fleet: Fleet) -> None:
    for i in range(2):
        fleet.worker("aggregated", f"w{i}")
    summary = account(fleet, fleet.gateway("--mode", "aggregated"))
    assert (summary["finished"], summary["lost"]) == (REQUESTS, 0)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_killed_worker_loses_nothing(fleet: Fleet, role: Role) -> None:
    victim = fleet.worker(role, "victim")
    for name in ("prefill", "decode"):
        fleet.worker(name, name)
    gateway = fleet.gateway("--load", "2", "--requests-max", "500")
    until_true(lambda: begun(fleet), deadline_s=PATIENCE_S)
    fleet.wait_for_work("victim")
    victim.send_signal(signal.SIGSTOP)
    fleet.wait_for_work("victim")  # which it will never do
    victim.kill()
    summary = account(fleet, gateway)
    assert (summary["arrived"], summary["finished"], summary["lost"]) == (500, 500, 0)
    assert summary["retried"] > 0


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_drained_worker_finishes_what_it_has_and_leaves(fleet: Fleet, role: Role) -> None:
    leaving = fleet.worker(role, "leaving")
    for name in ("prefill", "decode"):
        fleet.worker(name, name)
    gateway = fleet.gateway("--load", "2", "--requests-max", "500")
    until_true(lambda: begun(fleet), deadline_s=PATIENCE_S)
    unrouted, report = fleet.drain(role, "leaving")
    assert unrouted
    assert (report.drain_id, report.pool) == ("d1", role)
    assert leaving.wait(PATIENCE_S) == 0, fleet.log("leaving")
    assert '"drained": true, "held": 0' in fleet.log("leaving")
    assert not fleet.registered(role, "leaving")
    summary = account(fleet, gateway)
    # It left in order, so nothing had to start again.
    assert (summary["finished"], summary["lost"], summary["retried"]) == (500, 0, 0)


def test_requests_wait_while_there_is_no_worker(fleet: Fleet) -> None:
    gateway = fleet.gateway()
    only = [fleet.worker("prefill", "prefill"), fleet.worker("decode", "decode")]
    until_true(lambda: begun(fleet), deadline_s=PATIENCE_S)
    for worker in only:
        worker.terminate()
    assert [worker.wait(5.0) for worker in only] == [0, 0]
    fleet.worker("prefill", "prefill-2")
    fleet.worker("decode", "decode-2")
    summary = account(fleet, gateway)
    assert (summary["finished"], summary["lost"]) == (REQUESTS, 0)


def test_servers_that_go_and_come_back_lose_nothing(
    tmp_path: Path, own_name: str, private_nats: Callable[[], NatsServer], private_etcd: Callable[[], EtcdServer]
) -> None:
    nats, etcd = private_nats(), private_etcd()
    fleet = Fleet(tmp_path, nats.url, etcd.url, own_name)
    try:
        for role in ("prefill", "decode"):
            fleet.worker(role, role)
        gateway = fleet.gateway()
        until_true(lambda: begun(fleet), deadline_s=PATIENCE_S)
        for server in (nats, etcd):
            server.kill()
            server.start()
        summary = account(fleet, gateway)
        assert (summary["arrived"], summary["finished"], summary["lost"]) == (REQUESTS, REQUESTS, 0)
    finally:
        fleet.stop()


def test_a_stopped_gateway_leaves_its_account(fleet: Fleet) -> None:
    for role in ("prefill", "decode"):
        fleet.worker(role, role)
    gateway = fleet.gateway("--repeat", "--requests-max", "0")
    until_true(lambda: begun(fleet), deadline_s=PATIENCE_S)
    gateway.terminate()
    summary = account(fleet, gateway)
    assert summary["arrived"] == summary["finished"] + summary["in_flight"] + summary["queued"]
