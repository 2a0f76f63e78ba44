"""Programs that answer: the HTTP servers of agents and gateways, the agent's API on the bus, and a sidecar's commands.

They run on an event loop in virtual time, without sockets, and live as long as the process, as real ones do.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from functools import cache
from typing import Any, Final, cast
from unittest.mock import patch

import msgspec
from aiohttp import web

from loadline.adapters.http import HttpServer
from loadline.adapters.http_runner import http_runner
from loadline.client.frontend import FrontendClient
from loadline.client.handover import HandoverBus
from loadline.client.streams import StreamEngine, StreamSubjects
from loadline.client.worker import WorkerClient
from loadline.config import parse
from loadline.core.vocabulary.events import RegistryRead
from loadline.core.vocabulary.samples import RegisteredWorker, WorkerRecord, WorkerSample
from loadline.gateway.backends import Backends
from loadline.gateway.engine_client import EngineClient
from loadline.gateway.metrics import GatewayMetrics
from loadline.gateway.model import ServedModel
from loadline.gateway.moves import StreamMoves
from loadline.gateway.server import Gateway
from loadline.gateway.traffic import ModelTraffic
from loadline.runtime import service as service_module
from loadline.web.access import Access
from loadline.web.event_streams import EventStreams
from loadline.web.live_handlers import LiveHandlers
from loadline.web.live_page import LivePage
from loadline.wire.messages import DrainCommand, OperatorReply
from loadline.wire.subjects import Subjects
from tests.fuzz.scratch import scratch_folder
from tests.fuzz.target import Target
from tests.support import statuses
from tests.support.memory import MemoryBus, MemoryStore
from tests.support.service import service_of
from tests.support.virtual_time import VirtualTimeLoop

_TOKEN: Final = "0123456789-abcdef"  # noqa: S105 - of no agent
_STEPS: Final = 40
"""Turns of the loop that a request gets; one that is whole needs 10."""


_LEFT_S: Final = 60.0
"""Virtual time after which a server has found that a client has left: streams notice it at their next heartbeat."""


class Loop:
    """An event loop, the exceptions that reached it, and the services on it."""

    def __init__(self) -> None:
        self.failures: list[str] = []
        self._loop = VirtualTimeLoop()
        self._loop.set_exception_handler(lambda _loop, context: self.failures.append(str(context)))

    def run(self, main: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine.

        Raises:
            AssertionError: A task or callback failed meanwhile.
        """
        found = self._loop.run_until_complete(main)
        failures, self.failures[:] = [*self.failures], []
        assert not failures, failures
        return found


@cache
def loop() -> Loop:
    """Return the loop of this process."""
    return Loop()


class MemoryTransport(asyncio.Transport):
    """Connection whose peer sends some bytes and keeps what it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.sent = bytearray()
        self._closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.sent += data

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.write(data)

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        self._closing = True

    abort = close

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0


async def exchange(runner: web.AppRunner, data: bytes) -> bytes:
    """Return what a server answers to bytes on a connection of its own.

    Raises:
        AssertionError: It failed.
    """
    assert runner.server is not None
    protocol, transport = cast("asyncio.Protocol", runner.server()), MemoryTransport()
    protocol.connection_made(transport)
    protocol.data_received(data)
    for _ in range(_STEPS):
        await asyncio.sleep(0)
        if transport.is_closing() or not has_work():
            break
    protocol.connection_lost(None)
    await asyncio.sleep(_LEFT_S)
    answer = bytes(transport.sent)
    assert b"HTTP/1.1 500 " not in answer, answer[:500]
    return answer


def has_work() -> bool:
    """Return True if a callback waits for the next turn of the running loop; otherwise all wait for a time or input."""
    return bool(cast("Any", asyncio.get_running_loop())._ready)


@cache
def _agent_server() -> web.AppRunner:
    async def set_paused(model: str, by: str, *, paused: bool) -> OperatorReply:
        return OperatorReply(accepted=paused, detail=f"{by} {model}")

    async def metrics() -> bytes:
        return b"up 1\n"

    async def start() -> web.AppRunner:
        page = LivePage(lambda: 1, lambda: [statuses.state_of(page.status)], EventStreams())
        await page.update(statuses.agent(statuses.model()))
        token_file = scratch_folder() / "token"
        token_file.write_text(_TOKEN, "utf-8")
        handlers = LiveHandlers(page, Access("127.0.0.1", str(token_file)), set_paused)
        server = HttpServer("x", 0, metrics=metrics, healthy=list, ready=list, routes=handlers.routes())
        await server._runner.setup()
        return server._runner

    return cast("web.AppRunner", loop().run(start()))


def read_http(data: bytes) -> None:
    """Answer bytes on a connection to the agent's HTTP server."""
    loop().run(exchange(_agent_server(), data))


