"""HTTP server whose clients send no HTTP, of which the log has lines, or all of their requests at once."""

import asyncio
import io
import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest
import structlog
from aiohttp import web

from loadline.adapters import http_runner, logs

T = TypeVar("T")
OVERSIZED = b"GET / HTTP/1.1\r\nA: " + b"b" * 9_000 + b"\r\n\r\n"
MISTAKES = [
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET http://[ HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"POST / HTTP/1.1\r\nHost: a\r\nContent-Encoding: gzip\r\nContent-Length: 4\r\n\r\nabcd",
    OVERSIZED,
]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    stream = io.StringIO()
    logs.configure("json", "info", stream)
    monkeypatch.setattr(http_runner, "_log", logs.bounded("http"))  # with an allowance of its own
    yield stream
    structlog.reset_defaults()


REQUEST = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"


def answers(*requests: bytes) -> list[int]:
    """Return the status of the answer to each request, on a connection of its own."""

    async def ask(host: str, port: int) -> list[int]:
        statuses = []
        for request in requests:
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(request)
            statuses.append(int((await reader.readline()).split()[1]))
            writer.close()
        return statuses

    return serve(ask)


def serve(ask: Callable[[str, int], Awaitable[T]]) -> T:
    """Return what a client makes of a server at a host and port."""

    async def fail(_request: web.Request) -> web.Response:
        raise ZeroDivisionError

    async def scenario() -> T:
        application = web.Application()
        application.router.add_get("/fail", fail)
        runner = http_runner.http_runner(application)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        found = await ask(*runner.addresses[0][:2])
        await runner.cleanup()
        return found

    async def bounded() -> T:
        async with asyncio.timeout(60):
            return await scenario()

    return asyncio.run(bounded())


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@pytest.mark.parametrize("request_", MISTAKES)
def test_a_clients_mistake_is_one_short_line_without_a_traceback(request_: bytes, log: io.StringIO) -> None:
    assert answers(request_)[0] in {400, 404}
    (line,) = lines(log)
    assert (line["event"], line["level"], line["component"]) == ("bad_request", "warning", "http")
    assert "exception" not in line
    assert line["reason"]
    assert 0 < len(line["detail"]) <= 200


def test_the_lines_of_mistakes_are_limited(log: io.StringIO) -> None:
    answers(*[OVERSIZED] * 40)
    assert len(lines(log)) == 30


def test_an_error_of_the_server_keeps_its_traceback(log: io.StringIO) -> None:
    assert answers(b"GET /fail HTTP/1.1\r\nHost: a\r\n\r\n") == [500]
    (line,) = lines(log)
    assert "ZeroDivisionError" in line["exception"]


def test_of_requests_sent_at_once_the_first_is_answered_and_the_connection_closed() -> None:
    async def ask(host: str, port: int) -> bytes:
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(REQUEST * 400)
        answer = await reader.read()
        writer.close()
        return answer

    answer = serve(ask)
    assert answer.count(b"HTTP/1.1 404 ") == 1
    assert b"\r\nConnection: close\r\n" in answer


def test_requests_sent_one_after_the_other_share_a_connection() -> None:
    async def ask(host: str, port: int) -> list[bytes]:
        reader, writer = await asyncio.open_connection(host, port)
        heads = []
        for _ in range(3):
            writer.write(REQUEST)
            heads.append(await reader.readuntil(b"\r\n\r\n"))
            await reader.readexactly(len("404: Not Found"))
        writer.close()
        return heads

    assert [head.split()[1] for head in serve(ask)] == [b"404"] * 3
