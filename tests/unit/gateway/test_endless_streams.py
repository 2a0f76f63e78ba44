"""Streams without end hold little memory at the gateway."""

from sys import getsizeof
from typing import Any

import msgspec
import pytest

from loadline.gateway import stream_reply, traffic
from loadline.gateway.api_request import COMPLETIONS, read_request
from loadline.gateway.stream_reply import StreamReply
from loadline.gateway.traffic import Measured
from tests.support.gateway_rig import MODEL


def reply_to(measured: Measured, **more: Any) -> StreamReply:
    body = msgspec.json.encode({"model": MODEL, "prompt": "a", "stream": True, **more})
    return StreamReply(read_request(COMPLETIONS, body, [MODEL]), measured)


def chunk(text: str, **more: Any) -> bytes:
    return msgspec.json.encode({"id": "c", "choices": [{"text": text, "finish_reason": None, **more}]})


def test_an_output_beyond_all_contexts_keeps_its_stream_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_reply, "_KEPT_TOKENS_MAX", 100)
    measured = Measured(0.0, chars=1)
    reply = reply_to(measured)
    tokens = chunk("x", token_ids=[1], prompt_token_ids=[97])
    for _ in range(100):
        [_] = reply.accept(tokens)
    assert reply.can_continue
    for _ in range(1_000):
        [sent] = reply.accept(tokens)
        assert b"token_ids" not in sent
    assert (reply.can_continue, reply.tokens, measured.osl_tokens) == (False, (1, 101), 1_100)


@pytest.mark.parametrize("empty", [chunk("", token_ids=[1], prompt_token_ids=[97]), b"5"])
def test_a_stream_begins_when_many_events_came_without_output(empty: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_reply, "_HEAD_BYTES_MAX", 65_536)
    reply = reply_to(Measured(0.0, chars=1))
    held, sent = next((place, sent) for place in range(10_000) if (sent := reply.accept(empty)))
    assert 65_536 < sum(map(getsizeof, sent)) < 66_000
    assert len(sent) == held + 1
    assert len(reply.accept(empty)) == 1


def test_the_ids_of_a_prompt_of_a_million_tokens_do_not_begin_a_stream() -> None:
    """It can begin anew elsewhere until it has output, even if nobody could continue it."""
    reply = reply_to(Measured(0.0, chars=1), seed=1, return_token_ids=True)
    assert reply.accept(chunk("", prompt_token_ids=[123_456] * 1_000_000)) == []
    [head, _] = reply.accept(chunk("x"))
    assert len(head) > 7_000_000


def test_the_times_of_any_number_of_outputs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "_TIMED_OUTPUTS_MAX", 10)
    measured = Measured(0.0, chars=1)
    reply = reply_to(measured, n=1_000)
    for index in range(1_000):
        reply.accept(chunk("x", index=index))
    assert (len(measured.last_s), measured.osl_tokens) == (11, 1_000)
