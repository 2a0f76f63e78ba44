"""Worker's side of streams that gateways relay."""

import asyncio
from typing import Any, cast

import pytest

from loadline.client.handover import HandedRequest, StoppedRequest
from loadline.client.migratable_engine import MigrationRefused
from loadline.client.streams import StopReply, StreamEngine, StreamProgress, StreamReport
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.errors import BusUnavailable
from loadline.ports import Bus
from loadline.wire.codec import encode
from loadline.wire.messages import MigrateCommand

COMMAND = cast("MigrateCommand", None)


class GatewayBus:
    """Bus whose only peer is a gateway with the given answers."""

    def __init__(self) -> None:
        self.answers: list[bytes | None] = []
        self.subjects: list[str] = []

    async def request(self, subject: str, _payload: bytes, _timeout_s: float) -> bytes:
        self.subjects.append(subject)
        answer = self.answers.pop(0)
        if answer is None:
            raise BusUnavailable(subject)
        return answer


class Rig:
    def __init__(self) -> None:
        self.bus = GatewayBus()
        self.now_s = 1_000.0
        record = WorkerRecord("llama", "all", "w", "aggregated", incarnation=5)
        bus = cast("Bus", self.bus)
        self.engine = StreamEngine(record, bus, "loadline", lambda tokens: tokens < 100, lambda: self.now_s)

    def report(self, *streams: StreamProgress, gateway: str = "g", incarnation: int = 5) -> None:
        self.engine.receive("s", encode(StreamReport(gateway, "w", incarnation, list(streams))))

    @property
    def names(self) -> list[str]:
        return [one.request_id for one in self.engine.migratable_requests()]

    def stop(self, *answers: StopReply | None) -> StoppedRequest | None:
        self.bus.answers = [None if one is None else encode(one) for one in answers]
        return asyncio.run(self.engine.stop("a", COMMAND))


def stream(name: str, output: int = 1, hop: int = 0, **more: Any) -> StreamProgress:
    return StreamProgress(name, hop, 10, output, **more)


def test_streams_of_all_gateways_are_candidates_running_ones_first() -> None:
    rig = Rig()
    rig.report(stream("a", 0), stream("b", 7, hops=2, remaining_tokens=3, movable=False))
    rig.report(stream("c"), gateway="h")
    assert rig.names == ["b", "c", "a"]
    [first, _, last] = rig.engine.migratable_requests()
    assert (first.tokens, first.hops, first.remaining_tokens, first.movable, first.waiting) == (17, 2, 3, False, False)
    assert last.waiting
    assert rig.engine.unmovable == 1


def test_a_report_for_another_incarnation_or_an_invalid_one_changes_nothing() -> None:
    rig = Rig()
    rig.report(stream("a"), incarnation=4)
    rig.engine.receive("s", b"{}")
    rig.engine.receive("s", b"\xff")
    assert rig.names == []


def test_a_stream_has_ended_once_two_reports_do_not_list_it() -> None:
    rig = Rig()
    rig.report(stream("a"), stream("b"))
    rig.report(stream("b"))
    assert rig.engine.held_requests.hop("a") == 0
    assert rig.names == ["b"], "an ended stream is no candidate"
    rig.report(stream("b"))
    assert rig.engine.held_requests.hop("a") is None
    rig.report(stream("a"))
    assert rig.names == [], "a late report does not bring it back"


def test_a_stream_whose_claim_is_pending_stays_held() -> None:
    rig = Rig()
    rig.report(stream("a"))
    assert rig.engine.held_requests.hand_over("a") == 1
    rig.report(stream("a"))
    assert rig.names == [], "it is not run here"
    for _ in range(3):
        rig.report()
    assert rig.engine.held_requests.unresolved() == [("a", 1)]


def test_a_stream_that_was_handed_over_here_is_listed_by_the_next_report() -> None:
    rig = Rig()
    held = rig.engine.held_requests
    assert held.expect("a", 1)
    rig.report()
    held.resolve_claim("a", 1, granted=True)
    rig.engine.run(HandedRequest("a", "g", 1, 1, b""))
    rig.report()
    rig.report(stream("a", hop=1))
    assert rig.names == ["a"]


def test_streams_of_a_silent_gateway_are_no_candidates_and_forgotten_after_a_minute() -> None:
    rig = Rig()
    rig.report(stream("a"))
    rig.now_s += 3
    assert rig.names == []
    rig.report(stream("a"))
    assert rig.names == ["a"]
    rig.now_s += 61
    rig.report(gateway="h")
    assert rig.engine.held_requests.hop("a") is None


def test_no_more_than_64_gateways_are_heard() -> None:
    rig = Rig()
    for number in range(70):
        rig.report(stream(f"r{number}"), gateway=f"g{number}")
    assert len(rig.names) == 64


def test_a_stop_goes_to_the_gateway_of_the_stream_and_is_repeated() -> None:
    rig = Rig()
    rig.report(stream("a"))
    stopped = rig.stop(None, StopReply("later"), StopReply("stopped"))
    assert stopped == StoppedRequest("g", b"")
    assert rig.bus.subjects == ["loadline.v1.streams.llama.stop.g"] * 3


def test_a_stream_that_ended_is_not_stopped() -> None:
    rig = Rig()
    assert rig.stop() is None
    rig.report(stream("a"))
    assert rig.stop(StopReply("ended")) is None


@pytest.mark.parametrize(
    ("answers", "detail"),
    [((StopReply("unmovable", "`seed`"),), "`seed`"), ((None, None, None), "does not answer")],
)
def test_a_stream_that_cannot_be_stopped_stays(answers: tuple[StopReply | None, ...], detail: str) -> None:
    rig = Rig()
    rig.report(stream("a"))
    with pytest.raises(MigrationRefused, match=detail):
        rig.stop(*answers)


def test_room_is_the_engines() -> None:
    engine = Rig().engine
    assert engine.has_room(99)
    assert not engine.has_room(100)
