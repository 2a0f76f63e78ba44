"""HTTP server of an agent that more clients connect to than it has room for."""

import asyncio
import contextlib

import pytest

from loadline.adapters import http
from loadline.adapters.http import HttpServer
from tests.waiting import until

CONNECTIONS_MAX = 8

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def no_metrics() -> bytes:
    return b""


@pytest.mark.parametrize("at_once", [1, 20])
def test_the_oldest_connections_end_when_there_are_too_many(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "CONNECTIONS_MAX", CONNECTIONS_MAX)

    async def connect(port: int) -> Connection:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /healthz HTTP/1.1\r\nX: ")
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionResetError):
            await reader.readuntil(b"ok\n")  # the answer: at the end of the connection nothing is left to read
        return reader, writer

    async def scenario() -> None:
        server = HttpServer("127.0.0.1", 0, metrics=no_metrics, healthy=list, ready=list)
        await server.start()
        connections: list[Connection] = []
        async with asyncio.timeout(60):
            for _ in range(40 // at_once):
                connections += await asyncio.gather(*(connect(server.port) for _ in range(at_once)))
            connections.append(await connect(server.port))
            await until(lambda: len(live(connections)) == CONNECTIONS_MAX, "the others end")
            assert live(connections)[-1] is connections[-1]
            assert at_once > 1 or live(connections) == connections[-CONNECTIONS_MAX:]
            for _, writer in connections:
                writer.close()
        await server.close()
        assert server.port == 0

    asyncio.run(scenario())


def live(connections: list[Connection]) -> list[Connection]:
    """Return the connections that have not ended."""
    return [one for one in connections if not (one[0].at_eof() or one[0].exception())]
