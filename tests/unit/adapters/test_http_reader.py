"""HTTP client of pages against a real server that answers well and badly."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from loadline.adapters import http_reader
from loadline.adapters.http_reader import HttpReader, PageUnavailable
from loadline.errors import ConfigError
from tests.support.certificates import replace_file, self_signed


def run(scenario: Callable[[str], Awaitable[None]]) -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        kind = request.match_info["kind"]
        if kind == "cut":
            answer = web.StreamResponse(headers={"content-length": "1000"})
            await answer.prepare(request)
            await answer.write(b"half a page")
            assert request.transport is not None
            request.transport.close()
            return answer
        if kind == "hang":
            await asyncio.sleep(60)
        if kind == "moved":
            raise web.HTTPFound("/good")
        if kind == "secret" and request.headers.get("authorization") != "Bearer right":
            return web.Response(status=401)
        return web.Response(text="x" * 1_000, status=500 if kind == "broken" else 200)

    async def whole() -> None:
        application = web.Application()
        application.router.add_get("/{kind}", page)
        async with TestServer(application) as server:
            await scenario(str(server.make_url("/")))

    asyncio.run(whole())


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("broken", "http_status"),
        ("moved", "http_status"),
        ("secret", "http_status"),
        ("cut", "no_answer"),
        ("hang", "no_answer"),
    ],
)
def test_what_is_no_page_is_named(kind: str, reason: str) -> None:
    async def scenario(url: str) -> None:
        async with HttpReader(0.3) as reader:
            with pytest.raises(PageUnavailable) as error:
                await reader.get(url + kind)
            assert error.value.reason == reason
            assert len(await reader.get(url + "good")) == 1_000

    run(scenario)


def test_a_server_that_is_away_and_an_invalid_address_are_named() -> None:
    async def scenario(_url: str) -> None:
        async with HttpReader(1.0) as reader:
            for url in ("http://127.0.0.1:1/", "http://[bad/"):
                with pytest.raises(PageUnavailable):
                    await reader.get(url)

    run(scenario)


def test_a_large_page_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_reader, "PAGE_BYTES_MAX", 999)

    async def scenario(url: str) -> None:
        async with HttpReader(5.0) as reader:
            with pytest.raises(PageUnavailable, match="oversized"):
                await reader.get(url + "good")

    run(scenario)


def test_a_token_is_read_again_for_each_request(tmp_path: Path) -> None:
    token = tmp_path / "token"

    async def scenario(url: str) -> None:
        async with HttpReader(5.0, token_file=str(token)) as reader:
            with pytest.raises(PageUnavailable, match="token_file"):
                await reader.get(url + "secret")
            token.write_text("wrong\n", "utf-8")
            with pytest.raises(PageUnavailable, match="HTTP 401"):
                await reader.get(url + "secret")
            token.write_text("right\r\n", "utf-8-sig")  # as Notepad writes it
            assert await reader.get(url + "secret")

    run(scenario)


def test_an_unusable_bundle_is_an_error_of_the_configuration(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("none", "utf-8")
    for name in ("ca.pem", "missing.pem"):
        with pytest.raises(ConfigError):
            HttpReader(1.0, ca_file=str(tmp_path / name))


def test_a_bundle_that_was_replaced_counts_from_the_next_page_on(tmp_path: Path) -> None:
    former, later = self_signed(tmp_path / "former"), self_signed(tmp_path / "later")
    ca_file = tmp_path / "ca.pem"
    replace_file(ca_file, later.certificate.read_bytes())
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(former.certificate, former.key)

    async def page(_request: web.Request) -> web.StreamResponse:
        return web.Response(text="page")

    async def scenario() -> None:
        application = web.Application()
        application.router.add_get("/", page)
        server = TestServer(application, scheme="https", host="localhost")
        await server.start_server(ssl=context)
        url = f"https://localhost:{server.port}/"
        async with HttpReader(5.0, ca_file=str(ca_file)) as reader:
            with pytest.raises(PageUnavailable, match="certificate verify failed"):
                await reader.get(url)
            replace_file(ca_file, former.certificate.read_bytes())
            assert await reader.get(url) == b"page"
            replace_file(ca_file, later.certificate.read_bytes())
            with pytest.raises(PageUnavailable, match="certificate verify failed"):
                await reader.get(url)
        await server.close()

    asyncio.run(scenario())
