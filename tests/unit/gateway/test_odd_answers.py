"""Answers with success that are encoded, or are none: what the client gets, and what counts."""

import asyncio
import gzip
from types import SimpleNamespace
from typing import cast

import aiohttp
import msgspec
import pytest

from loadline.gateway.sse import DONE, write_event
from loadline.gateway.stream_session import _beginning
from tests.support.fake_engine import FakeEngine
from tests.support.gateway_rig import MODEL, GatewayRig, gateway_rig, record
from tests.support.moving_streams import COMPLETIONS, TOKENS, asked
from tests.support.raw_engine import RawEngine
from tests.support.virtual_time import run_virtual

CHOICES = [{"index": 0, "text": "x", "finish_reason": "stop"}]
USAGE = {"prompt_tokens": 5, "completion_tokens": 7}
WHOLE = msgspec.json.encode({"choices": CHOICES, "usage": USAGE})
STREAMED = (msgspec.json.encode({"choices": CHOICES}), msgspec.json.encode({"choices": [], "usage": USAGE}), DONE)


def answer(body: bytes, content_type: str, *more: str, status: str = "200 OK") -> bytes:
    lines = [f"HTTP/1.1 {status}", f"content-type: {content_type}", f"content-length: {len(body)}", *more]
    return "\r\n".join([*lines, "connection: close", "", ""]).encode() + body


async def ask(rig: GatewayRig, *, stream: bool) -> tuple[int, bytes]:
    body = {"model": MODEL, "stream": stream, **asked(COMPLETIONS)}
    async with rig.session.post(rig.url + COMPLETIONS, json=body) as got:
        return got.status, await got.read()


@pytest.mark.parametrize(
    ("body", "content_type"), [(WHOLE, "application/json"), (b"".join(map(write_event, STREAMED)), "text/event-stream")]
)
def test_an_answer_that_a_proxy_compresses_is_read_and_counts(body: bytes, content_type: str) -> None:
    async def scenario() -> None:
        raw = answer(gzip.compress(body), content_type, "content-encoding: gzip")
        async with gateway_rig(0) as (rig, _), RawEngine(raw) as engine:
            rig.model.backends.update([record("w", engine.address)])
            assert await ask(rig, stream=True) == (200, body)
            assert rig.frontend._interval.sample(1, 1, queued=0, in_flight=0).osl_tokens == 7

    asyncio.run(scenario())


NO_COMPLETIONS = {
    "page": answer(b"<html>maintenance</html>", "text/html"),
    "empty": answer(b"", "text/plain"),
    "no content": answer(b"", "text/plain", status="204 No Content"),
    "error": answer(b'{"error": {"message": "dead", "code": 500}}', "application/json"),
    "no object": answer(b"[]", "application/json"),
    "no list": answer(b'{"choices": null}', "application/json"),
    "error of all fields": answer(b'{"choices": [], "error": {"message": "dead"}}', "application/json"),
}
no_completions = pytest.mark.parametrize("raw", NO_COMPLETIONS.values(), ids=NO_COMPLETIONS)


@no_completions
@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_that_is_no_completion_is_asked_for_elsewhere(raw: bytes, *, stream: bool) -> None:
    async def scenario() -> None:
        async with gateway_rig(0) as (rig, _), RawEngine(raw) as broken, FakeEngine() as good:
            rig.model.backends.update([record("a", broken.address), record("b", good.address)])
            status, got = await ask(rig, stream=stream)
            assert (status, broken.requests, len(good.bodies)) == (200, 1, 1)
            assert b'"finish_reason":"length"' in got.replace(b": ", b":")
            sample = rig.frontend._interval.sample(1, 1, queued=0, in_flight=0)
            assert (sample.completed, sample.osl_tokens) == (1, TOKENS)

    asyncio.run(scenario())


@no_completions
@pytest.mark.parametrize("stream", [True, False])
def test_answers_that_are_no_completions_end_with_the_reason(raw: bytes, *, stream: bool) -> None:
    async def scenario() -> None:
        async with gateway_rig(0) as (rig, _), RawEngine(raw) as a, RawEngine(raw) as b, RawEngine(raw) as c:
            rig.model.backends.update([record(one.address[-5:], one.address) for one in (a, b, c)])
            status, got = await ask(rig, stream=stream)
            assert (status, a.requests, b.requests, c.requests) == (502, 1, 1, 1)
            assert b"is no completion" in got
            assert b"maintenance" not in got, "a page of a proxy may name hosts"
            assert rig.frontend._interval.sample(1, 1, queued=0, in_flight=0).completed == 0

    asyncio.run(scenario())


