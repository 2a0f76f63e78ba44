"""Engine that serves pages of metrics which a test writes, over a real socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from tests.support.engine_pages import page


class EngineServer:
    """HTTP server of an engine.

    Attributes:
        body: The next answers: a page, or series to make one of.
        status: Their HTTP status.
        may_answer: While it is not set, there is no answer.
    """

    def __init__(self) -> None:
        self.body: bytes | dict[str, float | str] = b""
        self.status = 200
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.path = "/metrics"
        """The only path that is asked for."""
        self.asked = 0
        self.port = 0
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def start(self) -> None:
        app = web.Application()
        app.router.add_get("/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.0)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.asked += 1
        assert request.path == self.path
        await self.may_answer.wait()
        body = page(self.body) if isinstance(self.body, dict) else self.body
        return web.Response(body=body, status=self.status)


@asynccontextmanager
async def engine_server() -> AsyncIterator[EngineServer]:
    server = EngineServer()
    await server.start()
    try:
        yield server
    finally:
        await server.stop()
