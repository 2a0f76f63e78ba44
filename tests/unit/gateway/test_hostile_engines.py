"""Engines that answer with anything, and addresses of none: the client gets an error, and nothing stays."""

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from loadline.client.streams import StreamReport
from loadline.gateway import engine_client
from loadline.wire.codec import decode_as, encode
from tests.support.fake_engine import Gate
from tests.support.gateway_rig import MODEL, GatewayRig, gateway_rig, record
from tests.support.moving_streams import COMPLETIONS, asked, assert_unbroken, at_gate
from tests.support.raw_engine import STREAM, RawEngine
from tests.waiting import until


def chunk(text: str, finish: str | None = None, index: int = 0) -> bytes:
    choice = {"index": index, "text": text, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "c", "choices": [choice]}).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


async def ask(rig: GatewayRig, **body: Any) -> tuple[int, bytes]:
    request = {"model": MODEL, "prompt": "abc", **body}
    async with rig.session.post(rig.url + COMPLETIONS, json=request, allow_redirects=False) as answer:
        return answer.status, await answer.read()


async def idle(rig: GatewayRig) -> None:
    await until(lambda: (rig.frontend.in_flight, rig.frontend.queued) == (0, 0), "nothing is counted")


@pytest.mark.parametrize("stream", [True, False])
def test_a_worker_with_the_address_of_the_gateway_is_found_out(*, stream: bool) -> None:
    async def scenario() -> None:
        async with gateway_rig() as (rig, [engine]):
            rig.model.backends.update([record("a-loop", rig.url), record("b", engine.address)])
            status, _ = await ask(rig, stream=stream)
            assert (status, len(engine.bodies)) == (200, 1)
            rig.model.backends.update([record("a-loop", rig.url)])
            status, body = await ask(rig, stream=stream)
            assert status == 508
            assert "register the engine's own" in json.loads(body)["error"]["message"]
            assert rig.frontend._interval.sample(1, 1, queued=0, in_flight=0).arrivals == 2
            await idle(rig)

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", [200, 400])
def test_an_answer_without_end_is_given_up(status: int, *, stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_client, "_ANSWER_BYTES_MAX", 1_000_000)
    monkeypatch.setattr("loadline.gateway.sse._EVENT_BYTES_MAX", 1_000_000)

    async def scenario() -> None:
        head = b"HTTP/1.1 %d X\r\nconnection: close\r\n\r\n" % status
        async with gateway_rig() as (rig, _), RawEngine(head, forever=b"x" * 65_536) as engine:
            rig.model.backends.update([record("w", engine.address)])
            got, body = await ask(rig, stream=stream)
            assert got == 502
            assert "more than 1,000,000 bytes" in json.loads(body)["error"]["message"]
            assert engine.sent_bytes < 3 * 20_000_000  # what socket buffers hold, three times
            await until(lambda: engine.open == 0, "the engine is free")
            await idle(rig)

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("status", [b"101 X\r\nupgrade: h2c", b"307 X\r\nlocation: /x", b"999 X"])
def test_an_answer_that_no_engine_gives_reaches_no_client(status: bytes, *, stream: bool) -> None:
    async def scenario() -> None:
        raw = b"HTTP/1.1 " + status + b"\r\ncontent-length: 0\r\n\r\n"
        async with gateway_rig() as (rig, _), RawEngine(raw) as engine:
            rig.model.backends.update([record("w", engine.address)])
            got, body = await ask(rig, stream=stream)
            assert got == 502
            assert f"it answered {status[:3].decode()}" in json.loads(body)["error"]["message"]
            await idle(rig)

    asyncio.run(scenario())


@pytest.mark.parametrize("more", [{"n": 2}, {"prompt": ["a", "b"]}])
def test_an_answer_with_several_outputs_is_not_complete_with_the_first(more: dict[str, Any]) -> None:
    async def scenario() -> None:
        raw = STREAM + chunk("a") + chunk("b", index=1) + chunk("c", "stop")
        async with gateway_rig() as (rig, _):
            async with RawEngine(raw) as engine:
                rig.model.backends.update([record("w", engine.address)])
                _, body = await ask(rig, stream=True, **more)
                assert b"[DONE]" not in body
                assert b"w failed" in body
            async with RawEngine(raw + chunk("d", "length", index=1) + DONE) as engine:
                rig.model.backends.update([record("w", engine.address)])
                _, body = await ask(rig, stream=True, **more)
                assert body.endswith(DONE)

    asyncio.run(scenario())


def test_nothing_follows_the_end() -> None:
    async def scenario() -> None:
        raw = STREAM + chunk("a", "stop") + DONE + DONE + chunk("b")
        async with gateway_rig() as (rig, _), RawEngine(raw) as engine:
            rig.model.backends.update([record("w", engine.address)])
            _, body = await ask(rig, stream=True)
            assert (
                body == chunk("a", "stop").replace(b": ", b":").replace(b", ", b",").replace(b"data:", b"data: ") + DONE
            )

    asyncio.run(scenario())


def test_a_limit_beyond_all_contexts_keeps_no_report_from_the_worker() -> None:
    async def scenario() -> None:
        raw = STREAM + chunk("a")
        async with gateway_rig() as (rig, _), RawEngine(raw, hangs=True) as engine:
            rig.model.backends.update([record("w", engine.address)])
            streaming = asyncio.create_task(ask(rig, stream=True, max_tokens=10**30))
            await until(lambda: engine.requests == 1, "it streams")
            [report] = rig.model.moves.reports()
            assert decode_as(StreamReport, encode(report)) == report
            streaming.cancel()
            await idle(rig)

    asyncio.run(scenario())


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 307 X\r\nlocation: /loop\r\ncontent-length: 0\r\n\r\n"])
def test_an_engine_that_does_not_list_its_models_delays_a_stream_by_seconds_only(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_client, "_QUESTION", aiohttp.ClientTimeout(total=0.2))

    async def scenario() -> None:
        async with gateway_rig() as (rig, [engine]), RawEngine(answer, hangs=True) as other:
            backends = rig.model.backends
            backends.update([record("w", other.address)])
            backend = backends.find("w", 1)
            assert backend is not None
            client = engine_client.EngineClient()
            async with asyncio.timeout(5):
                with pytest.raises(engine_client.EngineBroken):
                    await client.context_tokens(backend, {})
            await client.close()
            assert other.requests == 1
            assert engine.bodies == []

    asyncio.run(scenario())


@pytest.mark.parametrize("status", [400, 404, 413, 503])
def test_a_stream_that_its_next_engine_refuses_continues_elsewhere(status: int) -> None:
    async def scenario() -> None:
        async with gateway_rig(3) as (rig, engines):
            engines[0].pace = gate = Gate(7)
            engines[0].die_after, engines[1].statuses = 9, [status]
            streaming = asyncio.create_task(rig.stream(**asked(COMPLETIONS)))
            await at_gate(gate)
            gate.advance()
            assert_unbroken(await streaming, COMPLETIONS)
            assert [len(engine.bodies) for engine in engines] == [1, 1, 1]
            await idle(rig)

    asyncio.run(scenario())


def test_a_stream_that_every_engine_refuses_ends_with_the_reason() -> None:
    async def scenario() -> None:
        async with gateway_rig(2) as (rig, engines):
            engines[0].die_after, engines[0].statuses = 9, [200, 400, 400]
            engines[1].statuses = [400, 400]
            got = await rig.stream(**asked(COMPLETIONS))
            assert "it answered 400 instead of continuing" in got.chunks[-1]["error"]["message"]
            assert sum(len(engine.bodies) for engine in engines) == 3
            await idle(rig)

    asyncio.run(scenario())