@cache
def _gateway() -> tuple[web.AppRunner, MemoryBus]:
    async def start() -> tuple[web.AppRunner, MemoryBus]:
        bus, metrics = MemoryBus(), GatewayMetrics()
        frontend = await FrontendClient("tiny", "g", bus=bus, interval_ms=3_600_000).__aenter__()
        backends = Backends("tiny", 10, 1_000_000, frontend)
        moves = StreamMoves("g-1", backends)
        served = ServedModel("tiny", backends, ModelTraffic(frontend, None), moves, metrics, 0.0, 1.0, None)
        engines = EngineClient()
        application = Gateway({"tiny": served}, engines, metrics).application(100_000)
        runner = http_runner(application, handler_cancellation=True)
        await runner.setup()
        return runner, bus

    return cast("tuple[web.AppRunner, MemoryBus]", loop().run(start()))


def read_gateway(data: bytes) -> None:
    """Answer bytes on a connection to a gateway whose model has no worker."""
    loop().run(exchange(_gateway()[0], data))


@cache
def _endpoints() -> dict[str, Callable[[bytes], Awaitable[bytes | None]]]:
    async def start() -> dict[str, Callable[[bytes], Awaitable[bytes | None]]]:
        found = parse('[[models]]\nname = "m"\n[[models.pools]]\nname = "p"\nrole = "aggregated"\n', "x")
        runtime, service = service_of(found)
        worker = RegisteredWorker(WorkerRecord("m", "p", "w", "aggregated", 1), 5)
        runtime.controller.handle([RegistryRead([worker])], runtime.clock.now_ms())
        runtime.controller.state.store_connected = runtime.controller.state.decisions_read = True

        async def pause(payload: bytes) -> bytes | None:
            # Nobody writes it: look for it once, not 300 times.
            with patch.object(service_module, "PAUSE_POLL_S", service_module.PAUSE_CONFIRM_S):
                answer = await service._pause(payload, paused=True)
            runtime.inbox.pop_batch(1_000)
            return answer

        async def drain(payload: bytes) -> bytes | None:
            answer = await service._drain(payload)
            runtime.inbox.pop_batch(1_000)
            return answer

        return {
            "status": service._status,
            "explain": service._explain,
            "decisions": service._decisions,
            "pause": pause,
            "drain": drain,
            "announce": service._announce,
        }

    return cast("dict[str, Callable[[bytes], Awaitable[bytes | None]]]", loop().run(start()))


def read_endpoint(data: bytes) -> None:
    """Answer the payload behind the first line as a request to the endpoint that this names, or to any other."""
    name, _, payload = data.partition(b"\n")
    endpoints = _endpoints()
    others = list(endpoints.values())
    answer = endpoints.get(name.decode("utf-8", "replace"), others[sum(name) % len(others)])
    reply = loop().run(cast("Coroutine[Any, Any, bytes | None]", answer(payload)))
    assert reply is None or msgspec.json.decode(reply) is not None


@cache
def _worker_bus() -> MemoryBus:
    async def start() -> MemoryBus:
        async def never(_command: DrainCommand) -> None:
            await asyncio.Event().wait()

        bus = MemoryBus()
        record = WorkerRecord("m", "p", "w", "aggregated", 1)
        engine = StreamEngine(record, bus, "loadline", lambda tokens: tokens < 1_000_000)
        worker = WorkerClient(
            record,
            bus=bus,
            store=MemoryStore(),
            sample=lambda: WorkerSample(0, 0),
            on_drain=never,
            report_interval_ms=3_600_000,
            lease_ttl_s=3_600,
            migration=engine.options(),
        )
        await engine.start()
        await worker.__aenter__()
        await worker.ready()
        backends = Backends("m", 10, 1_000_000, FrontendClient("m", "g", bus=bus))
        moves = StreamMoves("g-1", backends)
        await HandoverBus(bus, StreamSubjects("loadline", "m").prefix).serve_frontend("g-1", moves.answer_claim)
        return bus

    return cast("MemoryBus", loop().run(start()))


def read_command(data: bytes) -> None:
    """Deliver the payload behind the first line on the subject that this names, below that of the root."""
    subject, _, payload = data.partition(b"\n")
    bus = _worker_bus()

    async def deliver() -> None:
        name = f"{Subjects('loadline').prefix}.{subject.decode('utf-8', 'replace')}"
        bus.publish_now(name, payload)
        for responder in bus._bus.responders(name).values():
            answered = asyncio.ensure_future(responder.answer(payload))
            await asyncio.wait([answered], timeout=10.0)
            answered.cancel()
            await asyncio.wait([answered])
            if not answered.cancelled():
                answered.result()
        bus.published.clear()

    loop().run(deliver())


