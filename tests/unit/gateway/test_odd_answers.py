"""Answers with success that are encoded, or are none: what the client gets, and what counts."""

import asyncio
import gzip

import msgspec
import pytest

from loadline.gateway.sse import DONE, write_event
from tests.support.gateway_rig import MODEL, GatewayRig, gateway_rig, record
from tests.support.moving_streams import COMPLETIONS, asked
from tests.support.raw_engine import RawEngine

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
