"""HTTP server for Prometheus, probes and the live page: ``/metrics``, ``/healthz``, ``/readyz`` and further routes."""

from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from loadline.adapters.http_runner import http_runner

_BODY_BYTES_MAX = 1024
_IDLE_S = 15.0
_SHUTDOWN_S = 1.0
_WAITING_CONNECTIONS_MAX = 64


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
        self._runner = http_runner(application, keepalive_timeout=_IDLE_S, shutdown_timeout=_SHUTDOWN_S)

    @property
    def port(self) -> int:
        """Port that it listens on; 0 while it does not."""
        addresses = self._runner.addresses
        return int(addresses[0][1]) if addresses else 0

    async def start(self) -> None:
        """Start to listen.

        Raises:
            OSError: The address is in use or not an address of this host.
        """
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port, backlog=_WAITING_CONNECTIONS_MAX).start()

    async def close(self) -> None:
        """Stop listening; open requests get 1 s."""
        await self._runner.cleanup()

    async def _serve_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=await self._metrics(), headers={"content-type": CONTENT_TYPE_LATEST})


def _probe(
    problems: Callable[[], list[str]], notes: Callable[[], list[str]] = list
) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def answer(_request: web.Request) -> web.Response:
        found = problems()
        return web.Response(text="\n".join([*(found or ["ok"]), *notes()]) + "\n", status=503 if found else 200)

    return answer
