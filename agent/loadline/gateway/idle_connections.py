"""Limit of the time for which a connection of a client has no request, also if it sends a byte of one now and then."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

IDLE_S: Final = 60.0
"""The HTTP server itself limits only the time after a request."""
_SWEEP_S: Final = 5.0


class IdleConnections:
    """Connections without a request, and the middleware that begins their time anew with each request."""

    def __init__(self) -> None:
        self._since_s: dict[web.RequestHandler, float] = {}

    @web.middleware
    async def track(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        """Record that a connection has a request, which may end before the next sweep."""
        self._since_s.pop(request.protocol, None)
        return await handler(request)

    def close_overdue(self, server: web.Server, now_s: float) -> None:
        """Close the connections that have had no request for too long."""
        idle = [one for one in server.connections if _waits_for_request(one)]
        self._since_s = {one: self._since_s.get(one, now_s) for one in idle}
        for connection, since_s in self._since_s.items():
            if now_s - since_s >= IDLE_S:
                connection.force_close()

    async def run(self, server: web.Server) -> None:
        """Close overdue connections until cancelled."""
        while True:
            self.close_overdue(server, asyncio.get_running_loop().time())
            await asyncio.sleep(_SWEEP_S)


def _waits_for_request(connection: web.RequestHandler) -> bool:
    """Return False also for a request that has arrived, and of which the middleware hears in the loop's next steps."""
    # aiohttp has no public name for it; its own time limit asks the same. Without it no connection counts as idle.
    waiter = getattr(connection, "_waiter", None)
    return waiter is not None and not waiter.done()
