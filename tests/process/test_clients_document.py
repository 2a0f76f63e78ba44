"""The programs in docs/how-to/write-a-scaler.md and report-load.md, run with other addresses and another root."""

import asyncio
import contextlib
import re
from pathlib import Path

import msgspec
import pytest

from loadline.core.vocabulary.decisions import PoolTarget
from loadline.core.vocabulary.events import DecisionAnswered, LoadReported, TrafficReported, WorkerDrained
from loadline.errors import BusUnavailable
from loadline.scalers.local.config import read
from loadline.wire.codec import encode
from loadline.wire.messages import DrainCommand, DrainReply
from loadline.wire.subjects import Subjects
from tests.support.decisions import decision
from tests.support.documents import Document, agent
from tests.waiting import until, until_async

pytestmark = pytest.mark.process

SCALER, CLIENTS = Document("how-to/write-a-scaler.md"), Document("how-to/report-load.md")
REFERENCE = Document("reference/scalers.md")


def test_scaler(tmp_path: Path, nats_url: str, etcd_url: str, own_name: str) -> None:
    async def scenario() -> None:
        async with agent(nats_url, own_name) as (bus, received):
            announced = encode(decision(1, 1, PoolTarget("decode", "decode", 3, 2), model="llama"))

            async def done() -> bool:
                await bus.publish(Subjects(own_name).decision("llama"), announced)
                return any(isinstance(event, DecisionAnswered) and event.status == "done" for event in received)

            with SCALER.running(tmp_path, "scaler", nats_url, etcd_url, own_name) as process:
                await until_async(done, "done")
                process.kill()  # long enough for an erroneous second message
                assert process.stdout is not None
                assert "llama decode -> 3" in process.stdout.read().splitlines()

    asyncio.run(scenario())


def test_worker(tmp_path: Path, nats_url: str, etcd_url: str, own_name: str) -> None:
    async def scenario() -> None:
        async with agent(nats_url, own_name) as (bus, received):
            with CLIENTS.running(tmp_path, "worker", nats_url, etcd_url, own_name) as process:
                await until(lambda: any(isinstance(event, LoadReported) for event in received), "load")
                incarnation = next(event.incarnation for event in received if isinstance(event, LoadReported))
                command = DrainCommand("d", "llama", "decode", "decode-1", "decode", incarnation, 1, 60_000)

                async def accepted() -> bool:
                    with contextlib.suppress(BusUnavailable):
                        reply = await bus.request(
                            Subjects(own_name).drain("llama", "decode", "decode-1"), encode(command), 5
                        )
                        return msgspec.json.decode(reply, type=DrainReply).accepted
                    return False

                await until_async(accepted, "drain accepted")
                await until(lambda: process.poll() is not None, "departure")
                assert process.returncode == 0
                await until(lambda: any(isinstance(event, WorkerDrained) for event in received), "drained")

    asyncio.run(scenario())


def test_frontend(tmp_path: Path, nats_url: str, etcd_url: str, own_name: str) -> None:
    async def scenario() -> None:
        async with agent(nats_url, own_name) as (_, received):
            with CLIENTS.running(tmp_path, "frontend", nats_url, etcd_url, own_name) as process:
                await until(lambda: process.poll() is not None, "the end")
                assert process.returncode == 0

            def seen() -> tuple[int, int, int]:
                samples = [event.sample for event in received if isinstance(event, TrafficReported)]
                return (
                    sum(sample.arrivals for sample in samples),
                    sum(sample.completed for sample in samples),
                    max((sample.in_flight for sample in samples), default=0),
                )

            await until(lambda: seen() == (1, 1, 1), "one request, from arrival to end")

    asyncio.run(scenario())


def test_the_local_scaler_takes_the_configuration_that_is_shown(tmp_path: Path) -> None:
    [shown] = re.findall(r"```toml\n(# local.toml\n.*?)```", REFERENCE.text, re.DOTALL)
    path = tmp_path / "local.toml"
    path.write_text(shown, "utf-8")
    knobs = read(path)
    written = {line.split(" = ")[0] for line in shown.splitlines() if " = " in line}
    assert set(knobs.__struct_fields__) == written - {"servers", "role", "command", "env", "sidecar"} | {
        "nats",
        "models",
    }
