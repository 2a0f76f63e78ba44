"""A gateway in process, without NATS and etcd, and a client of it."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web

from loadline.client.frontend import FrontendClient
from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.core.vocabulary.scalars import Role, WorkerPhase
from loadline.gateway.backends import Backends
from loadline.gateway.engine_client import EngineClient
from loadline.gateway.metrics import GatewayMetrics
from loadline.gateway.model import ServedModel
from loadline.gateway.moves import StreamMoves
from loadline.gateway.server import Gateway
from loadline.gateway.traffic import ModelTraffic
from tests.support.fake_engine import FakeEngine
from tests.support.memory import MemoryBus

MODEL = "tiny"


def record(
    worker: str, address: str, *, state: WorkerPhase = "ready", role: Role = "aggregated", incarnation: int = 1
) -> WorkerRecord:
    return WorkerRecord(MODEL, "all", worker, role, incarnation, state=state, address=address)


class Streamed:
    """What a client got of a stream."""

    def __init__(self, status: int, headers: dict[str, str], data: list[bytes]) -> None:
        self.status = status
        self.headers = headers
        self.complete = data[-1:] == [b"[DONE]"]
        self.chunks: list[dict[str, Any]] = [json.loads(one) for one in data if one != b"[DONE]"]

    @property
    def choices(self) -> list[dict[str, Any]]:
        return [chunk["choices"][0] for chunk in self.chunks if chunk.get("choices")]

    @property
    def text(self) -> str:
        return "".join(one["text"] if "text" in one else one["delta"].get("content", "") for one in self.choices)

    @property
    def finish(self) -> str | None:
        reason: str | None = self.choices[-1]["finish_reason"]
        return reason

    @property
    def usage(self) -> Any:
        return self.chunks[-1].get("usage")


async def stream_from(session: aiohttp.ClientSession, url: str, **body: Any) -> Streamed:
    """Ask for a stream, and return all of it."""
    async with session.post(url, json={"model": MODEL, "stream": True, **body}) as answer:
        raw = await answer.read()
        if answer.status != 200:
            return Streamed(answer.status, dict(answer.headers), [raw])
        data = [one.removeprefix(b"data: ") for one in raw.split(b"\n\n") if one]
        return Streamed(answer.status, dict(answer.headers), data)


class GatewayRig:
    """The gateway's address and parts, and requests to it."""

    def __init__(
        self, bus: MemoryBus, session: aiohttp.ClientSession, url: str, model: ServedModel, frontend: FrontendClient
    ) -> None:
        self.bus = bus
        self.session = session
        self.url = url
        self.model = model
        self.frontend = frontend

    def register(self, engines: Sequence[FakeEngine]) -> None:
        self.model.backends.update([record(f"w{number}", one.address) for number, one in enumerate(engines)])

    async def stream(self, path: str = "/v1/completions", **body: Any) -> Streamed:
        return await stream_from(self.session, self.url + path, **body)

    async def post(self, path: str, body: Any, **options: Any) -> tuple[int, Any]:
        payload = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.session.post(self.url + path, data=payload, **options) as answer:
            return answer.status, await answer.json()


@asynccontextmanager
async def gateway_rig(
    engines: int = 1,
    *,
    held_max: int = 100,
    held_bytes_max: int = 1_000_000,
    hold_s: float = 30.0,
    stall_s: float = 30.0,
    first_byte_s: float | None = None,
    body_bytes_max: int = 1_000_000,
    objectives: ObjectiveKnobs | None = None,
) -> AsyncIterator[tuple[GatewayRig, list[FakeEngine]]]:
    async with AsyncExitStack() as stack:
        fakes = [await stack.enter_async_context(FakeEngine()) for _ in range(engines)]
        bus, metrics = MemoryBus(), GatewayMetrics()
        frontend = await stack.enter_async_context(FrontendClient(MODEL, "test", bus=bus, interval_ms=3_600_000))
        backends = Backends(MODEL, held_max, held_bytes_max, frontend)
        metrics.watch(MODEL, backends, frontend)
        moves = StreamMoves("gateway-1", backends)
        limits = hold_s, stall_s, first_byte_s
        model = ServedModel(MODEL, backends, ModelTraffic(frontend, objectives), moves, metrics, *limits)
        client = EngineClient()
        stack.push_async_callback(client.close)
        application = Gateway({MODEL: model}, client, metrics).application(body_bytes_max)
        runner = web.AppRunner(application, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        session = await stack.enter_async_context(aiohttp.ClientSession())
        rig = GatewayRig(bus, session, "http://{}:{}".format(*runner.addresses[0]), model, frontend)
        rig.register(fakes)
        yield rig, fakes
