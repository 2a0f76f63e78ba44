"""Engines that stop in the middle of a stream, with their connections open. In virtual time."""

import asyncio

import aiohttp
import pytest

from loadline.gateway.stream_session import StreamSession
from tests.support.fake_engine import Gate
from tests.support.gateway_rig import gateway_rig
from tests.support.moving_streams import CHAT, COMPLETIONS, TOKENS, asked, assert_unbroken, at_gate
from tests.support.virtual_time import run_virtual


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


def test_a_stream_that_stalls_and_cannot_move_ends_with_an_error() -> None:
    async def scenario() -> None:
        async with gateway_rig(2, stall_s=60) as (rig, [stalled, other]):
            stalled.pace = Gate(9)
            got = await rig.stream(**asked(COMPLETIONS, seed=1))
            assert "it sent nothing for 60 s" in got.chunks[-1]["error"]["message"]
            assert "`seed` keeps it there" in got.chunks[-1]["error"]["message"]
            assert other.bodies == []
            assert (rig.frontend.in_flight, rig.frontend.queued) == (0, 0)

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
