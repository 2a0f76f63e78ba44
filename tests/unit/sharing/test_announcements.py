"""Requests for current decisions to agents that share the models, through takeovers."""

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from loadline.client.scaler import ScalerClient
from loadline.core.vocabulary.events import AnnouncementRequested, AnyEvent
from loadline.errors import BusUnavailable
from loadline.runtime import announcements
from loadline.runtime.announcements import AnnounceRequests
from loadline.wire.codec import decode_as, encode
from loadline.wire.messages import AnnounceReply, AnnounceRequest
from tests.support.memory import MemoryBus
from tests.waiting import until


class Shard:
    """A shard with one model; it records what it is to announce."""

    def __init__(self, model: str, *, decisions_read: bool) -> None:
        self.state = SimpleNamespace(fleet=SimpleNamespace(models={model: None}), decisions_read=decisions_read)
        self.controller = SimpleNamespace(state=self.state)
        self.announced: list[AnyEvent] = []
        self.inbox = SimpleNamespace(put=self.announced.append)


class SharingAgents(MemoryBus):
    """Bus with two agents, each of which answers for the shards that it leads; the first answer counts."""

    def __init__(self, *leading: list[Any]) -> None:
        super().__init__()
        call_later = asyncio.get_running_loop().call_later
        self.agents = [
            AnnounceRequests(partial(list[Any], shards), shared=True, call_later=call_later) for shards in leading
        ]
        self.requests = 0

    async def request(self, subject: str, payload: bytes, timeout_s: float) -> bytes:
        del subject, timeout_s
        self.requests += 1
        answers = [answer for agent in self.agents if (answer := agent.answer(payload)) is not None]
        if not answers:
            raise BusUnavailable("nobody answers")
        return answers[0]


def test_the_decisions_of_a_shard_without_a_leader_are_requested_until_one_leads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("loadline.client.scaler._REQUEST_INTERVAL_S", 0.01)
    monkeypatch.setattr(announcements, "ANNOUNCE_DELAY_S", 0.0)

    async def scenario() -> None:
        first, second = Shard("a", decisions_read=True), Shard("b", decisions_read=False)
        led: list[Any] = []
        bus = SharingAgents([first], led)
        async with ScalerClient("s", ("a", "b"), bus=bus):
            await until(lambda: first.announced == [AnnouncementRequested("a", "s")])
            led.append(second)
            seen = bus.requests
            await until(lambda: bus.requests > seen + 1)
            assert not second.announced, "its decisions have not been read yet"
            second.state.decisions_read = True
            await until(lambda: second.announced == [AnnouncementRequested("b", "s")])
            assert first.announced == [AnnouncementRequested("a", "s")], "it is not requested again"

    asyncio.run(scenario())


def test_a_scaler_of_a_misspelt_model_is_told_and_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that shares no models answered for all, so the scaler took the model for one without a decision."""
    monkeypatch.setattr("loadline.client.scaler._REQUEST_INTERVAL_S", 0.01)

    async def scenario() -> None:
        call_later = asyncio.get_running_loop().call_later
        one: Any = Shard("llama", decisions_read=True)
        agent = AnnounceRequests(lambda: [one], shared=False, call_later=call_later)
        refused = decode_as(AnnounceReply, agent.answer(encode(AnnounceRequest(("lama",)))) or b"")
        assert refused == AnnounceReply(accepted=False, detail="there is no model 'lama'; there are: llama")
        both = decode_as(AnnounceReply, agent.answer(encode(AnnounceRequest(("lama", "llama")))) or b"")
        assert both == AnnounceReply(accepted=True, models=("llama",))
        assert agent.answer(encode(AnnounceRequest(("llama",)))) == encode(AnnounceReply(accepted=True))

        bus = SharingAgents()
        bus.agents = [agent]
        async with ScalerClient("s", ("lama", "llama"), bus=bus):
            await until(lambda: any(line["event"] == "models_without_leader" for line in lines))

    with capture_logs() as lines:
        asyncio.run(scenario())
    [logged] = [line for line in lines if line["event"] == "models_without_leader"]
    assert logged["models"] == ["lama"]
    assert "correct the names" in logged["remedy"]
