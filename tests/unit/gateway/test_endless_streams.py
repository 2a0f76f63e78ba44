"""Streams without end hold little memory at the gateway."""

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


def test_a_stream_begins_when_many_chunks_came_without_output() -> None:
    reply = reply_to(Measured(0.0, chars=1))
    empty = chunk("", token_ids=[1], prompt_token_ids=[97])
    held, sent = next((place, sent) for place in range(10_000) if (sent := reply.accept(empty)))
    assert 65_536 < sum(map(len, sent)) < 66_000
    assert len(sent) == held + 1
    assert len(reply.accept(empty)) == 1
    assert reply.can_continue


def test_the_times_of_any_number_of_outputs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "_TIMED_OUTPUTS_MAX", 10)
    measured = Measured(0.0, chars=1)
    reply = reply_to(measured, n=1_000)
    for index in range(1_000):
        reply.accept(chunk("x", index=index))
    assert (len(measured.last_s), measured.osl_tokens) == (11, 1_000)
