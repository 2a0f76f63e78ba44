"""Streams whose beginning or end has another form than that of most engines."""

import asyncio
import json
from typing import Any

import pytest

from tests.support.gateway_rig import gateway_rig, record
from tests.support.moving_streams import COMPLETIONS, asked
from tests.support.raw_engine import STREAM, RawEngine

DONE = b"data: [DONE]\n\n"


def event(**fields: Any) -> bytes:
    return b"data: " + json.dumps({"id": "c", **fields}).encode() + b"\n\n"


def token(text: str, number: int, finish: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "token_ids": [number], "prompt_token_ids": [97]}
    return event(choices=[{**choice, "finish_reason": finish}])


@pytest.mark.parametrize("end", [b"", b"\n", b"\r\n"])
@pytest.mark.parametrize("hangs", [False, True])
def test_a_last_event_without_its_blank_line_ends_a_stream(end: bytes, *, hangs: bool) -> None:
    async def scenario() -> None:
        outputs = event(choices=[{"index": index, "text": "a", "finish_reason": "stop"} for index in range(2)])
        raw = STREAM + outputs + b"data: [DONE]" + end
        async with gateway_rig(0) as (rig, _), RawEngine(raw, hangs=hangs) as a, RawEngine(STREAM + DONE) as b:
            rig.model.backends.update([record("a", a.address), record("b", b.address)])
            got = await rig.stream(**asked(COMPLETIONS, n=2))
            assert (got.complete, len(got.chunks), b.requests) == (True, 1, 0)
            assert rig.frontend._interval.sample(1, 1, queued=0, in_flight=0).completed == 1

    asyncio.run(scenario())
