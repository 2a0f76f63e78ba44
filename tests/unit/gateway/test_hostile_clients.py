"""Clients that send bodies which never end, or are not what they say."""

import asyncio
import json

import pytest

from loadline.gateway import server
from tests.support.gateway_rig import GatewayRig, gateway_rig

_HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\n"


async def send(rig: GatewayRig, raw: bytes) -> tuple[bytes, str]:
    """Return the status and the message of the answer to raw bytes."""
    host, port = rig.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(raw)
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        body = await reader.readexactly(int(length))
    writer.close()
    return head.split()[1], json.loads(body)["error"]["message"]


def test_a_body_that_does_not_arrive_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_BODY_S", 0.1)

    async def scenario() -> None:
        async with gateway_rig() as (rig, _):
            status, message = await send(rig, _HEAD + b"content-length: 100\r\n\r\nabc")
            assert status == b"408"
            assert "did not arrive" in message

    asyncio.run(scenario())


def test_a_body_that_is_not_what_its_headers_say_is_refused() -> None:
    async def scenario() -> None:
        async with gateway_rig() as (rig, _):
            raw = _HEAD + b"content-encoding: gzip\r\ncontent-length: 7\r\n\r\ngarbage"
            status, message = await send(rig, raw)
            assert status == b"400"
            assert "content-encoding" in message

    asyncio.run(scenario())
