"""Streams that stay where they are, and what keeps them."""

import asyncio
from typing import Any

import pytest

from loadline.client.streams import StopStream
from tests.support.fake_engine import Gate, greedy
from tests.support.gateway_rig import gateway_rig
from tests.support.moving_streams import CHAT, COMPLETIONS, asked, assert_unbroken, at_gate, only
from tests.waiting import until


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("seed", 7),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -0.5),
        ("repetition_penalty", 1.1),
        ("logprobs", 1),
        ("logprobs", 0),
        ("n", 2),
        ("best_of", 2),
        ("min_tokens", 3),
        ("stop", ["x"]),
        ("echo", True),
        ("response_format", {"type": "json_object"}),
        ("guided_json", {}),
        ("structured_outputs", {"regex": "a"}),
        ("tools", [{"type": "function"}]),
        ("something_new", True),
        ("stream_options", {"continuous_usage_stats": True}),
    ],
)
def test_a_request_that_would_change_stays(name: str, value: Any) -> None:
    async def scenario() -> None:
        async with gateway_rig(2) as (rig, engines):
            engines[0].pace = gate = Gate(7)
            engines[0].die_after = 9
            streaming = asyncio.create_task(rig.stream(**asked(COMPLETIONS, **{name: value})))
            await at_gate(gate)
            await until(lambda: only(rig)[0] == "w0", "it is reported")
            _, _, stream = only(rig)
            assert not stream.movable
            reply = rig.model.moves.answer_stop(StopStream(stream.request_id, "w0", 1, stream.hop))
            assert reply.outcome == "unmovable"
            assert name in reply.detail
            gate.advance()
            got = await streaming
            assert name in got.chunks[-1]["error"]["message"]
            assert engines[1].bodies == []

    asyncio.run(scenario())


@pytest.mark.parametrize(("name", "value"), [("n", 1), ("stop", None), ("tools", []), ("top_p", 0.9), ("seed", None)])
def test_a_parameter_without_effect_keeps_nothing(name: str, value: Any) -> None:
    async def scenario() -> None:
        async with gateway_rig(2) as (rig, engines):
            engines[0].die_after = 9
            assert_unbroken(await rig.stream(**asked(COMPLETIONS, **{name: value})), COMPLETIONS)

    asyncio.run(scenario())


def test_an_engine_without_token_ids_keeps_its_streams() -> None:
    async def scenario() -> None:
        async with gateway_rig(2) as (rig, engines):
            engines[0].knows_ids = False
            engines[0].die_after = 9
            got = await rig.stream(**asked(COMPLETIONS))
            assert "w0 failed" in got.chunks[-1]["error"]["message"]
            assert got.text == greedy("abc", 9, ignore_eos=True)[0]
            assert not got.complete

    asyncio.run(scenario())


def test_an_engine_that_refuses_token_ids_keeps_no_stream_that_it_fails() -> None:
    async def scenario() -> None:
        async with gateway_rig(2) as (rig, engines):
            engines[0].refuses_chat_ids = True
            engines[0].statuses = [200, 503]
            engines[1].die_after = 9
            assert_unbroken(await rig.stream(CHAT, **asked(CHAT)), CHAT)
            assert engines[0].paths == [CHAT, CHAT, COMPLETIONS]

    asyncio.run(scenario())


def test_an_engine_that_does_not_tell_its_context_continues_no_stream_without_limit() -> None:
    async def scenario() -> None:
        async with gateway_rig(2) as (rig, engines):
            engines[0].die_after = 9
            engines[0].context_tokens = engines[1].context_tokens = None
            got = await rig.stream(CHAT, messages=[{"role": "user", "content": "abc"}], ignore_eos=True)
            assert "max_model_len" in got.chunks[-1]["error"]["message"]
            assert engines[1].bodies == []

    asyncio.run(scenario())
