"""Streams that end with an error, or are none, and clients that do not read them."""

import asyncio
import json
import socket
from typing import Any

import aiohttp
import pytest

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.gateway import engine_wait
from tests.support.gateway_rig import MODEL, GatewayRig, gateway_rig, record
from tests.support.moving_streams import CHAT, COMPLETIONS, asked
from tests.support.raw_engine import STREAM, RawEngine
from tests.support.virtual_time import run_virtual
from tests.waiting import until

DONE = b"data: [DONE]\n\n"


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def text_event(text: str, **fields: Any) -> bytes:
    return event(id="c", choices=[{"index": 0, "text": text, "finish_reason": None}], **fields)


ERROR = event(error={"message": "dead", "code": 500})


async def counted(rig: GatewayRig, status: int) -> bool:
    async with rig.session.get(f"{rig.url}/metrics") as answer:
        return f'loadline_gateway_requests_total{{model="{MODEL}",status="{status}"}} 1.0' in await answer.text()


@pytest.mark.parametrize("end", [ERROR + DONE, ERROR, b""])
def test_a_stream_that_ends_with_an_error_is_not_counted_as_served(end: bytes) -> None:
    async def scenario() -> None:
        raw = STREAM + text_event("a") + end  # without token IDs, no engine can continue it
        async with gateway_rig(0, objectives=ObjectiveKnobs(ttft_ms=500, itl_ms=50)) as (rig, _):
            async with RawEngine(raw) as engine:
                rig.model.backends.update([record("w", engine.address)])
                got = await rig.stream(**asked(COMPLETIONS))
            assert ["error" in chunk for chunk in got.chunks] == [False, True]
            assert rig.frontend._interval.sample(1, 1, queued=0, in_flight=0).completed == 0
            assert await counted(rig, 502)
            assert not await counted(rig, 200)

    asyncio.run(scenario())


@pytest.mark.parametrize("end", [DONE, b""])
def test_an_aborted_stream_that_cannot_move_is_not_counted_as_served(end: bytes) -> None:
    async def scenario() -> None:
        aborted = event(id="c", choices=[{"index": 0, "text": "", "finish_reason": "abort"}])
        async with gateway_rig(0) as (rig, _), RawEngine(STREAM + text_event("a") + aborted + end) as engine:
            rig.model.backends.update([record("w", engine.address)])
            got = await rig.stream(**asked(COMPLETIONS))
            assert (got.text, got.finish, got.complete) == ("a", "abort", True)
            assert rig.frontend._interval.sample(1, 1, queued=0, in_flight=0).completed == 0
            assert await counted(rig, 502)

    asyncio.run(scenario())


def ended(*reasons: str | None, text: str = "") -> bytes:
    """Return an event with a choice for each finish reason."""
    choices = [{"index": index, "text": text, "finish_reason": one} for index, one in enumerate(reasons)]
    return event(id="c", choices=choices)


def test_an_engine_that_dies_after_an_abort_of_one_of_two_outputs_fails_the_stream() -> None:
    async def scenario() -> None:
        raw = STREAM + ended(None, None, text="a") + ended("abort")
        async with gateway_rig(0) as (rig, _), RawEngine(raw) as engine:
            rig.model.backends.update([record("w", engine.address)])
            got = await rig.stream(**asked(COMPLETIONS, n=2))
            assert "w failed" in got.chunks[-1]["error"]["message"]
            assert not got.complete

    asyncio.run(scenario())


def test_an_output_may_pause_after_the_abort_of_another_one() -> None:
    async def scenario() -> None:
        raw = STREAM + ended(None, None, text="a") + ended("abort")
        async with gateway_rig(0, stall_s=6) as (rig, _), RawEngine(raw, hangs=True) as engine:
            rig.model.backends.update([record("w", engine.address)])
            got = await rig.stream(**asked(COMPLETIONS, n=2))
            assert "it sent nothing for 60 s" in got.chunks[-1]["error"]["message"]

    run_virtual(scenario())


def test_an_abort_of_any_output_is_not_counted_as_served() -> None:
    async def scenario() -> None:
        raw = STREAM + ended(None, None, text="a") + ended("stop", "abort") + DONE
        async with gateway_rig(0) as (rig, _), RawEngine(raw) as engine:
            rig.model.backends.update([record("w", engine.address)])
            assert (await rig.stream(**asked(COMPLETIONS, n=2))).complete
            assert rig.frontend._interval.sample(1, 1, queued=0, in_flight=0).completed == 0
            assert await counted(rig, 502)

    asyncio.run(scenario())


def test_tokens_that_came_with_an_abort_are_not_taken_from_those_before() -> None:
    async def scenario() -> None:
        def tokens(text: str, ids: list[int], finish: str | None) -> bytes:
            choice = {"index": 0, "text": text, "token_ids": ids, "prompt_token_ids": [97], "finish_reason": finish}
            return event(id="c", choices=[choice])

        first, second = tokens("a", [1], None) + tokens("", [2, 3, 4], "abort"), tokens("b", [2], "stop")
        async with gateway_rig(0) as (rig, _), RawEngine(STREAM + first) as a, RawEngine(STREAM + second + DONE) as b:
            rig.model.backends.update([record("a", a.address), record("b", b.address)])
            assert (await rig.stream(**asked(COMPLETIONS))).text == "ab"
            assert rig.frontend._interval.sample(1, 1, queued=0, in_flight=0).osl_tokens == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("reason", [None, ""])
