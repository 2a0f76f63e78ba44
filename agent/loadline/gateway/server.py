"""HTTP server of a gateway, and its composition."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from typing import Final

import msgspec
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from loadline.adapters.http_runner import http_runner
from loadline.client.frontend import FrontendClient
from loadline.client.handover import HandoverBus
from loadline.client.resources import bus_of, publish_now, running, store_of
from loadline.client.streams import StopStream, StreamSubjects
from loadline.client.streams.engine import REPORT_INTERVAL_S
from loadline.client.worker_registry import WorkerRegistry
from loadline.core.vocabulary.events import LoadReported
from loadline.errors import ConfigError
from loadline.gateway import headers
from loadline.gateway.api_request import CHAT, COMPLETIONS, ApiRequest, Endpoint, read_request
from loadline.gateway.backends import Backends
from loadline.gateway.engine_client import EngineClient
from loadline.gateway.errors import BODY_BYTES_MAX, ApiError, ClientLeft, errors_as_json
from loadline.gateway.idle_connections import IdleConnections
from loadline.gateway.metrics import GatewayMetrics
from loadline.gateway.model import ServedModel
from loadline.gateway.moves import StreamMoves, gateway_id
from loadline.gateway.options import GatewayOptions
from loadline.gateway.stream_session import StreamSession
from loadline.gateway.traffic import Measured, ModelTraffic
from loadline.gateway.whole_answer import answer_whole
from loadline.ports import Bus
from loadline.toml.regular_file import os_error_text
from loadline.wire.codec import Codec, Rejected, decode_as, encode
from loadline.wire.subjects import Subjects, encode_token

_CLIENT_LEFT: Final = 499
_SHUTDOWN_S: Final = 60.0
# A body of 32 MiB takes 30 s at 9 Mbit/s.
_BODY_S: Final = 60.0


class Gateway:
    """Handlers of the API.

    Args:
        models: Served models by name.
        engines: Connections to engines.
        metrics: Metrics of the gateway.
    """

    def __init__(self, models: Mapping[str, ServedModel], engines: EngineClient, metrics: GatewayMetrics) -> None:
        self._models = models
        self._engines = engines
        self._metrics = metrics
        self._began_s = int(time.time())
        self.idle = IdleConnections()
        """Connections of clients without a request."""

    def application(self, body_bytes_max: int) -> web.Application:
        """Return the application that serves the API.

        Args:
            body_bytes_max: Largest body of a request.
        """
        application = web.Application(middlewares=[self.idle.track, errors_as_json], client_max_size=body_bytes_max)
        application[BODY_BYTES_MAX] = body_bytes_max
        application.add_routes(
            [
                web.post(COMPLETIONS, self._serve(COMPLETIONS)),
                web.post(CHAT, self._serve(CHAT)),
                web.get("/v1/models", self._list_models),
                web.get("/healthz", self._answer_health),
                web.get("/metrics", self._answer_metrics),
            ]
        )
        return application

    def _serve(self, endpoint: Endpoint) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        async def serve(request: web.Request) -> web.StreamResponse:
            if any(self._engines.via in value for value in request.headers.getall("via", ())):
                text = "a worker is registered with the address of this gateway; register the engine's own"
                raise ApiError(508, text, code="loop")
            headers.check(headers.to_engine(request.headers, self._engines.via))
            asked = read_request(endpoint, await _body(request), self._models)
            model = self._models[asked.model]
            status = _CLIENT_LEFT
            try:
                answer, status = await self._answer(request, asked, model, model.traffic.arrive(asked))
            except ApiError as error:
                status = error.status
                raise
            except ClientLeft:
                if request.transport is not None:
                    request.transport.abort()  # what a client does not read would keep the connection
                return web.Response(status=_CLIENT_LEFT)
            finally:
                self._metrics.answered(model.name, status)
            return answer

        return serve

    async def _answer(
        self, request: web.Request, asked: ApiRequest, model: ServedModel, measured: Measured
    ) -> tuple[web.StreamResponse, int]:
        """Return the answer, and the status to count: that of an error which ended a stream."""
        if asked.stream:
            session = StreamSession(request, asked, model, measured, self._engines)
            streamed = await session.run()
            return streamed, session.failure_status or streamed.status
        whole = await answer_whole(request, asked, model, measured, self._engines)
        return whole, whole.status

    async def _list_models(self, _request: web.Request) -> web.Response:
        entry = {"object": "model", "created": self._began_s, "owned_by": "loadline"}
        listed = {"object": "list", "data": [{"id": name, **entry} for name in self._models]}
        return web.Response(body=msgspec.json.encode(listed), content_type="application/json")

    async def _answer_health(self, _request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def _answer_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics.render(), headers={"content-type": CONTENT_TYPE_LATEST})


async def _body(request: web.Request) -> bytes:
    try:
        async with asyncio.timeout(_BODY_S):
            return await request.read()
    except TimeoutError:
        raise ApiError(408, f"the body did not arrive within {_BODY_S:.0f} s") from None
    except web.RequestPayloadError as error:
        raise ApiError(400, "the body is not what `content-encoding` or its chunks say") from error


async def run(options: GatewayOptions, stop: asyncio.Event, on_listening: Callable[[str, int], object]) -> None:
    """Serve until ``stop`` is set, then refuse waiting requests and let the others end within a minute.

    Args:
        options: Models to serve, servers and limits.
        stop: Ends it.
        on_listening: Called with the address once it accepts connections.

    Raises:
        ConfigError: The address cannot be used.
    """
    metrics = GatewayMetrics()
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(bus_of(None, options.nats, f"loadline-gateway-{options.name}"))
        store = await stack.enter_async_context(store_of(None, options.etcd))
        engines = EngineClient()
        stack.push_async_callback(engines.close)
        models: dict[str, ServedModel] = {}
        for name, objectives in options.objectives.items():
            frontend = FrontendClient(name, options.name, bus=bus, root=options.root)
            await stack.enter_async_context(frontend)
            backends = Backends(name, options.held_max, options.held_bytes_max, frontend)
            metrics.watch(name, backends, frontend)
            moves = StreamMoves(gateway_id(options.name, time.time_ns() // 1_000_000), backends)
            await stack.enter_async_context(running(_serve_moves(bus, options.root, name, moves), f"moves of {name}"))
            traffic = ModelTraffic(frontend, objectives)
            limits = options.hold_s, options.stall_s, options.first_byte_s
            models[name] = ServedModel(name, backends, traffic, moves, metrics, *limits)
            follow = WorkerRegistry(options.namespace, name, backends.update).follow(store)
            await stack.enter_async_context(running(follow, f"workers of {name}"))
            await _follow_loads(bus, options, name, backends)
        gateway = Gateway(models, engines, metrics)
        application = gateway.application(options.body_bytes_max)
        runner = http_runner(application, handler_cancellation=True, shutdown_timeout=_SHUTDOWN_S)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        try:
            await web.TCPSite(runner, options.host, options.port).start()
        except OSError as error:
            problem = f"cannot listen on {options.host}:{options.port} ({os_error_text(error)})"
            raise ConfigError("--listen", problem, "Name another address or port.") from error
        if runner.server is not None:
            await stack.enter_async_context(running(gateway.idle.run(runner.server), "idle connections"))
        on_listening(*runner.addresses[0][:2])
        await stop.wait()
        for model in models.values():
            model.backends.stop_holding(_SHUTDOWN_S / 2)


async def _follow_loads(bus: Bus, options: GatewayOptions, model: str, backends: Backends) -> None:
    """Keep the number of requests at each engine, other gateways' included, as workers report it."""
    subjects = Subjects(options.root)
    codec = Codec(subjects, options.nats.frame_bytes_max)

    def receive(subject: str, payload: bytes) -> None:
        event = codec.decode(subject, payload)
        if isinstance(event, LoadReported):
            backends.apply_load(event)

    await bus.subscribe(f"{subjects.prefix}.load.{encode_token(model)}.>", receive)


async def _serve_moves(bus: Bus, root: str, model: str, moves: StreamMoves) -> None:
    """Answer workers that move streams, and report the streams to them until cancelled."""
    subjects = StreamSubjects(root, model)

    async def answer_stop(payload: bytes) -> bytes | None:
        command = decode_as(StopStream, payload)
        return None if isinstance(command, Rejected) else encode(moves.answer_stop(command))

    await bus.answer(subjects.stop(moves.gateway), answer_stop)
    await HandoverBus(bus, subjects.prefix).serve_frontend(moves.gateway, moves.answer_claim)
    while True:
        for report in moves.reports():
            await publish_now(bus, subjects.report(report.worker), report)
        await asyncio.sleep(REPORT_INTERVAL_S)
