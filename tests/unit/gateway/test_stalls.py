"""Engines that stop in the middle of a stream, with their connections open. In virtual time."""

import asyncio
import json

import aiohttp
import pytest

from loadline.core.vocabulary.scalars import WorkerPhase
from loadline.gateway import engine_wait
from loadline.gateway.sse import DONE, write_event
from loadline.gateway.stream_session import StreamSession
from tests.support.fake_engine import Gate
from tests.support.gateway_rig import GatewayRig, gateway_rig, record
from tests.support.moving_streams import CHAT, COMPLETIONS, TOKENS, asked, assert_unbroken, at_gate, claim, stop
from tests.support.raw_engine import STREAM, RawEngine
from tests.support.virtual_time import run_virtual
from tests.waiting import until


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("cut", [1, 9, TOKENS - 1])
def test_a_stream_that_stalls_is_continued_elsewhere(path: str, cut: int) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with gateway_rig(2, stall_s=60) as (rig, [stalled, _]):
            stalled.pace = Gate(cut)
            began_s = loop.time()
            assert_unbroken(await rig.stream(path, **asked(path)), path)
            assert loop.time() - began_s == pytest.approx(60, abs=1)
            assert stalled.open == 0

    run_virtual(scenario())


def test_a_stream_that_stalls_and_cannot_move_ends_with_an_error_ten_times_later() -> None:
    """Until then it may go on: an engine holds the output of a tool call back while it parses it."""

    async def scenario() -> None:
        async with gateway_rig(2, stall_s=6) as (rig, [stalled, other]):
            stalled.pace = gate = Gate(9)
            streaming = asyncio.create_task(rig.stream(**asked(COMPLETIONS, seed=1)))
            await at_gate(gate)
            await asyncio.sleep(58)
            assert not streaming.done()
            got = await streaming
            assert "it sent nothing for 60 s" in got.chunks[-1]["error"]["message"]
            assert "`seed` keeps it there" in got.chunks[-1]["error"]["message"]
            assert other.bodies == []
            assert (rig.frontend.in_flight, rig.frontend.queued) == (0, 0)

    run_virtual(scenario())


def test_an_engine_that_stalls_after_output_without_tokens_is_left() -> None:
    async def scenario() -> None:
        raw = STREAM + b'data: {"choices": [], "id": "c"}\n\n'  # without token IDs, nobody can continue it
        async with gateway_rig(0, stall_s=6) as (rig, _), RawEngine(raw, hangs=True) as engine:
            rig.model.backends.update([record("w", engine.address)])
            got = await rig.stream(**asked(COMPLETIONS))
            assert "it sent nothing for 60 s" in got.chunks[-1]["error"]["message"]
            await until(lambda: engine.open == 0, "the engine is free")

    run_virtual(scenario())


def test_an_engine_that_sends_nothing_but_comments_is_left() -> None:
    async def scenario() -> None:
        def token(text: str, number: int, finish: str | None) -> bytes:
            choice = {"index": 0, "text": text, "token_ids": [number], "prompt_token_ids": [97]}
            return write_event(json.dumps({"id": "c", "choices": [{**choice, "finish_reason": finish}]}).encode())

        first, second = STREAM + token("a", 1, None), STREAM + token("b", 2, "stop") + write_event(DONE)
        pinging, other = RawEngine(first, forever=b": ping\n\n", pause_s=7), RawEngine(second)
        async with gateway_rig(0, stall_s=60) as (rig, _), pinging, other:
            rig.model.backends.update([record("a", pinging.address), record("b", other.address)])
            assert (await rig.stream(**asked(COMPLETIONS))).text == "ab"
            assert pinging.sent_bytes == 9 * len(b": ping\n\n")  # within 60 s

    run_virtual(scenario())


@pytest.mark.parametrize("first", [b"", b'data: {"choices": []}\n\n', b'data: {"choices": [{"text": "a"}]}\n\n'])
def test_comments_keep_a_stream_that_nobody_can_continue(first: bytes) -> None:
    """Its engine may compute a long prompt, or hold the output of a tool call back."""

    async def scenario() -> None:
        pinging = RawEngine(STREAM + first, forever=b": ping\n\n", pause_s=15)
        async with gateway_rig(1, stall_s=6) as (rig, [other]), pinging:
            rig.model.backends.update([record("a", pinging.address)])
            streaming = asyncio.create_task(rig.stream(**asked(COMPLETIONS)))
            await until(lambda: pinging.requests == 1, "it is asked")
            rig.register([other])  # the sidecar of the first one has left
            await asyncio.sleep(200)
            assert not streaming.done()
            assert (pinging.open, other.bodies) == (1, [])
            streaming.cancel()

    run_virtual(scenario())


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_the_first_token_may_take_longer(path: str) -> None:
    async def scenario() -> None:
        async with gateway_rig(2, stall_s=60) as (rig, engines):
            engines[0].pace = gate = Gate(0)
            streaming = asyncio.create_task(rig.stream(path, **asked(path)))
            await at_gate(gate)
            await asyncio.sleep(200)
            gate.advance()
            assert_unbroken(await streaming, path)
            assert engines[1].bodies == []

    run_virtual(scenario())


