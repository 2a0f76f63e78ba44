"""Sources of other systems: records as these send them, and a source's program with an agent's side of the servers."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio
import msgspec

from loadline.core.vocabulary.events import LoadReported
from loadline.core.vocabulary.samples import WorkerSample
from loadline.sources.llumnix_messages import MigrateRequest, MigrateResponse
from loadline.wire.codec import Codec, encode
from loadline.wire.messages import LoadReport
from loadline.wire.subjects import Subjects
from tests.support.client_rig import Agent, agent_at


def forward_pass(worker: str = "7587", **fields: Any) -> dict[str, Any]:
    """Return a record as Dynamo's engines send it."""
    scheduled = {
        "num_prefill_requests": 1,
        "sum_prefill_tokens": 512,
        "var_prefill_length": 0.0,
        "sum_prefill_kv_tokens": 64,
        "num_decode_requests": 4,
        "sum_decode_kv_tokens": 4_000,
        "var_decode_kv_tokens": 1.5,
    }
    queued = {
        "num_prefill_requests": 3,
        "sum_prefill_tokens": 900,
        "var_prefill_length": 0.0,
        "num_decode_requests": 1,
        "sum_decode_kv_tokens": 100,
        "var_decode_kv_tokens": 0.0,
    }
    record = {
        "version": 1,
        "worker_id": worker,
        "dp_rank": 0,
        "counter_id": 0,
        "wall_time": 0.02,
        "scheduled_requests": scheduled,
        "queued_requests": queued,
    }
    return {**record, **fields}


def idle_pass(worker: str = "7587", **fields: Any) -> dict[str, Any]:
    """Return the record that an idle engine sends each second."""
    return forward_pass(worker, wall_time=0.0, scheduled_requests={}, queued_requests={}, **fields)


def envelope(record: object, topic: str = "forward-pass-metrics") -> bytes:
    """Return a record in an envelope of Dynamo's event plane."""
    payload = msgspec.msgpack.encode(record)
    fields = {"publisher_id": 1, "sequence": 2, "published_at": 3, "topic": topic, "payload": payload}
    return msgspec.msgpack.encode(fields)


def framed(record: object, topic: str = "forward-pass-metrics", subject: str = "forward-pass-metrics") -> list[bytes]:
    """Return the frames of a ZeroMQ message of Dynamo's event plane."""
    inner = envelope(record, topic)
    return [subject.encode(), bytes(8), bytes(8), b"\x01" + len(inner).to_bytes(4, "big") + inner]


def accepted(sample: WorkerSample) -> bool:
    """Return True if agents accept the report of a sample."""
    subjects = Subjects("loadline")
    report = encode(LoadReport("m", "p", "w", 1, [sample]))
    return isinstance(Codec(subjects, 262_144).decode(subjects.load("m", "p", "w"), report), LoadReported)


@asynccontextmanager
async def source_at(
    directory: Path, servers: tuple[str, str], own_name: str, name: str, config: str
) -> AsyncIterator[tuple[Agent, asyncio.subprocess.Process]]:
    """Start ``loadline source`` with a configuration; yield the agent's side of NATS and etcd, and the process."""
    nats_url, etcd_url = servers
    file = directory / f"{name}.toml"
    file.write_text(
        f'root = "{own_name}"\nnamespace = "{own_name}"\nreport_interval_ms = 50\n{config}\n'
        f'[nats]\nservers = ["{nats_url}"]\n[etcd]\nendpoints = ["{etcd_url}"]\n',
        "utf-8",
    )
    async with agent_at(nats_url, etcd_url, own_name) as agent:
        command = [sys.executable, "-m", "loadline", "source", name, "--config", str(file)]
        with (directory / f"{name}.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(*command, stderr=log, env=os.environ.copy())
        try:
            yield agent, process
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.wait(), 30)


class Llumlet:
    """A real gRPC server that answers as Llumnix's agent of an engine does."""

    def __init__(self) -> None:
        self.requests: list[Any] = []
        self.answer = MigrateResponse(success=True)
        self.delay_s = 0.0
        self.error: grpc.StatusCode | None = None
        self.port = 0

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[Self]:
        handlers = {
            "Migrate": grpc.unary_unary_rpc_method_handler(
                self._migrate, request_deserializer=MigrateRequest.FromString, response_serializer=bytes
            )
        }
        server = grpc.aio.server()
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("llumlet.Llumlet", handlers)])
        self.port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        try:
            yield self
        finally:
            await server.stop(None)

    async def _migrate(self, request: Any, context: Any) -> bytes:
        self.requests.append(request)
        await asyncio.sleep(self.delay_s)
        if self.error is not None:
            await context.abort(self.error, "as the test wants")
        answer: bytes = self.answer.SerializeToString()
        return answer
