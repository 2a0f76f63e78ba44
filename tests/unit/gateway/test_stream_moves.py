"""Streams that move between engines: the client sees one stream, with no text twice and none missing."""

import asyncio
import json
import time

import pytest

from loadline.client.streams import StopStream, StreamProgress
from loadline.gateway import stream_session
from tests.support.fake_engine import FakeEngine, Gate, greedy
from tests.support.gateway_rig import GatewayRig, Streamed, gateway_rig
from tests.support.moving_streams import CHAT, COMPLETIONS, TOKENS, asked, assert_unbroken, at_gate, claim, only, stop
from tests.support.virtual_time import run_virtual
from tests.waiting import until


async def begin_and_stop(rig: GatewayRig, engine: FakeEngine) -> tuple[Gate, asyncio.Task[Streamed], StreamProgress]:
    """Begin a stream, and stop it after seven tokens; the engine waits at the gate before the next one."""
    engine.pace = gate = Gate(7)
    streaming = asyncio.create_task(rig.stream(**asked(COMPLETIONS)))
    await at_gate(gate)
    _, stream = await stop(rig)
    return gate, streaming, stream


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("cut", range(TOKENS))
def test_an_engine_that_dies_costs_a_pause(path: str, cut: int) -> None:
    async def scenario() -> None:
        async with gateway_rig(2) as (rig, engines):
            engines[0].die_after = cut
            engines[0].piece_bytes = cut
            assert_unbroken(await rig.stream(path, **asked(path)), path)
            assert engines[1].paths == [path if cut < 1 else engines[1].paths[0]]

    asyncio.run(scenario())


@pytest.mark.parametrize("chunk_tokens", [2, 3, 7])
@pytest.mark.parametrize("cut", range(2, TOKENS, 3))
def test_an_engine_that_dies_within_a_character_loses_nothing(cut: int, chunk_tokens: int) -> None:
    async def scenario() -> None:
        async with gateway_rig(3) as (rig, engines):
            for engine in engines:
                engine.chunk_tokens = chunk_tokens
            engines[0].die_after = cut
            engines[1].die_after = 5
            assert_unbroken(await rig.stream(CHAT, **asked(CHAT)), CHAT)

    asyncio.run(scenario())


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("cut", range(TOKENS))
def test_a_stream_moves_at_every_token(path: str, cut: int) -> None:
    async def scenario() -> None:
        async with gateway_rig(2) as (rig, [source, destination]):
            source.pace = gate = Gate(cut)
            destination.piece_bytes = cut
            streaming = asyncio.create_task(rig.stream(path, **asked(path)))
            await at_gate(gate)
            worker, stream = await stop(rig)
            assert worker == "w0"
            assert claim(rig, stream, "w1")
            assert_unbroken(await streaming, path)
            await until(lambda: source.open == 0, "the source is free")
            assert rig.model.moves.moved == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("cut", range(3, TOKENS - 3, 3))
def test_a_stream_does_not_move_within_a_character(cut: int) -> None:
    async def scenario() -> None:
        async with gateway_rig(2) as (rig, [source, _]):
            source.pace, source.chunk_tokens = gate, _ = Gate(cut), 3
            streaming = asyncio.create_task(rig.stream(CHAT, **asked(CHAT)))
            await at_gate(gate)
            await until(lambda: only(rig)[2].output_tokens == cut, "the chunk has arrived")
            worker, incarnation, stream = only(rig)
            message = StopStream(stream.request_id, worker, incarnation, stream.hop)
            assert rig.model.moves.answer_stop(message).outcome == "later", "it may end within a character"
            source.chunk_tokens = 1
            gate.advance(cut + 5)
            await at_gate(gate)
            await until(lambda: only(rig)[2].output_tokens == cut + 5, "more has arrived")
            _, stream = await stop(rig)
            assert claim(rig, stream, "w1")
            assert_unbroken(await streaming, CHAT)

    asyncio.run(scenario())


def test_a_stream_moves_there_and_back_again() -> None:
    async def scenario() -> None:
        async with gateway_rig(2) as (rig, engines):
            gates = [Gate(5), Gate(3)]
            for engine, gate in zip(engines, gates, strict=True):
                engine.pace = gate
            streaming = asyncio.create_task(rig.stream(CHAT, **asked(CHAT)))
            for worker in (1, 0, 1):
                await at_gate(gates[1 - worker])
                gates[1 - worker].reached.clear()
                _, stream = await stop(rig)
                assert claim(rig, stream, f"w{worker}")
            assert only(rig)[2].hops == 3
            for gate in gates:
                gate.advance()
            assert_unbroken(await streaming, CHAT)

    asyncio.run(scenario())