def test_a_slow_client_is_no_reason_to_leave_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    write = StreamSession._write

    async def slowly(self: StreamSession, events: list[bytes], answer: aiohttp.ClientResponse | None = None) -> None:
        await asyncio.sleep(30)
        await write(self, events, answer)

    monkeypatch.setattr(StreamSession, "_write", slowly)

    async def scenario() -> None:
        async with gateway_rig(2, stall_s=20) as (rig, engines):
            engines[0].pace = gate = Gate(1)
            streaming = asyncio.create_task(rig.stream(**asked(COMPLETIONS, max_tokens=3)))
            await at_gate(gate)
            await asyncio.sleep(35)
            gate.advance(2)
            await at_gate(gate)
            await asyncio.sleep(35)
            gate.advance()
            assert (await streaming).complete
            assert engines[1].bodies == []

    run_virtual(scenario())


def sidecar_says(rig: GatewayRig, addresses: list[str], states: list[WorkerPhase], incarnation: int) -> None:
    """Register the engines anew, as sidecars do: the old incarnations leave first."""
    backends = rig.model.backends
    pairs = list(zip(addresses, states, strict=True))
    backends.update([record(f"w{n}", address) for n, (address, state) in enumerate(pairs) if state == "ready"])
    backends.update(
        [
            record(f"w{n}", address, state=state, incarnation=1 if state == "ready" else incarnation)
            for n, (address, state) in enumerate(pairs)
        ]
    )


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("cut", [0, 9])
def test_a_stream_at_an_engine_that_is_away_is_continued_elsewhere(path: str, cut: int) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with gateway_rig(2, stall_s=600) as (rig, [hung, other]):
            hung.pace = gate = Gate(cut)
            streaming = asyncio.create_task(rig.stream(path, **asked(path)))
            await at_gate(gate)
            await asyncio.sleep(100)
            sidecar_says(rig, [hung.address, other.address], ["starting", "ready"], 2)
            began_s = loop.time()
            assert_unbroken(await streaming, path)
            assert loop.time() - began_s == pytest.approx(6, abs=1.5)
            assert hung.open == 0
            assert len(other.bodies) == 1

    run_virtual(scenario())


@pytest.mark.parametrize("stream", [True, False])
def test_an_engine_that_hangs_before_its_headers_is_replaced(*, stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_wait, "_AWAY_S", 0.01)
    monkeypatch.setattr(engine_wait, "_CHECK_S", 0.01)

    async def scenario() -> None:
        async with gateway_rig() as (rig, [other]), RawEngine(b"", hangs=True) as hung:
            rig.model.backends.update([record("w0", hung.address)])
            body = {"model": "tiny", "prompt": "abc", "stream": stream}
            asking = asyncio.create_task(rig.session.post(rig.url + COMPLETIONS, json=body))
            await until(lambda: hung.requests == 1, "it is asked")
            sidecar_says(rig, [hung.address, other.address], ["starting", "ready"], 2)
            async with await asking as answer:
                assert answer.status == 200
                await answer.read()
            assert hung.open == 0

    asyncio.run(scenario())


def test_a_new_sidecar_is_no_reason_to_leave_its_engine() -> None:
    async def scenario() -> None:
        async with gateway_rig(2, stall_s=600) as (rig, [engine, other]):
            engine.pace = gate = Gate(0)
            streaming = asyncio.create_task(rig.stream(**asked(COMPLETIONS)))
            await at_gate(gate)
            for _ in range(3):
                await asyncio.sleep(30)
                sidecar_says(rig, [engine.address, other.address], ["starting", "ready"], 2)
                await asyncio.sleep(2)
                rig.register([engine, other])
            gate.advance()
            assert_unbroken(await streaming, COMPLETIONS)
            assert other.bodies == []

    run_virtual(scenario())


def test_a_new_sidecar_moves_the_streams_that_began_before_it() -> None:
    async def scenario() -> None:
        async with gateway_rig(2) as (rig, [engine, other]):
            engine.pace = gate = Gate(9)
            streaming = asyncio.create_task(rig.stream(**asked(COMPLETIONS)))
            await at_gate(gate)
            again = record("w0", engine.address, incarnation=2)
            rig.model.backends.update([again, record("w1", other.address)])
            [report] = [one for one in rig.model.moves.reports() if one.streams]
            assert (report.worker, report.incarnation) == ("w0", 2)
            assert [one.in_flight for one in rig.model.backends.ready] == [1, 0]
            worker, stream = await stop(rig)
            assert worker == "w0"
            assert claim(rig, stream, "w1")
            assert_unbroken(await streaming, COMPLETIONS)
            assert (len(engine.bodies), len(other.bodies)) == (1, 1)

    run_virtual(scenario())
