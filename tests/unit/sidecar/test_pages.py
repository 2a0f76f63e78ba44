"""Answers of an engine, and of what may listen in its place."""

import asyncio
import contextlib

import pytest

from loadline.sidecar import pages
from loadline.sidecar.pages import EnginePages, NoAnswer
from tests.support.engine_server import engine_server


def fetched(status: int = 200, body: bytes = b"body\n") -> bytes:
    async def scenario() -> bytes:
        async with asyncio.timeout(30), engine_server() as engine, EnginePages(f"{engine.url}/metrics") as client:
            engine.status, engine.body = status, body
            return await client.fetch()

    return asyncio.run(scenario())


def refusal(written: bytes | None, *, listens: bool = True) -> NoAnswer:
    """Return the failure to read what a server writes; None: it accepts and says nothing."""
    answered = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        if written is None:
            await reader.read()  # until the client gives up
        writer.write(written or b"")
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        answered.set()

    async def scenario() -> NoAnswer:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        if not listens:
            server.close()
            await server.wait_closed()
        async with asyncio.timeout(30), EnginePages(f"http://127.0.0.1:{port}/metrics") as client:
            with pytest.raises(NoAnswer) as caught:
                await client.fetch()
        if listens:
            await answered.wait()
        server.close()
        return caught.value

    return asyncio.run(scenario())


@pytest.mark.parametrize("status", [200, 301, 401, 404])
def test_every_answer_below_500_is_an_answer(status: int) -> None:
    assert fetched(status) == b"body\n"


@pytest.mark.parametrize("status", [500, 503])
def test_an_error_of_the_server_is_none(status: int) -> None:
    with pytest.raises(NoAnswer, match=f"HTTP {status}") as caught:
        fetched(status)
    assert not caught.value.refused


def test_a_page_that_is_too_large_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "PAGE_BYTES_MAX", 1_000)
    assert fetched(body=b"x" * 1_000)
    with pytest.raises(NoAnswer, match="more than 1,000 bytes"):
        fetched(body=b"x" * 1_001)


def test_a_closed_port_is_refused() -> None:
    assert refusal(b"", listens=False).refused


@pytest.mark.parametrize(
    "written",
    [
        b"",
        b"no http\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nvllm:num_requests_running 1\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nvllm:\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
    ],
)
def test_half_an_answer_is_none(written: bytes) -> None:
    assert not refusal(written).refused


def test_a_server_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "TIMEOUT_S", 0.05)
    found = refusal(None)
    assert str(found) == "no answer within 5 s"
    assert not found.refused
