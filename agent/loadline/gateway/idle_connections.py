"""Limit of the time for which a connection of a client has no request, also if it sends a byte of one now and then."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

IDLE_S: Final = 60.0
"""The HTTP server itself limits only the time after a request."""
_SWEEP_S: Final = 5.0


class IdleConnections:
    """Connections without a request, and the middleware that knows those with one."""

    def __init__(self) -> None:
        self._busy: set[object] = set()
        self._since_s: dict[web.RequestHandler, float] = {}

    @web.middleware
    async def track(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Record that a connection has a request."""
        self._busy.add(request.protocol)
        try:
            return await handler(request)
        finally:
            self._busy.discard(request.protocol)

    def close_overdue(self, server: web.Server, now_s: float) -> None:
        """Close the connections that have had no request for too long."""
        idle = [one for one in server.connections if one not in self._busy]
        self._since_s = {one: self._since_s.get(one, now_s) for one in idle}
        for connection, since_s in self._since_s.items():
            if now_s - since_s >= IDLE_S:
                connection.force_close()

    async def run(self, server: web.Server) -> None:
        """Close overdue connections until cancelled."""
        while True:
            self.close_overdue(server, asyncio.get_running_loop().time())
            await asyncio.sleep(_SWEEP_S)
