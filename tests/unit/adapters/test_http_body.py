"""Bodies on a real socket."""

import asyncio

import aiohttp
import pytest
from aiohttp import web

from loadline.adapters.http_body import BodyTooLarge, read_body

BYTES = 300_000


def read(bytes_max: int) -> bytes:
    async def scenario() -> bytes:
        async def page(_request: web.Request) -> web.Response:
            return web.Response(body=b"x" * BYTES)

        application = web.Application()
        application.add_routes([web.get("/", page)])
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
            async with aiohttp.ClientSession() as session, session.get(url) as answer:
                return await read_body(answer, bytes_max)
        finally:
            await runner.cleanup()

    return asyncio.run(scenario())


def test_a_body_of_the_largest_size_is_read() -> None:
    assert read(BYTES) == b"x" * BYTES


def test_a_larger_body_is_refused_with_the_limit() -> None:
    with pytest.raises(BodyTooLarge, match="more than 299,999 bytes"):
        read(BYTES - 1)
