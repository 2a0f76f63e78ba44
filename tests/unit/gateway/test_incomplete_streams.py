"""Streams whose beginning or end has another form than that of most engines."""

import asyncio
import json
from typing import Any

import pytest

from tests.support.gateway_rig import gateway_rig, record
from tests.support.moving_streams import CHAT, COMPLETIONS, asked
from tests.support.raw_engine import STREAM, RawEngine
from tests.support.virtual_time import run_virtual

DONE = b"data: [DONE]\n\n"


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps({"id": "c", **fields}).encode() + b"\n\n"


def token(text: str, number: int, finish: str | None = None, **more: Any) -> bytes:
    choice = {"index": 0, "text": text, "token_ids": [number], "prompt_token_ids": [97]}
    return event(choices=[{**choice, "finish_reason": finish}], **more)


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize("hangs", [False, True])
def test_a_last_event_without_its_blank_line_ends_a_stream(end: bytes, *, hangs: bool) -> None:
    async def scenario() -> None:
        outputs = event(choices=[{"index": index, "text": "a", "finish_reason": "stop"} for index in range(2)])
        raw = STREAM + outputs + b"data: [DONE]" + end
        async with gateway_rig(0) as (rig, _), RawEngine(raw, hangs=hangs) as a, RawEngine(STREAM + DONE) as b:
            rig.model.backends.update([record("a", a.address), record("b", b.address)])
            began_s = asyncio.get_running_loop().time()
            got = await rig.stream(**asked(COMPLETIONS, n=2))
            assert (got.complete, len(got.chunks), b.requests) == (True, 1, 0)
            assert asyncio.get_running_loop().time() - began_s < 1
            assert rig.frontend._interval.sample(1, 1, queued=0, in_flight=0).completed == 1

    run_virtual(scenario())


USAGE = {"prompt_tokens": 3, "completion_tokens": 0, "total_tokens": 3}


@pytest.mark.parametrize("wanted", [True, False])
def test_an_answer_without_tokens_is_complete(*, wanted: bool) -> None:
    async def scenario() -> None:
        raw = STREAM + event(choices=[], usage=USAGE) + DONE
        async with gateway_rig(0) as (rig, _), RawEngine(raw) as engine:
            rig.model.backends.update([record("w", engine.address)])
            got = await rig.stream(**asked(COMPLETIONS, stream_options={"include_usage": wanted}))
            assert (got.status, got.complete, engine.requests) == (200, True, 1)
            assert got.chunks == [{"id": "c", "choices": [], "usage": USAGE}] * wanted
            sample = rig.frontend._interval.sample(1, 1, queued=0, in_flight=0)
            assert (sample.completed, sample.osl_tokens) == (1, 0)

    asyncio.run(scenario())


def test_a_role_and_nothing_more_is_an_answer() -> None:
    async def scenario() -> None:
        raw = STREAM + event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}]) + DONE
        async with gateway_rig(0) as (rig, _), RawEngine(raw) as engine:
            rig.model.backends.update([record("w", engine.address)])
            got = await rig.stream(CHAT, **asked(CHAT))
            assert (got.text, got.complete, engine.requests) == ("", True, 1)

    asyncio.run(scenario())


WITHOUT_OUTPUT = {
    "no choices": event(),
    "null": event(choices=None),
    "empty": event(choices=[]),
    "usage": event(choices=[], usage=USAGE),
    "no JSON": b"data: hello\n\n",
    "no object": b"data: 5\n\n",
}


@pytest.mark.parametrize("first", WITHOUT_OUTPUT.values(), ids=WITHOUT_OUTPUT)
def test_a_stream_that_ends_before_its_output_begins_anew_whatever_came_before(first: bytes) -> None:
    async def scenario() -> None:
        raw = STREAM + token("b", 2, "stop") + DONE
        async with gateway_rig(0) as (rig, _), RawEngine(STREAM + first) as a, RawEngine(raw) as b:
            rig.model.backends.update([record("a", a.address), record("b", b.address)])
            got = await rig.stream(**asked(COMPLETIONS, seed=1))
            assert (got.text, got.complete, len(got.chunks)) == ("b", True, 1)

    asyncio.run(scenario())


def test_chunks_without_output_keep_their_places_and_move_no_stream() -> None:
    async def scenario() -> None:
        others: list[dict[str, Any]] = [{"choices": []}, {"choices": None}, {"note": "x"}]
        first = token("a", 1) + b"".join(event(**one) for one in others) + token("b", 2)
        second = event(**others[2]) + token("c", 3, "stop") + DONE
        async with gateway_rig(0) as (rig, _), RawEngine(STREAM + first) as a, RawEngine(STREAM + second) as b:
            rig.model.backends.update([record("a", a.address), record("b", b.address)])
            got = await rig.stream(**asked(COMPLETIONS))
            assert (got.text, got.complete) == ("abc", True)
            plain = [one for one in got.chunks if not one.get("choices") and "usage" not in one]
            assert plain == [{"id": "c", **one} for one in [*others, others[2]]]

    asyncio.run(scenario())


def test_choices_without_an_index_continue_elsewhere() -> None:
    async def scenario() -> None:
        first, second = (one.replace(b'"index": 0, ', b"") for one in (token("a", 1), token("b", 2, "stop")))
        async with gateway_rig(0) as (rig, _), RawEngine(STREAM + first) as a, RawEngine(STREAM + second + DONE) as b:
            rig.model.backends.update([record("a", a.address), record("b", b.address)])
            got = await rig.stream(**asked(COMPLETIONS))
            assert (got.text, got.finish, got.complete) == ("ab", "stop", True)
            assert [list(one) for one in got.choices] == [["text", "finish_reason"]] * 2

    asyncio.run(scenario())


@pytest.mark.parametrize("wanted", [True, False])
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
@pytest.mark.parametrize("end", [DONE, b""])
def test_the_usage_in_the_last_chunk_of_a_continuation_counts_all_of_it(path: str, end: bytes, *, wanted: bool) -> None:
    async def scenario() -> None:
        role = {"index": 0, "delta": {"role": "assistant", "content": "a"}, "token_ids": [1]}
        begun = event(prompt_token_ids=[97], choices=[role]) if path == CHAT else token("a", 1)
        last = token("b", 2, "stop", usage={"prompt_tokens": 2, "completion_tokens": 1, "total_tokens": 3}) + end
        async with gateway_rig(0) as (rig, _), RawEngine(STREAM + begun) as a, RawEngine(STREAM + last) as b:
            rig.model.backends.update([record("a", a.address), record("b", b.address)])
            got = await rig.stream(path, **asked(path, stream_options={"include_usage": wanted}))
            assert (got.text, got.complete, len(got.chunks)) == ("ab", True, 2)
            counted = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
            assert got.usage == (counted if wanted else None)
            assert rig.frontend._interval.sample(1, 1, queued=0, in_flight=0).osl_tokens == 2

    asyncio.run(scenario())


def test_a_usage_in_the_last_chunk_is_not_sent_again_if_the_end_is_missing() -> None:
    async def scenario() -> None:
        raw = STREAM + token("a", 1, "stop", usage=USAGE)
        async with gateway_rig(0) as (rig, _), RawEngine(raw) as engine:
            rig.model.backends.update([record("w", engine.address)])
            got = await rig.stream(**asked(COMPLETIONS))
            assert (got.text, got.complete) == ("a", True)
            assert [one["usage"] for one in got.chunks] == [USAGE]

    asyncio.run(scenario())
