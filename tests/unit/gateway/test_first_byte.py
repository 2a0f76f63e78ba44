"""Engines that take long until the first byte of an answer. In virtual time."""

import asyncio
from typing import Any

import pytest
from aiohttp import ClientResponse, ClientTimeout

from loadline.gateway.stream_session import StreamSession
from tests.support.fake_engine import Gate
from tests.support.gateway_rig import MODEL, GatewayRig, gateway_rig
from tests.support.moving_streams import CHAT, COMPLETIONS, asked, assert_unbroken, at_gate, claim, stop
from tests.support.virtual_time import run_virtual
from tests.waiting import until


async def status_of(rig: GatewayRig, body: dict[str, Any]) -> int:
    async with rig.session.post(rig.url + COMPLETIONS, json=body, timeout=ClientTimeout(None)) as answer:
        await answer.read()
        return answer.status


both = pytest.mark.parametrize("stream", [True, False])


@both
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_late_answer_ends_with_504_and_frees_its_engine(path: str, *, stream: bool) -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        async with gateway_rig(2, first_byte_s=90) as (rig, [late, other]):
            late.pace = Gate(0)
            began_s = loop.time()
            body = asked(path) if stream else {**asked(path), "stream_options": None}
            status, answer = await rig.post(path, {"model": MODEL, "stream": stream, **body})
            assert loop.time() - began_s == pytest.approx(90, abs=1)
            assert (status, answer["error"]["type"]) == (504, "server_error")
            assert answer["error"]["code"] == "first_byte_timeout"
            assert answer["error"]["message"] == "the engine sent nothing within 90 s"
            await until(lambda: late.open == 0, "the engine is free")
            assert other.bodies == [], "nobody is asked for the same work again"
            assert (rig.frontend.in_flight, rig.frontend.queued) == (0, 0)
            async with rig.session.get(f"{rig.url}/metrics") as page:
                assert f'requests_total{{model="{MODEL}",status="504"}} 1.0' in await page.text()

    run_virtual(scenario())


@both
def test_without_a_limit_an_answer_may_take_an_hour(*, stream: bool) -> None:
    async def scenario() -> None:
        async with gateway_rig() as (rig, [engine]):
            engine.pace = gate = Gate(0)
            body = {"model": MODEL, "prompt": "abc", "stream": stream}
            asking = asyncio.create_task(status_of(rig, body))
            await at_gate(gate)
            await asyncio.sleep(3_600)
            gate.advance()
            assert await asking == 200

    run_virtual(scenario())


def test_a_stream_that_has_begun_may_take_longer() -> None:
    async def scenario() -> None:
        async def slowly(_sent: int) -> None:
            await asyncio.sleep(4)

        async with gateway_rig(first_byte_s=5) as (rig, [engine]):
            engine.pace = slowly
            assert_unbroken(await rig.stream(**asked(COMPLETIONS)), COMPLETIONS)

    run_virtual(scenario())


def test_the_time_that_a_slow_client_takes_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    write = StreamSession._write

    async def slowly(self: StreamSession, events: list[bytes], answer: ClientResponse | None = None) -> None:
        await asyncio.sleep(10)
        await write(self, events, answer)

    monkeypatch.setattr(StreamSession, "_write", slowly)

    async def scenario() -> None:
        async with gateway_rig(first_byte_s=5) as (rig, _):
            assert (await rig.stream(**asked(COMPLETIONS, max_tokens=3))).complete

    run_virtual(scenario())


def test_a_stream_that_the_client_has_begun_to_receive_is_continued_elsewhere() -> None:
    async def scenario() -> None:
        async with gateway_rig(3, first_byte_s=90) as (rig, [first, late, last]):
            first.die_after, late.pace = 9, Gate(0)
            assert_unbroken(await rig.stream(**asked(COMPLETIONS)), COMPLETIONS)
            assert (len(late.bodies), late.open, len(last.bodies)) == (1, 0, 1)

    run_virtual(scenario())


def test_each_engine_of_a_stream_that_moves_has_the_whole_time() -> None:
    async def scenario() -> None:
        async with gateway_rig(2, first_byte_s=90) as (rig, engines):
            gates = [Gate(0), Gate(0)]
            for engine, gate in zip(engines, gates, strict=True):
                engine.pace = gate
            streaming: asyncio.Task[Any] = asyncio.create_task(rig.stream(**asked(COMPLETIONS)))
            await at_gate(gates[0])
            await asyncio.sleep(60)
            _, progress = await stop(rig)
            assert claim(rig, progress, "w1")
            await at_gate(gates[1])
            await asyncio.sleep(60)
            gates[1].advance()
            assert_unbroken(await streaming, COMPLETIONS)

    run_virtual(scenario())
