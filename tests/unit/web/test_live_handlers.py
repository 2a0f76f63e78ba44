"""The live page over real sockets."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from loadline.adapters.http import HttpServer
from loadline.core.vocabulary.status import RaisedAlarm
from loadline.errors import ConfigError
from loadline.runtime import shared_answers
from loadline.web import live_page
from loadline.web.access import Access
from loadline.web.event_streams import CLIENTS_MAX, EventStreams
from loadline.web.live_handlers import LiveHandlers
from loadline.web.live_page import LivePage
from loadline.wire.messages import OperatorReply
from tests.support.statuses import START_MS, agent, model, state_of
from tests.waiting import SCENARIO_S, until

TOKEN = "0123456789-abcdef"  # noqa: S105 - of no agent


class Served:
    """A page on a port of this machine, and what was ordered through it."""

    def __init__(self, page: LivePage, base: str) -> None:
        self.page = page
        self.base = base
        self.orders: list[tuple[str, bool]] = []
        self.session: aiohttp.ClientSession

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        async with self.session.get(self.base + path, headers=headers) as answer:
            return answer.status, await answer.text()

    async def pause(self, **headers: str) -> int:
        body = json.dumps({"model": "llama"})
        all_headers = {"content-type": "application/json", **headers}
        async with self.session.post(f"{self.base}/api/pause", data=body, headers=all_headers) as answer:
            return answer.status

    async def set_paused(self, model: str, by: str, *, paused: bool) -> OperatorReply:
        assert by
        self.orders.append((model, paused))
        return OperatorReply(accepted=model == "llama", detail="" if model == "llama" else "there is no such model")


@asynccontextmanager
async def served(
    host: str = "127.0.0.1", token_file: str = "", streams: EventStreams | None = None
) -> AsyncIterator[Served]:
    page = LivePage(lambda: 1, lambda: [state_of(page.status)], streams or EventStreams())
    found = Served(page, "")

    async def metrics() -> bytes:
        return b""

    routes = LiveHandlers(page, Access(host, token_file), found.set_paused).routes()
    server = HttpServer("127.0.0.1", 0, metrics=metrics, healthy=list, ready=list, routes=routes)
    await server.start()
    found.base = f"http://127.0.0.1:{server.port}"
    async with aiohttp.ClientSession() as found.session:
        try:
            yield found
        finally:
            page.streams.close()
            await server.close()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(SCENARIO_S):
            await scenario()

    asyncio.run(bounded())


async def events(response: aiohttp.ClientResponse, count: int) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    while len(found) < count:
        block = (await response.content.readuntil(b"\n\n")).decode()
        if block.startswith("event: "):
            kind, _, data = block.strip().split("\n")
            found.append((kind.removeprefix("event: "), json.loads(data.removeprefix("data: "))))
    return found


def test_a_client_gets_the_newest_status_at_once_and_then_each_new_one() -> None:
    async def scenario() -> None:
        async with served() as site:
            await site.page.update(agent(model()))
            async with site.session.get(f"{site.base}/api/events?model=llama") as response:
                assert response.headers["content-type"] == "text/event-stream"
                (_, fleet), (_, first) = await events(response, 2)
                assert (fleet["agent"]["models"], fleet["rows"][0]["ready"]) == ([], 4)
                assert first["waits"][0]["until_ms"] == START_MS + 5_000
                await site.page.update(agent(model(workers=5), at_ms=START_MS + 1_000))
                (_, fleet), (_, second) = await events(response, 2)
                assert (fleet["rows"][0]["ready"], len(second["workers"]["decode"])) == (5, 5)
            _, history = await site.get("/api/history?model=llama")
            assert json.loads(history)["series"]["rate"] == [10.0]
            _, decisions = await site.get("/api/decisions")
            assert json.loads(decisions)[0]["targets"] == {"decode": 4}

    run(scenario)


@pytest.mark.parametrize("path", ["/api/history", "/api/decisions"])
def test_requests_for_the_same_status_share_one_answer(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[object] = []

    def encode(page: object) -> bytes:
        encoded.append(page)
        return b"%d" % len(encoded)

    async def scenario() -> None:
        async with served() as site:
            await site.page.update(agent(model()))
            monkeypatch.setattr(live_page, "_encode", encode)
            assert [await site.get(f"{path}?model=llama") for _ in range(5)] == [(200, "1")] * 5
            assert await site.get(f"{path}?model=unknown") == (200, "2")
            await site.page.update(agent(model(), at_ms=START_MS + 1_000))
            encoded.clear()
            assert await site.get(path) == (200, "1")
            assert len(encoded) == 1

    monkeypatch.setattr(shared_answers, "SHARED_S", 3_600.0)
    run(scenario)


def test_all_who_follow_a_model_share_one_encoded_frame() -> None:
    async def scenario() -> None:
        async with served() as site:
            await site.page.update(agent(model()))
            assert await site.page.frame("llama") is await site.page.frame("llama")
            assert b"event: model" not in await site.page.frame("unknown")

    run(scenario)


def test_more_clients_than_the_limit_are_refused_until_one_leaves() -> None:
    async def scenario() -> None:
        streams = EventStreams(clients_max=2)
        async with served(streams=streams) as site:
            await site.page.update(agent(model()))
            url = f"{site.base}/api/events"
            first, second = await site.session.get(url), await site.session.get(url)
            async with site.session.get(url) as third:
                assert (third.status, third.headers["retry-after"]) == (503, "10")
            first.close()

            def one_left() -> bool:
                streams.send("llama", b": the write finds that it has left\n\n")
                return streams.count == 1

            await until(one_left)
            async with site.session.get(url) as third:
                assert third.status == 200
            second.close()

    run(scenario)


def test_of_1000_clients_64_follow_and_all_others_are_refused_at_once() -> None:
    async def scenario() -> None:
        async with served() as site:
            await site.page.update(agent(model()))
            port = int(site.base.rpartition(":")[2])
            unanswered = asyncio.Semaphore(32)  # the kernel drops and resets connections beyond the 64 that may wait

            async def connect() -> tuple[str, asyncio.StreamReader, asyncio.StreamWriter]:
                async with unanswered:
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.write(b"GET /api/events?model=llama HTTP/1.1\r\nHost: localhost\r\n\r\n")
                    return (await reader.readuntil(b"\r\n")).decode().split()[1], reader, writer

            clients = await asyncio.gather(*(connect() for _ in range(1_000)))
            codes = [code for code, _, _ in clients]
            assert (codes.count("200"), codes.count("503")) == (CLIENTS_MAX, 1_000 - CLIENTS_MAX)
            assert site.page.streams.count == CLIENTS_MAX
            await site.page.update(agent(model(), at_ms=START_MS + 1_000))
            for code, reader, _ in clients:
                if code == "200":
                    await reader.readuntil(f"id: {START_MS + 1_000}\n".encode())
            for _, _, writer in clients:
                writer.close()

    run(scenario)


def test_a_client_that_reads_nothing_gets_the_newest_frame_only_and_is_disconnected() -> None:
    async def scenario() -> None:
        streams = EventStreams(write_s=0.5)
        async with served(streams=streams) as site:
            await site.page.update(agent(model()))
            reader = socket.create_connection(("127.0.0.1", int(site.base.rpartition(":")[2])))
            reader.sendall(b"GET /api/events?model=llama HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await until(lambda: streams.count == 1)
            [client] = streams._clients
            big = b": " + b"x" * 4_000_000 + b"\n\n"
            for number in range(200):  # 800 MB, if they were all kept
                streams.send("llama", big if number % 2 else b": small\n\n")
                await asyncio.sleep(0)
            assert len(client.frame) <= len(big)
            await until(lambda: streams.count == 0, deadline_s=20)
            reader.close()

    run(scenario)


def test_an_idle_stream_sends_heartbeats() -> None:
    async def scenario() -> None:
        async with (
            served(streams=EventStreams(heartbeat_s=0.01)) as site,
            site.session.get(f"{site.base}/api/events") as response,
        ):
            assert await response.content.readuntil(b"\n\n") == b": alive\n\n"

    run(scenario)


def test_on_loopback_anybody_reads_by_a_loopback_name_and_nobody_orders_without_a_token() -> None:
    async def scenario() -> None:
        async with served() as site:
            await site.page.update(agent(model()))
            assert (await site.get("/api/history"))[0] == 200
            assert (await site.get("/api/history", host="localhost:9464"))[0] == 200
            for name in ("evil.example", "127.0.0.1.evil.example", "[bad"):
                assert (await site.get("/api/history", host=name))[0] == 401, name
            assert await site.pause(authorization=f"Bearer {TOKEN}") == 403
            assert site.orders == []

    run(scenario)


def test_off_loopback_nothing_is_shown_without_the_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")

    async def scenario() -> None:
        async with served("0.0.0.0", str(file)) as site:  # noqa: S104 - the rule under test
            await site.page.update(agent(model()))
            code, text = await site.get("/")
            assert code == 200
            assert "llama" not in text
            assert 'type="password"' in text
            for path in ("/api/events", "/api/history", "/api/decisions"):
                assert (await site.get(path))[0] == 401, path
                assert (await site.get(path, authorization="Bearer wrong"))[0] == 401, path
            assert (await site.get("/api/history", authorization=f"Bearer {TOKEN}"))[0] == 200
            async with site.session.post(f"{site.base}/", data={"token": TOKEN}) as answer:
                assert "llama" in await answer.text()
            file.write_text("another-token-of-enough")
            assert (await site.get("/api/history", authorization=f"Bearer {TOKEN}"))[0] == 401
        async with served("0.0.0.0") as site:  # noqa: S104 - the rule under test
            code, text = await site.get("/")
            assert (code, "token_file" in text) == (403, True)

    run(scenario)


def test_a_page_that_is_open_ends_with_its_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")

    async def scenario() -> None:
        async with served("0.0.0.0", str(file)) as site:  # noqa: S104 - the rule under test
            await site.page.update(agent(model()))
            headers = {"authorization": f"Bearer {TOKEN}"}
            async with site.session.get(f"{site.base}/api/events", headers=headers) as response:
                await events(response, 2)
                file.write_text("another-token-of-enough")
                await site.page.update(agent(model(), at_ms=START_MS + 1_000))
                assert await response.content.read() == b""
            assert site.page.streams.count == 0

    run(scenario)


def test_an_order_needs_the_token_in_a_header_json_and_no_other_origin(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\r\n", "utf-8-sig")  # as Notepad writes it
    right = {"authorization": f"Bearer {TOKEN}"}

    async def scenario() -> None:
        async with served(token_file=str(file)) as site:
            assert await site.pause() == 401
            assert await site.pause(authorization="Bearer wrong-wrong-wrong") == 401
            assert await site.pause(**right, origin="http://evil.example") == 401
            assert await site.pause(**right, **{"content-type": "text/plain"}) == 415
            assert site.orders == []
            assert await site.pause(**right) == 409
            await site.page.update(replace(agent(model()), leading=False))
            assert await site.pause(**right) == 409
            assert site.orders == []
            await site.page.update(agent(model()))
            assert await site.pause(**right, origin=site.base) == 200
            assert site.orders == [("llama", True)]
            headers = {**right, "content-type": "application/json"}
            async with site.session.post(f"{site.base}/api/resume", data='{"model": "x"}', headers=headers) as answer:
                assert (answer.status, (await answer.json())["detail"]) == (409, "there is no such model")
            async with site.session.post(f"{site.base}/api/resume", data="{", headers=headers) as answer:
                assert answer.status == 400

    run(scenario)


def test_a_token_that_cannot_be_read_or_is_short_is_named(tmp_path: Path) -> None:
    (tmp_path / "short").write_text("secret")
    for name, problem in (("missing", "cannot be read"), ("short", "fewer than 16")):
        with pytest.raises(ConfigError, match=problem):
            Access("127.0.0.1", str(tmp_path / name)).check()


def test_without_javascript_the_page_is_a_table_with_names_escaped() -> None:
    async def scenario() -> None:
        async with served() as site:
            assert "has just started" in (await site.get("/"))[1]
            alarm = RaisedAlarm("drain_overdue", "<b>", "a & b", START_MS, 1)
            await site.page.update(replace(agent(model("<script>x")), alarms=(alarm,)))
            _, text = await site.get("/")
            assert "<li>drain_overdue &lt;b&gt;: a &amp; b</li>" in text
            assert "<h2>&lt;script&gt;x, sla planner</h2>" in text
            assert "<th scope=row>decode</th><td>decode</td><td>4</td><td>4</td>" in text
            await site.page.update(agent(replace(model(), epoch=0)))
            _, text = await site.get("/")
            assert "<th scope=row>decode</th><td>decode</td><td>-</td><td>4</td>" in text, "another agent decides"

    run(scenario)


def test_every_answer_forbids_other_origins_and_static_files_are_cached_by_content() -> None:
    async def scenario() -> None:
        async with served() as site:
            for path in ("/", "/static/app.js", "/api/history", "/static/vendor/uplot.js"):
                async with site.session.get(site.base + path) as answer:
                    assert answer.status == 200
                    assert answer.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
            async with site.session.get(f"{site.base}/static/app.js") as answer:
                tag = answer.headers["etag"]
            assert (await site.get("/static/app.js", **{"if-none-match": tag}))[0] == 304
            assert (await site.get("/static/..%2f..%2faccess.py"))[0] == 404
            assert (await site.get(f"/api/history?model={'x' * 129}"))[0] == 400

    run(scenario)


def _posted(content_type: bytes, body: bytes) -> bytes:
    head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n"
    return head % (content_type, len(body)) + body


@pytest.mark.parametrize(
    "request_",
    [
        b"GET /api/events HTTP/1.1\r\nhost: x\r\nauthorization: Bearer 0123\xd2\xff\r\n\r\n",
        b"POST /api/pause HTTP/1.1\r\nhost: x\r\norigin: http://[\r\nauthorization: Bearer x\r\n\r\n",
        _posted(b"multipart/form-data; boundary=b", b"--b\r\nGET\r\n"),
        _posted(b"application/x-www-form-urlencoded; charset=none", b"\xff="),
        _posted(b"application/x-www-form-urlencoded\r\ncontent-encoding: gzip", b"garbage"),
    ],
    ids=["token that is not UTF-8", "origin", "multipart", "charset", "gzip"],
)
def test_a_request_of_no_browser_is_refused_before_it_is_parsed(request_: bytes, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN, "utf-8")

    async def scenario() -> None:
        async with served(token_file=str(token)) as site:
            await site.page.update(agent(model()))
            reader, writer = await asyncio.open_connection("127.0.0.1", int(site.base.rsplit(":", 1)[1]))
            writer.write(request_)
            status = (await reader.readline()).split()[1]
            writer.close()
            assert status in {b"400", b"401", b"415", b"200"}
            assert status != b"200" or request_.startswith(b"POST / "), "a form with a wrong token gets the form again"

    run(scenario)


def test_the_headers_of_the_stream_alone_are_refused_and_take_no_slot() -> None:
    async def scenario() -> None:
        async with served() as page, page.session.head(f"{page.base}/api/events") as answer:
            assert answer.status == 405
            assert page.page.streams.count == 0

    run(scenario)
