"""The demo fleet as real processes, and the summary of its gateway."""

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from loadline.adapters.etcd_store import EtcdStore
from loadline.adapters.nats_bus import NatsBus
from loadline.config import EtcdKnobs, NatsKnobs
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.core.vocabulary.scalars import Role
from loadline.demo.protocol import submit_subject
from loadline.wire.codec import encode
from loadline.wire.keys import Keys
from loadline.wire.messages import DrainCommand, DrainReply, DrainReport
from loadline.wire.subjects import Subjects
from tests.waiting import until_async

MODEL = "llama"
REQUESTS = 300
# 300 requests of the trace are one minute: 3 s at this speed, after a start of about 1 s.
SPEED = "20"
TIMEOUT_S = 120.0
_STOP_S = 30.0


class DemoFleet:
    """Processes of the demo under one root."""

    def __init__(self, folder: Path, nats: str, etcd: str, name: str) -> None:
        self.summary = folder / "summary.json"
        self._folder = folder
        self.nats, self.etcd, self.root = nats, etcd, name
        self._common = ["--model", MODEL, "--nats", nats, "--etcd", etcd, "--root", name, "--namespace", name]
        self._common += ["--speed", SPEED]
        self._processes: list[subprocess.Popen[bytes]] = []
        self._workers: dict[str, subprocess.Popen[bytes]] = {}

    def worker(self, role: Role, name: str, *more: str) -> subprocess.Popen[bytes]:
        own = ["--pool", role, "--role", role, "--name", f"{self.root}-{name}", "--lease-ttl-s", "2"]
        own += ["--start-delay-s", "0.2", "--report-interval-ms", "100"]
        process = self._workers[f"{self.root}-{name}"] = self._start("worker", [*own, *more], name)
        return process

    def gateway(self, *more: str) -> subprocess.Popen[bytes]:
        own = ["--load", "1", "--requests-max", str(REQUESTS), "--summary-file", str(self.summary)]
        return self._start("gateway", [*own, *more], "gateway")

    def log(self, name: str) -> str:
        return (self._folder / f"{name}.log").read_text()

    async def drain(self, role: Role, name: str) -> tuple[bool, DrainReport]:
        """Drain a worker as the agent does; return whether it was no longer registered as ready, and its report."""
        worker = f"{self.root}-{name}"
        key, subjects = Keys(self.root).worker(MODEL, role, worker), Subjects(self.root)
        store = EtcdStore(EtcdKnobs(endpoints=(self.etcd,)))
        bus = NatsBus(NatsKnobs(servers=(self.nats,)), name="test")
        reports: asyncio.Queue[DrainReport] = asyncio.Queue()
        try:
            await bus.connect(lambda _connected: None)
            await bus.subscribe(
                subjects.drained(MODEL, role, worker),
                lambda _subject, data: reports.put_nowait(msgspec.json.decode(data, type=DrainReport)),
            )
            record = _record((await store.read(key)).entries[0].value)
            command = DrainCommand("d1", MODEL, role, worker, role, record.incarnation, epoch=1, ttl_ms=60_000)
            reply = await bus.request(subjects.drain(MODEL, role, worker), encode(command), timeout_s=TIMEOUT_S)
            assert msgspec.json.decode(reply, type=DrainReply).accepted
            async with asyncio.timeout(TIMEOUT_S):
                report = await reports.get()
                return not [e for e in (await store.read(key)).entries if b'"ready"' in e.value], report
        finally:
            await bus.close()
            await store.close()

    async def all_ready(self) -> None:
        """Wait until every worker that runs is registered as ready."""
        store = EtcdStore(EtcdKnobs(endpoints=(self.etcd,)))

        async def ready() -> bool:
            entries = (await store.read(Keys(self.root).workers)).entries
            names = {record.worker for e in entries if (record := _record(e.value)).state == "ready"}
            return names >= {name for name, process in self._workers.items() if process.poll() is None}

        try:
            await until_async(ready, "all workers are ready", deadline_s=TIMEOUT_S)
        finally:
            await store.close()

    async def wait_for_work(self, name: str) -> None:
        """Wait until the gateway sends something to a worker."""
        sent = asyncio.Event()
        bus = NatsBus(NatsKnobs(servers=(self.nats,)), name="test")
        try:
            await bus.connect(lambda _connected: None)
            await bus.subscribe(submit_subject(self.root, f"{self.root}-{name}"), lambda *_: sent.set())
            async with asyncio.timeout(TIMEOUT_S):
                await sent.wait()
        finally:
            await bus.close()

    def registered(self, role: Role, name: str) -> bool:
        """Return whether the registry still has the worker."""

        async def read() -> bool:
            store = EtcdStore(EtcdKnobs(endpoints=(self.etcd,)))
            try:
                key = Keys(self.root).worker(MODEL, role, f"{self.root}-{name}")
                return bool((await store.read(key)).entries)
            finally:
                await store.close()

        return asyncio.run(read())

    def stop(self) -> None:
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _start(self, module: str, options: list[str], name: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", f"loadline.demo.{module}", *self._common, *options]
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        self._processes.append(process)
        return process


def _record(value: bytes) -> WorkerRecord:
    return msgspec.json.decode(value, type=WorkerRecord)


def account(fleet: DemoFleet, gateway: subprocess.Popen[bytes]) -> dict[str, Any]:
    """Wait for the end of the gateway and return its summary."""
    assert gateway.wait(TIMEOUT_S) == 0, fleet.log("gateway")
    summary: dict[str, Any] = json.loads(fleet.summary.read_bytes())
    return summary


def replay_has_begun(fleet: DemoFleet) -> bool:
    return "replay_begins" in fleet.log("gateway")