def _request(line: str, *headers: str, body: bytes = b"") -> bytes:
    length = [f"content-length: {len(body)}"] if body else []
    return "\r\n".join([f"{line} HTTP/1.1", "host: 127.0.0.1", *headers, *length, "", ""]).encode() + body


_BEARER: Final = f"authorization: Bearer {_TOKEN}"
_JSON: Final = "content-type: application/json"
_ORDER: Final = b'{"model":"llama"}'
_HTTP: Final = [
    _request("GET /"),
    _request("GET /metrics", "accept-encoding: gzip"),
    _request("GET /healthz", "connection: close"),
    _request("GET /api/events?model=llama", _BEARER),
    _request("GET /api/history?model=%6clama"),
    _request("GET /api/decisions", "origin: http://x"),
    _request("GET /api/token", _BEARER),
    _request("POST /api/pause", _BEARER, _JSON, body=_ORDER),
    _request("POST /api/resume", _BEARER, _JSON, "origin: http://127.0.0.1", body=_ORDER),
    _request("POST /", "content-type: application/x-www-form-urlencoded", body=f"token={_TOKEN}".encode()),
    _request(
        "POST /",
        "content-type: multipart/form-data; boundary=b",
        body=b'--b\r\ncontent-disposition: form-data; name="token"\r\n\r\nx\r\n--b--\r\n',
    ),
    b"POST /api/pause HTTP/1.1\r\nhost: [::1]:1\r\ntransfer-encoding: chunked\r\n\r\n4\r\nabcd\r\n0\r\n\r\n",
]
_PROMPT: Final = b'{"model":"tiny","prompt":"a","stream":true}'
_GATEWAY: Final = [
    _request("POST /v1/completions", _JSON, body=_PROMPT),
    _request("POST /v1/chat/completions", _JSON, "via: 1.1 x", body=b'{"model":"tiny","messages":[]}'),
    _request("POST /v1/completions", "content-encoding: deflate", body=b"x\x9c\xab\x05\x00"),
    _request("GET /v1/models"),
    _request("GET /metrics"),
    _request("GET /nothing?a=%ff"),
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n2;x=y\r\n{}\r\n0\r\na: b\r\n\r\n",
]
_MOVE: Final = (
    b'{"command_id":"c","model":"m","epoch":3,"source":{"pool":"p","worker":"w","incarnation":1},'
    b'"destination":{"pool":"p","worker":"v","incarnation":2},"trigger":"load","rule":"NUM_REQ","order":"LR",'
    b'"value":1.0,"ttl_ms":9000}'
)
_STREAM: Final = b'{"request_id":"g.1","hop":1,"prompt_tokens":9,"output_tokens":1,"remaining_tokens":3}'
_COMMANDS: Final = [
    (
        b'drain.m.p.w\n{"drain_id":"d","model":"m","pool":"p","worker":"w","role":"aggregated","incarnation":1,"epoch":2,'
        b'"ttl_ms":60000}'
    ),
    b"migrate.m.p.w\n" + _MOVE,
    b'streams.m.report.w\n{"gateway":"g","worker":"w","incarnation":1,"streams":[' + _STREAM + b"]}",
    b'streams.m.room.w\n{"request_id":"g.1","incarnation":1,"kv_tokens":10,"ttl_ms":1000,"kv_tokens_max":20}',
    (
        b'streams.m.handover.w\n{"request":{"request_id":"g.1","frontend":"g-1","hop":2,"migrations":1,"state":""},'
        b'"incarnation":1}'
    ),
    b'streams.m.claim.g-1\n{"request_id":"g-1.1","worker":"w","incarnation":1,"hop":2}',
]
_REQUESTS: Final = [
    b'status\n{"part":1}',
    b'explain\n{"decision_id":"d","model":"m","earlier":true}',
    b"decisions\n{}",
    b'pause\n{"model":"m","by":"me"}',
    b'drain\n{"model":"m","pool":"p","worker":"w","by":"me"}',
    b'announce\n{"models":["m","n"],"by":"s"}',
]
SERVICE_TARGETS: Final = (
    Target("http", read_http, _HTTP),
    Target("endpoints", read_endpoint, _REQUESTS),
    Target("sidecar", read_command, _COMMANDS),
    Target("gateway", read_gateway, _GATEWAY),
)