REFUSAL = b'{"error": {"message": "too long", "type": "BadRequestError", "param": null, "code": 400}}'
ROLE = b'{"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}'


@pytest.mark.parametrize(
    ("raw", "stream"),
    [
        (answer(REFUSAL, "application/json"), False),
        (answer(REFUSAL, "application/json"), True),
        (answer(write_event(REFUSAL) + write_event(DONE), "text/event-stream"), True),
        (answer(write_event(ROLE) + write_event(REFUSAL), "text/event-stream"), True),
    ],
)
def test_an_error_after_a_success_that_blames_the_request_is_its_answer(raw: bytes, *, stream: bool) -> None:
    async def scenario() -> None:
        async with gateway_rig(0) as (rig, _), RawEngine(raw) as a, RawEngine(raw) as b:
            rig.model.backends.update([record(one.address[-5:], one.address) for one in (a, b)])
            assert await ask(rig, stream=stream) == (400, REFUSAL)
            assert (a.requests, b.requests) == (1, 1), "a second worker refuses it, too"
            assert rig.frontend._interval.sample(1, 1, queued=0, in_flight=0).completed == 0

    asyncio.run(scenario())


def test_workers_that_refuse_a_request_with_different_statuses_confirm_each_other() -> None:
    async def scenario() -> None:
        too_large = REFUSAL.replace(b"400", b"413")
        first, second = (answer(write_event(one), "text/event-stream") for one in (REFUSAL, too_large))
        async with gateway_rig(0) as (rig, _), RawEngine(first) as a, RawEngine(second) as b:
            rig.model.backends.update([record("a", a.address), record("b", b.address)])
            assert await ask(rig, stream=True) == (413, too_large)
            assert (a.requests, b.requests) == (1, 1)

    asyncio.run(scenario())


def test_the_only_worker_is_asked_again_before_its_error_after_a_success_is_believed() -> None:
    async def scenario() -> None:
        raw = answer(write_event(REFUSAL), "text/event-stream")
        async with gateway_rig(0) as (rig, _), RawEngine(raw) as engine:
            rig.model.backends.update([record("w", engine.address)])
            assert (await ask(rig, stream=True), engine.requests) == ((400, REFUSAL), 2)

    asyncio.run(scenario())


def test_an_error_after_a_success_of_the_last_attempt_alone_is_not_believed() -> None:
    async def scenario() -> None:
        cut, refused = answer(b"", "text/event-stream"), answer(write_event(REFUSAL), "text/event-stream")
        async with gateway_rig(0) as (rig, _), RawEngine(cut) as a, RawEngine(cut) as b, RawEngine(refused) as c:
            rig.model.backends.update([record(f"w{place}", one.address) for place, one in enumerate((a, b, c))])
            status, _ = await ask(rig, stream=True)
            assert (status, a.requests, b.requests, c.requests) == (502, 1, 1, 1)

    asyncio.run(scenario())


def test_an_only_worker_is_asked_again_within_a_short_time_limit() -> None:
    async def scenario() -> None:
        raw = answer(write_event(REFUSAL), "text/event-stream")
        async with gateway_rig(0, hold_s=1.0) as (rig, _), RawEngine(raw) as engine:
            rig.model.backends.update([record("w", engine.address)])
            assert (await ask(rig, stream=True), engine.requests) == ((400, REFUSAL), 2)

    asyncio.run(scenario())


