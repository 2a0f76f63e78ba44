"""A stream that tests move between engines, and its worker's side of a move."""

import asyncio
from typing import Any

from loadline.client.handover.messages import ClaimRequest
from loadline.client.streams import StopStream, StreamProgress
from tests.support.fake_engine import Gate, greedy
from tests.support.gateway_rig import GatewayRig, Streamed
from tests.waiting import until

COMPLETIONS = "/v1/completions"
CHAT = "/v1/chat/completions"
TOKENS = 24
USAGE = {"prompt_tokens": 3, "completion_tokens": TOKENS, "total_tokens": 3 + TOKENS}


def asked(path: str, **more: Any) -> dict[str, Any]:
    prompt = {"messages": [{"role": "user", "content": "abc"}]} if path == CHAT else {"prompt": "abc"}
    return {**prompt, "max_tokens": TOKENS, "ignore_eos": True, "stream_options": {"include_usage": True}, **more}


def assert_unbroken(got: Streamed, path: str) -> None:
    """Check that a stream looks like one of a single engine."""
    assert got.text == greedy("abc", TOKENS, ignore_eos=True)[0]
    assert got.complete
    assert got.finish == "length"
    assert [one["finish_reason"] for one in got.choices[:-1]] == [None] * (len(got.choices) - 1)
    assert got.usage == USAGE
    for name in ("id", "created", "model", "object"):
        assert len({chunk[name] for chunk in got.chunks}) == 1, name
    assert {one["index"] for one in got.choices} == {0}
    if path == CHAT:
        assert ["role" in one["delta"] for one in got.choices] == [True] + [False] * (len(got.choices) - 1)
        assert not [one for one in got.choices if "text" in one]
    else:
        assert not [one for one in got.choices if "delta" in one]
    assert not [one for one in got.chunks if "prompt_token_ids" in one or "prompt_text" in one]
    assert not [one for one in got.choices if "token_ids" in one or "prompt_token_ids" in one]


async def at_gate(gate: Gate) -> None:
    await asyncio.wait_for(gate.reached.wait(), 10)


def only(rig: GatewayRig) -> tuple[str, int, StreamProgress]:
    """Return worker, incarnation and progress of the only stream, as its worker learns them."""
    [report] = [one for one in rig.model.moves.reports() if one.streams]
    [stream] = report.streams
    return report.worker, report.incarnation, stream


async def stop(rig: GatewayRig) -> tuple[str, StreamProgress]:
    """Stop the only stream, as its worker does; return the worker and the progress before."""
    worker, incarnation, stream = only(rig)
    message = StopStream(stream.request_id, worker, incarnation, stream.hop)

    def stopped() -> bool:
        return rig.model.moves.answer_stop(message).outcome == "stopped"

    await until(stopped, "it is stopped")
    assert stopped(), "a repeated command has the same answer"
    return worker, stream


def claim(rig: GatewayRig, stream: StreamProgress, worker: str) -> bool:
    return rig.model.moves.answer_claim(ClaimRequest(stream.request_id, worker, 1, stream.hop + 1)).granted