def test_a_destination_that_refuses_leaves_the_stream_at_the_source() -> None:
    async def scenario() -> None:
        async with gateway_rig(2) as (rig, engines):
            engines[0].pace = gate = Gate(7)
            streaming = asyncio.create_task(rig.stream(**asked(COMPLETIONS)))
            await at_gate(gate)
            gate.advance()
            _, stream = await stop(rig)
            assert claim(rig, stream, "w0"), "the source takes it back"
            assert not claim(rig, stream, "w1"), "the destination comes too late"
            assert_unbroken(await streaming, COMPLETIONS)
            assert engines[1].bodies == []
            assert rig.model.moves.moved == 0

    asyncio.run(scenario())


def test_a_stream_that_nobody_claims_continues_under_a_new_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_session, "_CLAIM_S", 0.05)

    async def scenario() -> None:
        async with gateway_rig(2) as (rig, engines):
            engines[1].pace = second = Gate(2)
            _, streaming, stream = await begin_and_stop(rig, engines[0])
            rig.register([])
            await until(lambda: rig.frontend.queued == 1, "it waits for a worker")
            rig.register(engines)
            rig.model.backends.mark_unreachable(rig.model.backends.ready[0])
            await at_gate(second)
            assert not claim(rig, stream, "w0"), "the claim is void"
            second.advance()
            assert_unbroken(await streaming, COMPLETIONS)

    asyncio.run(scenario())


def test_a_claim_that_is_granted_when_its_time_ends_is_kept() -> None:
    async def scenario() -> None:
        async with gateway_rig(2) as (rig, engines):
            gate, streaming, stream = await begin_and_stop(rig, engines[0])
            loop, granted = asyncio.get_running_loop(), asyncio.Event()

            def claim_at_last() -> None:
                assert claim(rig, stream, "w1")
                granted.set()

            # Timers that are due within 1 us are one turn of the loop: the claim, then the end of the time.
            loop.call_at(loop.time() + stream_session._CLAIM_S - 1e-7, claim_at_last)
            await granted.wait()
            gate.advance()
            assert_unbroken(await streaming, COMPLETIONS)
            assert len(engines[0].bodies) == len(engines[1].bodies) == 1

    run_virtual(scenario())


def test_a_stream_continues_elsewhere_if_the_worker_that_claimed_it_has_left() -> None:
    async def scenario() -> None:
        async with gateway_rig(2) as (rig, engines):
            gate, streaming, stream = await begin_and_stop(rig, engines[0])
            engines[1].pace = Gate(0)  # it hangs
            assert claim(rig, stream, "w1")
            rig.register(engines[:1])
            gate.advance()
            assert_unbroken(await asyncio.wait_for(streaming, 10), COMPLETIONS)
            assert engines[1].bodies == []

    asyncio.run(scenario())


def test_a_running_stream_cannot_be_claimed() -> None:
    async def scenario() -> None:
        async with gateway_rig(2) as (rig, engines):
            engines[0].pace = gate = Gate(7)
            streaming = asyncio.create_task(rig.stream(**asked(COMPLETIONS)))
            await at_gate(gate)
            _, _, stream = only(rig)
            assert not claim(rig, stream, "w1")
            wrong = StopStream(stream.request_id, "w1", 1, stream.hop)
            assert rig.model.moves.answer_stop(wrong).outcome == "ended", "it does not own it"
            gate.advance()
            assert_unbroken(await streaming, COMPLETIONS)
            assert len(engines[0].bodies) == 1

    asyncio.run(scenario())


def test_an_unknown_worker_gets_no_claim() -> None:
    async def scenario() -> None:
        async with gateway_rig(1) as (rig, engines):
            gate, streaming, stream = await begin_and_stop(rig, engines[0])
            assert not claim(rig, stream, "unknown")
            assert claim(rig, stream, "w0")
            gate.advance()
            assert_unbroken(await streaming, COMPLETIONS)

    asyncio.run(scenario())


def test_a_client_that_leaves_during_a_move_leaves_nothing_behind() -> None:
    async def scenario() -> None:
        async with gateway_rig(2) as (rig, engines):
            _, streaming, stream = await begin_and_stop(rig, engines[0])
            streaming.cancel()
            await until(lambda: not [one for one in rig.model.moves.reports() if one.streams], "it has ended")
            assert not claim(rig, stream, "w1")
            await until(lambda: engines[0].open == 0, "the engine is free")
            assert rig.frontend.in_flight == rig.frontend.queued == 0

    asyncio.run(scenario())


def test_a_destination_that_dies_hands_on_to_a_third() -> None:
    async def scenario() -> None:
        async with gateway_rig(3) as (rig, engines):
            engines[0].pace = gate = Gate(7)
            engines[1].die_after = 4
            streaming = asyncio.create_task(rig.stream(CHAT, **asked(CHAT)))
            await at_gate(gate)
            _, stream = await stop(rig)
            rig.model.backends.ready[0].unreachable_until_s = float("inf")
            assert claim(rig, stream, "w1")
            assert_unbroken(await streaming, CHAT)
            assert len(engines[2].bodies) == 1

    asyncio.run(scenario())