def test_an_output_without_a_reason_for_its_end_goes_on_at_another_engine(reason: str | None) -> None:
    async def scenario() -> None:
        def token(text: str, number: int, finish: str | None) -> bytes:
            choice = {"index": 0, "text": text, "token_ids": [number], "prompt_token_ids": [97]}
            return event(id="c", choices=[{**choice, "finish_reason": finish}])

        first, second = token("a", 1, reason) + token("b", 2, reason), token("c", 3, "stop")
        async with gateway_rig(0) as (rig, _), RawEngine(STREAM + first) as a, RawEngine(STREAM + second + DONE) as b:
            rig.model.backends.update([record("a", a.address), record("b", b.address)])
            assert (await rig.stream(**asked(COMPLETIONS))).text == "abc"
            assert rig.frontend._interval.sample(1, 1, queued=0, in_flight=0).osl_tokens == 3

    asyncio.run(scenario())


@pytest.mark.parametrize(("wanted", "expected"), [(True, [1, 2, 3]), (False, [])])
def test_a_client_gets_token_ids_if_it_asked_for_them_though_its_stream_becomes_unmovable(
    expected: list[int], *, wanted: bool
) -> None:
    async def scenario() -> None:
        def delta(number: int, **output: str) -> bytes:
            choice = {"index": 0, "delta": output, "token_ids": [number], "finish_reason": None}
            return event(id="c", prompt_token_ids=[97], choices=[choice])

        chunks = delta(1, content="") + delta(2, reasoning_content="x") + delta(3, content="y")
        end = event(id="c", choices=[{"index": 0, "delta": {}, "finish_reason": "stop"}])
        async with gateway_rig(0) as (rig, _), RawEngine(STREAM + chunks + end + DONE) as engine:
            rig.model.backends.update([record("w", engine.address)])
            got = await rig.stream(CHAT, **asked(CHAT, return_token_ids=wanted))
            ids = [choice.get("token_ids") or [] for chunk in got.chunks for choice in chunk["choices"]]
            assert [one for found in ids for one in found] == expected
            assert all("prompt_token_ids" in chunk for chunk in got.chunks[:3]) == wanted

    asyncio.run(scenario())


def test_an_error_field_that_is_null_is_none() -> None:
    async def scenario() -> None:
        raw = STREAM + text_event("a", error=None) + text_event("b", error=None) + DONE
        async with gateway_rig(0) as (rig, _), RawEngine(raw) as engine:
            rig.model.backends.update([record("w", engine.address)])
            got = await rig.stream(**asked(COMPLETIONS))
            assert got.text == "ab"
            assert got.complete
            assert await counted(rig, 200)

    asyncio.run(scenario())


@pytest.mark.parametrize("content_type", ["application/json", "text/plain"])
def test_a_whole_answer_to_a_request_for_a_stream_reaches_the_client_and_counts(content_type: str) -> None:
    async def scenario() -> None:
        body = b'{"choices": [], "note": "no streams", "usage": {"prompt_tokens": 5, "completion_tokens": 7}}'
        head = f"HTTP/1.1 200 OK\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n".encode()
        async with gateway_rig(0) as (rig, _), RawEngine(head + body) as engine:
            rig.model.backends.update([record("w", engine.address)])
            wanted = {"model": MODEL, "stream": True, **asked(COMPLETIONS)}
            async with rig.session.post(rig.url + COMPLETIONS, json=wanted) as answer:
                assert (answer.status, await answer.read()) == (200, body)
            assert engine.requests == 1
            sample = rig.frontend._interval.sample(1, 1, queued=0, in_flight=0)
            assert (sample.arrivals, sample.completed, sample.osl_tokens) == (1, 1, 7)

    asyncio.run(scenario())


def test_a_client_that_reads_nothing_frees_its_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_wait, "CLIENT_S", 0.2)

    async def scenario() -> None:
        endless = text_event("x" * 60_000)
        async with gateway_rig(0, stall_s=0.1) as (rig, _), RawEngine(STREAM, forever=endless) as engine:
            rig.model.backends.update([record("w", engine.address)])
            client = socket.socket()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            client.settimeout(0)
            host, port = rig.url.removeprefix("http://").split(":")
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, (host, int(port)))
            body = json.dumps({"model": MODEL, "prompt": "a", "stream": True}).encode()
            head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
            await loop.sock_sendall(client, head + body)
            await until(lambda: engine.open == 1, "the engine streams")
            await until(lambda: (engine.open, rig.frontend.in_flight) == (0, 0), "the engine is free")
            assert await counted(rig, 499)
            client.close()

    asyncio.run(scenario())


def test_headers_named_by_any_line_of_connection_reach_no_engine() -> None:
    async def scenario() -> None:
        async with gateway_rig() as (rig, [engine]):
            lines = [("connection", "keep-alive"), ("connection", "x-secret"), ("x-secret", "a"), ("x-kept", "b")]
            async with aiohttp.ClientSession() as session:
                body = {"model": MODEL, "prompt": "a", "max_tokens": 1}
                async with session.post(rig.url + COMPLETIONS, json=body, headers=lines) as answer:
                    assert answer.status == 200
            names = {name.lower() for name in engine.headers[0]}
            assert "x-kept" in names
            assert "x-secret" not in names

    asyncio.run(scenario())