# vLLM's server tells by 400 of any exception within a stream, that of an engine that has died too.
@pytest.mark.parametrize("code", ["400", "401", "404", "408", "429", "499", "null", "0", '"400"', "true", "500"])
def test_an_error_after_a_success_of_one_worker_is_asked_for_elsewhere(code: str) -> None:
    refused = b'{"error": {"message": "EngineCore encountered an issue", "code": %s}}' % code.encode()

    async def scenario() -> None:
        raw = answer(write_event(refused), "text/event-stream")
        async with gateway_rig(0) as (rig, _), RawEngine(raw) as broken, FakeEngine() as good:
            rig.model.backends.update([record("a", broken.address), record("b", good.address)])
            status, _ = await ask(rig, stream=True)
            assert (status, broken.requests, len(good.bodies)) == (200, 1, 1)

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["", "application/octet-stream", "text/plain", "application/json"])
def test_a_stream_of_another_type_is_relayed_as_it_comes(kind: str) -> None:
    async def scenario() -> None:
        content_type = f"content-type: {kind}\r\n" if kind else ""
        raw = f"HTTP/1.1 200 OK\r\n{content_type}connection: close\r\n\r\n".encode() + write_event(STREAMED[0])
        async with gateway_rig(0) as (rig, _), RawEngine(raw, hangs=True) as engine:
            rig.model.backends.update([record("w", engine.address)])
            body = {"model": MODEL, "stream": True, **asked(COMPLETIONS, n=2)}
            async with asyncio.timeout(10), rig.session.post(rig.url + COMPLETIONS, json=body) as got:
                assert await got.content.readuntil(b"\n\n") == write_event(STREAMED[0])
                assert engine.open == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("pieces", "beginning"),
    [
        ([b"data: x"], b"data: x"),
        ([b"\n", b"\r\n", b"data: x"], b"\n\r\ndata: x"),
        ([b"da", b"ta", b": x", b"more"], b"data: x"),
        ([b":", b"more"], b":"),
        ([b"{", b"more"], b"{"),
        ([b"date", b"more"], b"date"),
        ([b" " * 2_000, b"more"], b" " * 2_000),
        ([], b""),
    ],
)
def test_an_answer_is_read_until_its_first_bytes_tell_what_it_is(pieces: list[bytes], beginning: bytes) -> None:
    class Content:
        async def readany(self) -> bytes:
            return pieces.pop(0) if pieces else b""

    answered = cast("aiohttp.ClientResponse", SimpleNamespace(content=Content()))
    assert asyncio.run(_beginning(answered)) == beginning


def test_an_answer_that_is_no_http_does_not_tell_clients_the_address_of_its_engine() -> None:
    async def scenario() -> None:
        async with gateway_rig(0) as (rig, _), RawEngine(b"HTTP/1.1 200 OK\r\ncontent-length: x\r\n\r\n") as engine:
            rig.model.backends.update([record("w", engine.address)])
            status, got = await ask(rig, stream=False)
            assert status == 502
            assert b"is no HTTP" in got
            assert engine.address.encode() not in got

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
def test_the_time_after_which_an_only_worker_asks_to_be_asked_again_reaches_the_client(
    status: str, *, stream: bool
) -> None:
    async def scenario() -> None:
        raw = answer(b'{"error": {}}', "application/json", "retry-after: 7", status=status)
        async with gateway_rig(0) as (rig, _), RawEngine(raw) as engine:
            rig.model.backends.update([record("w", engine.address)])
            began_s = asyncio.get_running_loop().time()
            body = {"model": MODEL, "stream": stream, **asked(COMPLETIONS)}
            async with rig.session.post(rig.url + COMPLETIONS, json=body) as got:
                assert (got.status, got.headers["retry-after"]) == (int(status[:3]), "7")
            assert engine.requests == 3
            assert asyncio.get_running_loop().time() - began_s == pytest.approx(2.0), "a second before each repetition"

    run_virtual(scenario())


def test_a_stream_without_output_is_asked_for_elsewhere() -> None:
    async def scenario() -> None:
        raw = answer(write_event(DONE), "text/event-stream")
        async with gateway_rig(0) as (rig, _), RawEngine(raw) as broken, FakeEngine() as good:
            rig.model.backends.update([record("a", broken.address), record("b", good.address)])
            status, _got = await ask(rig, stream=True)
            assert (status, broken.requests, len(good.bodies)) == (200, 1, 1)

    asyncio.run(scenario())


def test_what_is_no_stream_although_its_type_may_be_one_is_asked_for_elsewhere() -> None:
    async def scenario() -> None:
        raw = answer(b"<html>maintenance</html>", "application/octet-stream")
        async with gateway_rig(0) as (rig, _), RawEngine(raw) as broken, FakeEngine() as good:
            rig.model.backends.update([record("a", broken.address), record("b", good.address)])
            assert (await ask(rig, stream=True))[0] == 200
            assert (broken.requests, len(good.bodies)) == (1, 1)

    asyncio.run(scenario())
