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
from loadline.gateway.traffic import ModelTraffic
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


@pytest.mark.parametrize(("took_s", "met"), [(0.28, 1), (0.3, 0)])
def test_a_whole_answer_has_the_time_of_one_output(took_s: float, met: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Answers(monkeypatch).whole(outputs=4, tokens=20, took_s=took_s).both_met == met  # 100 + 19 x 10 ms
