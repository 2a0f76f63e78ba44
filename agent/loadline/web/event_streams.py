"""Clients of server-sent events: a bounded number, each of which gets the newest frame as fast as it reads."""

import asyncio
from collections.abc import Callable
from typing import Final

from aiohttp import web

CLIENTS_MAX: Final = 64
"""Clients at once; more are refused with 503."""
RETRY_AFTER_S: Final = 10
HEARTBEAT_S: Final = 10.0
"""Time without a frame after which a comment keeps the connection open, and finds closed ones."""
WRITE_S: Final = 20.0
"""Time within which a client must take a frame; a slower one is disconnected."""
_HEARTBEAT: Final = b": alive\n\n"


class _Client:
    """One client: the frame that it should get next; a newer frame replaces an older one."""

    def __init__(self, model: str) -> None:
        self.model = model
        self.frame = b""
        self.arrived = asyncio.Event()

    def offer(self, frame: bytes) -> None:
        """Replace the frame that waits."""
        self.frame = frame
        self.arrived.set()

    async def take(self, timeout_s: float) -> bytes:
        """Wait for a frame; return a heartbeat after the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.arrived.wait()
        except TimeoutError:
            return _HEARTBEAT
        self.arrived.clear()
        return self.frame


class EventStreams:
    """Clients that follow the page.

    Args:
        clients_max: Clients at once.
        heartbeat_s: Time without a frame after which a comment is sent.
        write_s: Time within which a client must take a frame.
    """

    def __init__(
        self, clients_max: int = CLIENTS_MAX, heartbeat_s: float = HEARTBEAT_S, write_s: float = WRITE_S
    ) -> None:
        self._clients_max = clients_max
        self._heartbeat_s = heartbeat_s
        self._write_s = write_s
        self._clients: set[_Client] = set()
        self._closed = asyncio.Event()

    @property
    def count(self) -> int:
        """Number of clients."""
        return len(self._clients)

    def watched(self) -> list[str]:
        """Return the models that clients follow, in order."""
        return sorted({client.model for client in self._clients})

    def send(self, model: str, frame: bytes) -> None:
        """Offer a frame to all who follow a model."""
        for client in self._clients:
            if client.model == model:
                client.offer(frame)

    def close(self) -> None:
        """End all streams."""
        self._closed.set()
        for client in self._clients:
            client.arrived.set()

    async def serve(
        self, request: web.Request, model: str, first: bytes, may_read: Callable[[web.Request], bool]
    ) -> web.StreamResponse:
        """Stream the frames of a model to a client until it leaves, or may read no more.

        Raises:
            HTTPServiceUnavailable: There are too many clients.
        """
        if len(self._clients) >= self._clients_max:
            text = f"{self._clients_max} pages are open already; close one, or try again later\n"
            raise web.HTTPServiceUnavailable(text=text, headers={"retry-after": str(RETRY_AFTER_S)})
        client = _Client(model)
        if first:
            client.offer(first)
        self._clients.add(client)
        try:
            return await self._stream(request, client, may_read)
        finally:
            self._clients.discard(client)

    async def _stream(
        self, request: web.Request, client: _Client, may_read: Callable[[web.Request], bool]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream", "cache-control": "no-store"})
        await response.prepare(request)
        try:
            while not self._closed.is_set():
                frame = await client.take(self._heartbeat_s)
                if not may_read(request):  # its token was replaced
                    break
                async with asyncio.timeout(self._write_s):
                    await response.write(frame)
        except (ConnectionError, TimeoutError):
            if request.transport is not None:
                request.transport.abort()  # what the client did not take would be sent before the connection closes
        return response