def test_a_destination_that_rejects_the_continuation_is_passed_over() -> None:
    async def scenario() -> None:
        async with gateway_rig(2) as (rig, engines):
            engines[0].pace = gate = Gate(7)
            engines[1].statuses = [503]
            streaming = asyncio.create_task(rig.stream(CHAT, **asked(CHAT)))
            await at_gate(gate)
            gate.advance()
            _, stream = await stop(rig)
            assert claim(rig, stream, "w1")
            assert_unbroken(await streaming, CHAT)

    asyncio.run(scenario())


def test_a_chat_without_limit_ends_with_the_context() -> None:
    async def scenario() -> None:
        async with gateway_rig(2) as (rig, engines):
            engines[0].die_after = 50
            body = {"messages": [{"role": "user", "content": "abc"}], "ignore_eos": True}
            got = await rig.stream(CHAT, **body)
            assert engines[1].bodies[0]["max_tokens"] == 600 - 3 - len(engines[1].bodies[0]["prompt"]) + 3
            assert got.text == greedy("abc", 597, ignore_eos=True)[0]

    asyncio.run(scenario())


def test_token_ids_that_the_client_asked_for_are_those_of_one_stream() -> None:
    async def scenario() -> None:
        for cut in range(1, TOKENS):
            async with gateway_rig(2) as (rig, engines):
                engines[0].die_after = cut
                got = await rig.stream(**asked(COMPLETIONS, return_token_ids=True))
                ids = [one for choice in got.choices for one in choice.get("token_ids", [])]
                assert ids == greedy("abc", TOKENS, ignore_eos=True)[1]
                assert [one.get("prompt_token_ids") for one in got.choices] == [list(b"abc")] + [None] * (
                    len(got.choices) - 1
                )

    asyncio.run(scenario())


def test_a_waiting_stream_moves_whatever_it_asks_for() -> None:
    async def scenario() -> None:
        async with gateway_rig(2) as (rig, engines):
            engines[0].pace = Gate(0)
            streaming = asyncio.create_task(rig.stream(CHAT, **asked(CHAT, stop=["never"])))
            await until(lambda: engines[0].open == 1, "it waits")
            _, stream = await stop(rig)
            assert stream.output_tokens == 0
            assert claim(rig, stream, "w1")
            assert_unbroken(await streaming, CHAT)
            assert engines[1].paths == [CHAT]

    asyncio.run(scenario())


def test_reports_list_all_streams_and_end_with_two_empty_ones() -> None:
    async def scenario() -> None:
        async with gateway_rig(1) as (rig, [engine]):
            engine.pace = gate = Gate(5)
            streams = [asyncio.create_task(rig.stream(**asked(COMPLETIONS))) for _ in range(3)]
            await until(lambda: engine.open == 3, "all run")
            await at_gate(gate)
            [report] = rig.model.moves.reports()
            assert len({one.request_id for one in report.streams}) == 3
            assert {(one.prompt_tokens, one.remaining_tokens) for one in report.streams} <= {
                (3, TOKENS - sent) for sent in range(6)
            }
            gate.advance()
            await asyncio.gather(*streams)
            assert [[len(one.streams) for one in rig.model.moves.reports()] for _ in range(4)] == [[0], [0], [], []]

    asyncio.run(scenario())


def test_the_worker_that_continues_after_a_failure_owns_the_stream() -> None:
    async def scenario() -> None:
        async with gateway_rig(2) as (rig, engines):
            engines[0].die_after = 9
            engines[1].pace = gate = Gate(5)
            streaming = asyncio.create_task(rig.stream(**asked(COMPLETIONS)))
            await at_gate(gate)
            worker, _, stream = only(rig)
            assert (worker, stream.hop, stream.hops) == ("w1", 1, 0)
            gate.advance()
            assert_unbroken(await streaming, COMPLETIONS)

    asyncio.run(scenario())


def test_a_stream_that_has_lasted_waits_for_a_worker_as_long_as_a_new_one() -> None:
    async def scenario() -> None:
        async with gateway_rig(2, hold_s=0.5) as (rig, engines):
            engines[0].pace = gate = Gate(7)
            streaming = asyncio.create_task(rig.stream(**asked(COMPLETIONS)))
            await at_gate(gate)
            later_s = time.monotonic() + 0.6
            await until(lambda: time.monotonic() > later_s, "more than the time that a request waits")
            gate.advance(9)
            await until(lambda: only(rig)[2].output_tokens == 9, "it has gone on")
            rig.register([])
            await engines[0].kill()
            await until(lambda: rig.frontend.queued == 1, "it waits")
            rig.register(engines[1:])
            assert_unbroken(await streaming, COMPLETIONS)

    asyncio.run(scenario())


def test_a_body_with_an_error_event_is_continued_elsewhere() -> None:
    async def scenario() -> None:
        async with gateway_rig(2) as (rig, engines):
            engines[0].fail_after = 9
            assert_unbroken(await rig.stream(CHAT, **asked(CHAT)), CHAT)
            assert engines[1].paths == [COMPLETIONS]
            assert json.dumps(engines[1].bodies[0]["prompt"]).startswith("[97, 98, 99")

    asyncio.run(scenario())
