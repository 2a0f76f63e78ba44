"""HTTP server for Prometheus, probes and the live page: ``/metrics``, ``/healthz``, ``/readyz`` and further routes."""

import asyncio
import resource
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from loadline.adapters.http_runner import http_runner

_BODY_BYTES_MAX = 1024
_IDLE_S = 15.0
_SHUTDOWN_S = 1.0
_WAITING_CONNECTIONS_MAX = 64
CONNECTIONS_MAX = 1_024
"""Open connections, and half of the file descriptors at most: those to NATS and etcd need some, too."""


class HttpServer:
    """HTTP server of an agent.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        metrics: Returns the metrics as Prometheus text, which may take its time.
        healthy: Returns the faults of the process, a sentence each; empty if there are none.
        ready: Returns the obstacles to readiness, a sentence each; empty if the agent is ready.
        missing: Returns missing inputs that do not prevent readiness, a sentence each.
        routes: Routes of the live page.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        metrics: Callable[[], Awaitable[bytes]],
        healthy: Callable[[], list[str]],
        ready: Callable[[], list[str]],
        missing: Callable[[], list[str]] = list,
        routes: Iterable[web.RouteDef] = (),
    ) -> None:
        self._host = host
        self._port = port
        self._metrics = metrics
        application = web.Application(client_max_size=_BODY_BYTES_MAX)
        application.add_routes(
            [
                web.get("/metrics", self._serve_metrics),
                web.get("/healthz", _probe(healthy)),
                web.get("/readyz", _probe(ready, missing)),
                *routes,
            ]
        )
        self._listener: asyncio.Server | None = None
        self._runner = http_runner(application, keepalive_timeout=_IDLE_S, shutdown_timeout=_SHUTDOWN_S)

    @property
    def port(self) -> int:
        """Port that it listens on; 0 while it does not."""
        return int(self._listener.sockets[0].getsockname()[1]) if self._listener is not None else 0

    async def start(self) -> None:
        """Start to listen.

        Raises:
            OSError: The address is in use or not an address of this host.
        """
        await self._runner.setup()
        assert self._runner.server is not None  # noqa: S101 - set up above
        accept, backlog = partial(_accept, self._runner.server, _connections_max()), _WAITING_CONNECTIONS_MAX
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(accept, self._host, self._port, backlog=backlog)

    async def close(self) -> None:
        """Stop listening; open requests get 1 s."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        await self._runner.cleanup()

    async def _serve_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=await self._metrics(), headers={"content-type": CONTENT_TYPE_LATEST})


def _connections_max() -> int:
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_MAX if descriptors == resource.RLIM_INFINITY else min(CONNECTIONS_MAX, descriptors // 2)


def _accept(server: web.Server, connections_max: int) -> web.RequestHandler:
    """Return the protocol of a new connection; the oldest ones end if there are too many.

    Up to 64 that are accepted at once see each other only when the next one comes.
    """
    transports = (one.transport for one in server.connections)
    live = [one for one in transports if one is not None and not one.is_closing()]
    for transport in live[: max(0, len(live) + 1 - connections_max)]:
        transport.abort()
    return server()


def _probe(
    problems: Callable[[], list[str]], notes: Callable[[], list[str]] = list
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_request: web.Request) -> web.Response:
        found = problems()
        return web.Response(text="\n".join([*(found or ["ok"]), *notes()]) + "\n", status=503 if found else 200)

    return answer
