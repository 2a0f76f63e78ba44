"""Latencies of answers with several outputs."""

from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from loadline.client.frontend import FrontendClient
from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.vocabulary.samples import TrafficSample
from loadline.gateway import traffic
from loadline.gateway.api_request import COMPLETIONS, read_request
from loadline.gateway.stream_reply import StreamReply
from loadline.gateway.traffic import Measured, ModelTraffic
from tests.support.gateway_rig import MODEL
from tests.support.memory import MemoryBus

_STEP_S = 0.02


class Answers:
    """Traffic of a model with objectives of 100 ms and 10 ms, at times that tests set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr(traffic, "time", SimpleNamespace(monotonic=lambda: self.now_s))
        self._frontend = FrontendClient(MODEL, "test", bus=MemoryBus())
        self._traffic = ModelTraffic(self._frontend, ObjectiveKnobs(ttft_ms=100, itl_ms=10))

    def stream(self, *lengths: int) -> TrafficSample:
        """Return the sample after a stream whose outputs have a token each 20 ms until their ends."""
        asked = read_request(COMPLETIONS, _json(model=MODEL, prompt="a", n=len(lengths), stream=True), [MODEL])
        measured = self._traffic.arrive(asked)
        reply = StreamReply(asked, measured)
        for step in range(max(lengths)):
            for index in (index for index, length in enumerate(lengths) if step < length):
                reply.accept(_json(choices=[{"index": index, "text": "x", "finish_reason": None}]))
            self.now_s += _STEP_S
        reply.accept(_json(choices=[], usage={"prompt_tokens": 1, "completion_tokens": sum(lengths)}))
        self._traffic.finish(measured)
        return self._frontend._interval.sample(1, 1, queued=0, in_flight=0)

    def chunks(self, *chunks: dict[str, Any], **more: Any) -> TrafficSample:
        """Return the sample after a stream with a chunk each 20 ms."""
        asked = read_request(COMPLETIONS, _json(model=MODEL, prompt="a", stream=True, **more), [MODEL])
        measured = self._traffic.arrive(asked)
        reply = StreamReply(asked, measured)
        for chunk in chunks:
            self.now_s += _STEP_S
            reply.accept(_json(**chunk))
        self._traffic.finish(measured)
        return self._frontend._interval.sample(1, 1, queued=0, in_flight=0)

    def whole(self, outputs: int, tokens: int, took_s: float) -> TrafficSample:
        """Return the sample after an answer that is not streamed."""
        measured = self._traffic.arrive(read_request(COMPLETIONS, _json(model=MODEL, prompt="a"), [MODEL]))
        self.now_s += took_s
        usage = {"prompt_tokens": 1, "completion_tokens": outputs * tokens}
        measured.read_answer({"choices": [{}] * outputs, "usage": usage})
        self._traffic.finish(measured)
        return self._frontend._interval.sample(1, 1, queued=0, in_flight=0)


def _json(**fields: Any) -> bytes:
    return msgspec.json.encode(fields)


@pytest.mark.parametrize("lengths", [(20,), (20, 20, 20, 20), (3, 40), (1, 1, 1, 2)])
def test_the_latency_of_several_outputs_is_that_of_each(
    lengths: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = Answers(monkeypatch).stream(*lengths)
    assert sample.itl_ms == pytest.approx(20)
    assert (sample.ttft_met, sample.itl_met) == (1, 0)
    assert sample.osl_tokens == sum(lengths)


def test_outputs_of_one_token_have_no_inter_token_latency(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Answers(monkeypatch).stream(1, 1, 1).itl_ms is None


@pytest.mark.parametrize("with_index", [True, False])
def test_outputs_that_share_chunks_are_counted_one_by_one(monkeypatch: pytest.MonkeyPatch, *, with_index: bool) -> None:
    choices = [{"text": "x", "finish_reason": None, **({"index": n} if with_index else {})} for n in range(4)]
    sample = Answers(monkeypatch).chunks(*[{"choices": choices}] * 20, n=4)
    assert sample.itl_ms == pytest.approx(20)
    assert sample.osl_tokens == 4 * 20


def test_the_usage_of_a_chunk_counts_its_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = [
        {
            "choices": [{"index": 0, "text": "x", "finish_reason": None}],
            "usage": {"prompt_tokens": 1, "completion_tokens": count},
        }
        for count in (1, 2, 3)
    ]
    assert Answers(monkeypatch).chunks(*chunks, seed=1).osl_tokens == 3


@pytest.mark.parametrize(("tokens", "met"), [(8, 0), (20, 1)])
def test_an_output_in_one_chunk_has_the_time_of_a_whole_answer(
    tokens: int, met: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = Answers(monkeypatch)
    beams = [{"index": n, "text": "x" * tokens, "finish_reason": "stop"} for n in range(4)]
    usage = {"prompt_tokens": 1, "completion_tokens": 4 * tokens}
    sample = answers.chunks(*[{"choices": []}] * 9, {"choices": beams, "usage": usage}, n=4)  # 200 ms
    assert (sample.ttft_ms, sample.itl_ms, sample.both_met) == (None, None, met)  # in 170 or 290 ms


def test_outputs_that_have_ended_hold_no_memory() -> None:
    measured = Measured(0.0, chars=1)
    reply = StreamReply(read_request(COMPLETIONS, _json(model=MODEL, prompt="a", n=1_000), [MODEL]), measured)
    for index in range(1_000):
        for finish in (None, "stop"):
            reply.accept(_json(choices=[{"index": index, "text": "x", "finish_reason": finish}]))
    assert (measured.last_s, measured.outputs, measured.osl_tokens) == ({}, 1_000, 2_000)


@pytest.mark.parametrize(("took_s", "met"), [(0.28, 1), (0.3, 0)])
def test_a_whole_answer_has_the_time_of_one_output(took_s: float, met: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Answers(monkeypatch).whole(outputs=4, tokens=20, took_s=took_s).both_met == met  # 100 + 19 x 10 ms
