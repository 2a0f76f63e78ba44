"""Clients that send bodies which never end, or are not what they say."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import cast

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from loadline.gateway import server
from loadline.gateway.idle_connections import IDLE_S, IdleConnections
from tests.support.gateway_rig import MODEL, GatewayRig, gateway_rig
from tests.support.moving_streams import COMPLETIONS, asked
from tests.waiting import until

_GET = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
_HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"


async def send(rig: GatewayRig, raw: bytes, *, ok: bool = False) -> tuple[bytes, str]:
    """Return the status and the message of the answer to raw bytes, which has none if it is ``ok``."""
    host, port = rig.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(raw)
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        body = await reader.readexactly(int(length))
    writer.close()
    return head.split()[1], "" if ok else json.loads(body)["error"]["message"]


def test_a_body_that_does_not_arrive_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_BODY_S", 0.1)

    async def scenario() -> None:
        async with gateway_rig() as (rig, _):
            status, message = await send(rig, _HEAD + b"content-length: 100\r\n\r\nabc")
            assert status == b"408"
            assert "did not arrive" in message

    asyncio.run(scenario())


def test_a_header_that_an_engine_would_not_receive_whole_is_named() -> None:
    async def scenario() -> None:
        async with gateway_rig() as (rig, [engine]):
            body = json.dumps({"model": MODEL, **asked(COMPLETIONS)}).encode()
            rest = b"content-length: %d\r\n\r\n%s" % (len(body), body)
            status, message = await send(rig, _HEAD + b"x-user: Andr\xe9\r\n" + rest)
            assert (status, message) == (b"400", "the header 'x-user' is no UTF-8; encode it, or leave it out")
            async with rig.session.post(rig.url + COMPLETIONS, data=body, headers={"x-user": "André"}) as answer:
                assert answer.status == 200
            assert (await send(rig, _HEAD + b"accept-encoding: \xe9\r\n" + rest, ok=True))[0] == b"200"
            assert len(engine.bodies) == 2

    asyncio.run(scenario())


@asynccontextmanager
async def served(application: web.Application, idle: IdleConnections) -> AsyncIterator[tuple[web.Server, int]]:
    """Serve an application, whose connections are closed by hand; yield its server and port."""
    application.middlewares.append(idle.track)
    async with TestServer(application) as started:
        assert started.runner is not None
        server = started.runner.server
        assert server is not None
        assert started.port is not None
        yield server, started.port


def test_a_connection_without_a_request_is_closed_even_if_it_sends_headers() -> None:
    async def scenario() -> None:
        application, idle = web.Application(), IdleConnections()
        arrived, may_answer = asyncio.Event(), asyncio.Event()

        async def answer(_request: web.Request) -> web.Response:
            arrived.set()
            await may_answer.wait()
            return web.Response()

        application.router.add_get("/", answer)
        async with served(application, idle) as (server, port):
            slow, writer = await asyncio.open_connection("127.0.0.1", port)
            busy, asking = await asyncio.open_connection("127.0.0.1", port)
            asking.write(_GET)
            writer.write(b"GET / HTTP/1.1\r\nhost: x\r\n")
            await arrived.wait()
            await until(lambda: len(server.connections) == 2, "both are connected")
            for second in range(int(IDLE_S)):
                idle.close_overdue(server, second)
                writer.write(b"x: y\r\n")
                await writer.drain()
            assert len(server.connections) == 2
            idle.close_overdue(server, IDLE_S)
            with suppress(ConnectionResetError):  # what it has sent is not read any more
                assert await slow.read() == b""
            may_answer.set()
            assert (await busy.readline()).startswith(b"HTTP/1.1 200")
            for one in (writer, asking):
                one.close()

    asyncio.run(scenario())


def at_once() -> web.Application:
    """Return an application that answers each request without a wait."""

    async def answer(_request: web.Request) -> web.Response:
        return web.Response()

    application = web.Application()
    application.router.add_get("/", answer)
    return application


async def waiting(server: web.Server) -> web.RequestHandler:
    """Return the only connection, once it waits for a request."""
    await until(lambda: [one._waiter for one in server.connections if one._waiter], "it waits for a request")
    [connection] = server.connections
    return connection


def test_a_connection_is_idle_from_its_last_request_on_however_short_that_was() -> None:
    async def scenario() -> None:
        idle = IdleConnections()
        async with served(at_once(), idle) as (server, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for now_s in (0.0, IDLE_S - 1, IDLE_S):
                await waiting(server)
                idle.close_overdue(server, now_s)
                writer.write(_GET)
                assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            await waiting(server)
            for now_s in (IDLE_S + 1, 2 * IDLE_S):
                idle.close_overdue(server, now_s)
                assert len(server.connections) == 1
            idle.close_overdue(server, 2 * IDLE_S + 1)
            assert await reader.read() == b""
            writer.close()

    asyncio.run(scenario())


def test_a_request_that_arrives_when_the_time_of_its_connection_ends_is_answered() -> None:
    async def scenario() -> None:
        idle = IdleConnections()
        async with served(at_once(), idle) as (server, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            connection = await waiting(server)
            idle.close_overdue(server, 0.0)
            connection.data_received(_GET)  # as when the loop has read it, and no task has run since
            idle.close_overdue(server, IDLE_S)
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
            writer.close()

    asyncio.run(scenario())


def test_an_http_server_that_does_not_tell_who_waits_keeps_its_connections() -> None:
    idle, closed = IdleConnections(), list[str]()
    connection = SimpleNamespace(force_close=lambda: closed.append("closed"))
    server = cast("web.Server", SimpleNamespace(connections=[connection]))
    for now_s in (0.0, IDLE_S):
        idle.close_overdue(server, now_s)
    assert closed == []


def test_this_http_server_tells_who_waits() -> None:
    assert "_waiter" in web.RequestHandler.__slots__  # else no idle connection is closed


def test_a_body_that_is_not_what_its_headers_say_is_refused() -> None:
    async def scenario() -> None:
        async with gateway_rig() as (rig, _):
            raw = _HEAD + b"content-encoding: gzip\r\ncontent-length: 7\r\n\r\ngarbage"
            status, message = await send(rig, raw)
            assert status == b"400"
            assert "content-encoding" in message

    asyncio.run(scenario())


def test_a_body_at_the_limit_of_nesting_is_served_or_refused() -> None:
    async def scenario() -> None:
        async with gateway_rig() as (rig, [engine]):
            body = b'{"model": "tiny", "stream": true, "prompt": "a", "metadata": %s}'
            statuses = []
            for depth in range(900, 1_010):  # the limit of Python 3.11 is 1,000 calls
                nested = b"[" * depth + b"]" * depth
                async with rig.session.post(rig.url + COMPLETIONS, data=body % nested) as answer:
                    statuses.append(answer.status)
            served = len(engine.bodies)
            assert statuses == [200] * served + [400] * (len(statuses) - served)

    asyncio.run(scenario())
