"""An engine that answers every request with the same bytes, whatever they are."""

import asyncio
from contextlib import suppress
from typing import Self

STREAM = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n"


class RawEngine:
    """One engine on a port of its own, as an async context manager.

    Args:
        answer: Bytes of the answer.
        forever: Bytes that follow until the client leaves; empty: the connection is closed.
        pause_s: Time between those bytes.
        hangs: True: the connection stays open without more bytes.
    """

    def __init__(self, answer: bytes, *, forever: bytes = b"", pause_s: float = 0.0, hangs: bool = False) -> None:
        self.requests = 0
        self.open = 0
        self.sent_bytes = 0
        self.address = ""
        self._answer = answer
        self._forever = forever
        self._pause_s = pause_s
        self._hangs = hangs

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                await self._answer_one(reader, writer)
        finally:
            self.open -= 1
            writer.close()

    async def _answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
        await reader.readexactly(int(length or 0))
        self.requests += 1
        writer.write(self._answer)
        await writer.drain()
        while self._forever:
            writer.write(self._forever)
            await writer.drain()
            self.sent_bytes += len(self._forever)
            await asyncio.sleep(self._pause_s)
        if self._hangs:
            await reader.read()
