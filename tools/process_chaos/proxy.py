"""TCP proxy between one agent and one server, which can cut, freeze or slow its connections."""

import asyncio
from contextlib import suppress
from typing import Final, Literal

State = Literal["open", "cut", "frozen", "slow"]
SLOW_S: Final = 0.3
"""Delay of each chunk while the proxy is slow."""
_CHUNK_BYTES: Final = 65_536


class Proxy:
    """Proxy to a port of this host.

    Args:
        port: Port of the server.
    """

    def __init__(self, port: int) -> None:
        self.port = 0
        self._target = port
        self._state: State = "open"
        self._thawed = asyncio.Event()
        self._thawed.set()
        self._server: asyncio.Server | None = None
        self._ends: set[asyncio.WriteTransport] = set()
        self._relays: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    def set_state(self, state: State) -> None:
        """Pass everything on, refuse and cut connections, hold all bytes back, or delay each chunk."""
        self._state = state
        if state == "frozen":
            self._thawed.clear()
        else:
            self._thawed.set()
        for end in self._ends if state == "cut" else ():
            end.abort()

    async def close(self) -> None:
        """End all connections and stop listening."""
        self.set_state("cut")
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*self._relays)
        await asyncio.sleep(0)  # the transports close in the next cycle of the loop

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay = asyncio.create_task(self._relay(reader, writer))
        self._relays.add(relay)
        relay.add_done_callback(self._relays.discard)

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        ends = [writer.transport]
        try:
            if self._state == "cut":
                return
            server_reader, server_writer = await asyncio.open_connection("127.0.0.1", self._target)
            ends.append(server_writer.transport)
            self._ends.update(ends)
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(reader, server_writer))
                pumps.create_task(self._pump(server_reader, writer))
        except OSError:
            pass  # the server is down: the agent sees the end of its connection
        finally:
            self._ends.difference_update(ends)
            for end in ends:
                end.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass bytes on until one end is closed, then close the other."""
        with suppress(OSError):
            while data := await reader.read(_CHUNK_BYTES):
                await self._thawed.wait()
                if self._state == "slow":
                    await asyncio.sleep(SLOW_S)
                writer.write(data)
                await writer.drain()
        writer.transport.abort()
