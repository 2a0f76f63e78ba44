"""Handovers between two workers and a frontend: each way back, lost, late and doubled messages, deadlines."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from msgspec.structs import replace

from loadline.client.handover.effects import (
    AskRoom,
    CancelCopy,
    DiscardRequest,
    Effect,
    EndTransfer,
    ExpireRoom,
    PublishReports,
    ReleaseRoom,
    ReplyHandover,
    RunRequest,
    SendClaim,
    SendHandover,
    StartCopy,
    StopRequest,
    Transfer,
)
from loadline.client.handover.held_requests import HeldRequests
from loadline.client.handover.messages import (
    ClaimReply,
    ClaimRequest,
    HandedRequest,
    HandoverReply,
    HandoverRequest,
    RoomReply,
    RoomRequest,
)
from loadline.client.handover.migrator import FreeSlots, RequestMigrator
from loadline.client.handover.ownership import RequestOwner, RequestOwners
from loadline.client.handover.source import StoppedRequest
from loadline.core.migration.requests import MigratableRequest
from loadline.core.vocabulary.migrations import MigrationEndpoint
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.wire.messages import MigrateCommand, MigrationReport

COMMAND = MigrateCommand(
    "c", "m", 1, MigrationEndpoint("p", "a", 1), MigrationEndpoint("p", "b", 2),
    "decode_load", "NUM_REQ", "FCR", -1.0,
    requests_max=8, ttl_ms=1_000,
)  # fmt: skip
R = Transfer("c", "r")
YES, NO = RoomReply(granted=True), RoomReply(granted=False)
TAKEN, NOT_TAKEN = HandoverReply(accepted=True), HandoverReply(accepted=False)
STOPPED = StoppedRequest("f", b"state")


def worker(name: str, incarnation: int, **limits: Any) -> tuple[RequestMigrator, HeldRequests]:
    held = HeldRequests()
    return RequestMigrator(WorkerRecord("m", "p", name, "decode", incarnation), held, **limits), held


class Source:
    """Worker ``a`` with the request ``r``, and what its handovers come to."""

    def __init__(self, **limits: Any) -> None:
        self.migrator, self.held = worker("a", 1, **limits)
        self.held.assign("r", 0)
        self.source = self.migrator.source
        reply = self.migrator.answer(COMMAND, [MigratableRequest("r", 100, 5, hops=2, remaining_tokens=20)], 0)
        assert reply is not None
        assert reply.accepted
        (self.asked,) = self.source.begin("c")
        assert isinstance(self.asked, AskRoom)

    def to_copy(self, now_ms: int = 10) -> list[Effect]:
        return self.source.on_room_reply(R, YES, now_ms)

    def to_stop(self, now_ms: int = 20) -> list[Effect]:
        self.to_copy()
        return self.source.on_copied(R, now_ms)

    def to_handover(self) -> list[Effect]:
        self.to_stop()
        return self.source.on_stopped(R, STOPPED, 30)

    def to_claim(self, reply: HandoverReply | None = None) -> list[Effect]:
        self.to_handover()
        return self.source.on_handover_reply(R, reply, 40)

    def claim(self, reply: ClaimReply | None, now_ms: int = 50) -> list[Effect]:
        return self.migrator.on_claim_reply("r", 1, reply, now_ms)


def reports(effects: Iterable[Effect]) -> list[MigrationReport]:
    return [report for effect in effects if isinstance(effect, PublishReports) for report in effect.reports]


def phases(effects: Iterable[Effect]) -> list[str]:
    return [report.phase for report in reports(effects)]


def kinds(effects: Iterable[Effect]) -> list[type[Effect]]:
    return [type(effect) for effect in effects]


def assert_rolled_back(effects: list[Effect], reason: str, *first: type[Effect]) -> None:
    """The room is released, the failure reported, and the transfer over."""
    assert kinds(effects) == [*first, ReleaseRoom, PublishReports, EndTransfer]
    release = effects[len(first)]
    assert isinstance(release, ReleaseRoom)
    assert release.worker == "b"
    assert (release.message.request_id, release.message.incarnation, release.message.ttl_ms) == ("r", 2, 0)
    (report,) = reports(effects)
    assert (report.phase, report.reason, report.moved, report.failed) == ("aborted", reason, 0, 1)


# -- the source --------------------------------------------------------------------------------------------------------


def test_a_handover_from_command_to_end() -> None:
    made = Source()
    assert made.asked == AskRoom(R, "b", RoomRequest("r", 2, 105, 1_000, 125))
    effects = made.to_copy()
    assert phases(effects) == ["admitted", "copying"]
    assert effects[-1] == StartCopy(R, COMMAND)
    assert made.source.on_copied(R, 20) == [StopRequest(R, COMMAND)]
    assert made.held.hop("r") == 0, "it may run until it is stopped"
    (sent,) = made.source.on_stopped(R, STOPPED, 30)
    assert sent == SendHandover(R, "b", HandoverRequest(HandedRequest("r", "f", 1, 3, b"state"), 2))
    assert made.held.hop("r") is None, "nobody runs it now"
    assert made.held.unresolved() == [("r", 1)]
    effects = made.source.on_handover_reply(R, TAKEN, 40)
    assert kinds(effects) == [DiscardRequest, PublishReports, EndTransfer]
    assert phases(effects) == ["switched", "done"]
    assert made.held.unresolved() == []
    assert made.migrator.free_slots(10) == FreeSlots(4, 4)


def test_a_request_that_waits_has_no_cache_to_copy() -> None:
    migrator, held = worker("a", 1)
    held.assign("r", 0)
    migrator.answer(replace(COMMAND, order="FCW"), [MigratableRequest("r", 100, 0, waiting=True)], 0)
    (asked,) = migrator.source.begin("c")
    assert isinstance(asked, AskRoom)
    assert (asked.message.kv_tokens, asked.message.kv_tokens_max) == (0, None)


@pytest.mark.parametrize(("reply", "reason"), [(NO, "destination_refused"), (None, "destination_lost")])
def test_without_room_it_runs_on(reply: RoomReply | None, reason: str) -> None:
    made = Source()
    assert_rolled_back(made.source.on_room_reply(R, reply, 10), reason)
    assert made.held.hop("r") == 0


@pytest.mark.parametrize("step", [Source.to_copy, Source.to_stop])
def test_an_engine_that_cannot_copy_or_stop_it_runs_it_on(step: Callable[[Source], list[Effect]]) -> None:
    made = Source()
    step(made)
    effects = made.source.on_failure(R, "finished", 30, "it ended")
    assert_rolled_back(effects, "finished")
    assert reports(effects)[0].detail == "it ended"
    assert made.held.hop("r") == 0


def test_a_request_that_was_given_to_another_worker_meanwhile_is_not_handed_over() -> None:
    made = Source()
    made.to_stop()
    made.held.end("r")
    assert_rolled_back(made.source.on_stopped(R, STOPPED, 30), "withdrawn")


@pytest.mark.parametrize(("reply", "reason"), [(NOT_TAKEN, "destination_refused"), (None, "destination_lost")])
def test_a_source_whose_claim_is_granted_resumes(reply: HandoverReply | None, reason: str) -> None:
    made = Source()
    assert made.to_claim(reply) == [SendClaim("f", ClaimRequest("r", "a", 1, 1))]
    assert made.held.hop("r") is None, "not before the frontend says so"
    effects = made.claim(ClaimReply(granted=True, worker="a", incarnation=1))
    assert_rolled_back(effects, reason, RunRequest)
    assert effects[0] == RunRequest(HandedRequest("r", "f", 1, 2, b"state")), "it was not migrated"
    assert made.held.hop("r") == 1


def test_a_source_whose_claim_is_refused_for_the_destination_has_handed_it_over() -> None:
    made = Source()
    made.to_claim()
    effects = made.claim(ClaimReply(granted=False, worker="b", incarnation=2))
    assert kinds(effects) == [DiscardRequest, PublishReports, EndTransfer]
    assert phases(effects) == ["switched", "done"]
    assert made.held.unresolved() == []


@pytest.mark.parametrize(
    "owner",
    [ClaimReply(granted=False, worker="c", incarnation=7), ClaimReply(granted=False, worker="b", incarnation=3)],
)
def test_a_request_that_the_frontend_gave_to_a_third_is_withdrawn(owner: ClaimReply) -> None:
    made = Source()
    made.to_claim()
    assert_rolled_back(made.claim(owner), "withdrawn", DiscardRequest)
    assert made.held.unresolved() == []


def test_a_claim_is_repeated_until_the_frontend_answers() -> None:
    made = Source(claim_retry_ms=70, claim_timeout_ms=None)
    (first,) = made.to_claim()
    assert isinstance(first, SendClaim)
    for now_ms in (50, 10_000, 10_000_000):
        assert made.claim(None, now_ms) == [replace(first, delay_ms=70)]
    assert made.held.hop("r") is None
    assert made.claim(ClaimReply(granted=True, worker="a", incarnation=1))[:1] == [
        RunRequest(HandedRequest("r", "f", 1, 2, b"state"))
    ]


def test_a_request_whose_frontend_is_gone_is_nobodys() -> None:
    made = Source(claim_timeout_ms=1_000)
    made.to_claim()
    assert kinds(made.claim(None, 1_040)) == [SendClaim]
    assert_rolled_back(made.claim(None, 1_041), "withdrawn", DiscardRequest)
    assert (made.held.hop("r"), made.held.unresolved()) == (None, [])


def test_a_request_that_has_come_back_meanwhile_is_kept() -> None:
    made = Source()
    made.to_claim()
    request = HandedRequest("r", "f", 2, 4, b"later")
    assert kinds(made.migrator.destination.on_handover_request(HandoverRequest(request, 1), 45)[1]) == [
        DiscardRequest,
        SendClaim,
    ]
    assert made.migrator.on_claim_reply("r", 2, ClaimReply(granted=True, worker="a", incarnation=1), 46)[0] == (
        RunRequest(request)
    )
    effects = made.claim(ClaimReply(granted=False, worker="a", incarnation=1))
    assert_rolled_back(effects, "withdrawn")
    assert made.held.hop("r") == 2


# -- inputs that come twice, late or out of turn -----------------------------------------------------------------------


STEPS: dict[str, Callable[[Source], Any]] = {
    "room": lambda made: made.asked,
    "copy": Source.to_copy,
    "stop": Source.to_stop,
    "handover": Source.to_handover,
    "claim": Source.to_claim,
    "over": lambda made: (made.to_claim(), made.claim(ClaimReply(granted=True, worker="a", incarnation=1))),
}
INPUTS: dict[str, Callable[[Source], list[Effect]]] = {
    "room": lambda made: made.source.on_room_reply(R, YES, 60),
    "copy": lambda made: made.source.on_copied(R, 60),
    "stop": lambda made: made.source.on_stopped(R, STOPPED, 60),
    "handover": lambda made: made.source.on_handover_reply(R, TAKEN, 60),
    "claim": lambda made: made.claim(ClaimReply(granted=True, worker="a", incarnation=1), 60),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("come", INPUTS)
def test_an_input_counts_in_its_own_step_alone(step: str, come: str) -> None:
    made = Source()
    STEPS[step](made)
    assert bool(INPUTS[come](made)) == (come == step)
    assert INPUTS[come](made) == [], "and once"


@pytest.mark.parametrize("step", ["room", "handover", "claim", "over"])
def test_an_engine_that_fails_out_of_turn_ends_nothing(step: str) -> None:
    made = Source()
    STEPS[step](made)
    assert made.source.on_failure(R, "failed", 60) == []


def test_a_repeated_command_begins_nothing() -> None:
    made = Source()
    assert made.migrator.answer(COMMAND, [], 1) == made.migrator.answer(COMMAND, [], 2)
    assert made.source.begin("c") == []


# -- deadlines ---------------------------------------------------------------------------------------------------------


def test_a_copy_that_is_late_is_cancelled_and_its_request_runs_on() -> None:
    made = Source()
    made.to_copy()
    assert made.migrator.next_wake_ms() == 1_000
    assert made.migrator.tick(999) == []
    assert made.migrator.tick(1_000) == [CancelCopy(R)]
    assert made.migrator.tick(1_001) == [], "once"
    effects = made.source.on_failure(R, "failed", 1_002, "its copy was cancelled")
    assert_rolled_back(effects, "deadline")
    assert reports(effects)[0].detail == "its copy was not over after 1000 ms"
    assert made.held.hop("r") == 0


def test_a_copy_that_ends_although_it_was_cancelled_is_late_all_the_same() -> None:
    made = Source()
    made.to_copy()
    made.migrator.tick(1_000)
    assert_rolled_back(made.source.on_copied(R, 1_001), "deadline")


def test_a_copy_that_ends_with_the_deadline_is_late() -> None:
    made = Source()
    made.to_copy()
    assert_rolled_back(made.source.on_copied(R, 1_000), "deadline")


def test_a_destination_that_answers_after_the_deadline_gets_its_room_back() -> None:
    made = Source()
    assert phases(made.migrator.tick(1_000)) == ["aborted"]
    assert kinds(made.source.on_room_reply(R, YES, 1_500)) == [ReleaseRoom, EndTransfer]


@pytest.mark.parametrize("step", ["stop", "handover", "claim"])
def test_no_deadline_ends_a_switch(step: str) -> None:
    made = Source()
    STEPS[step](made)
    assert made.migrator.tick(99_999) == []
    assert made.migrator.next_wake_ms() is None
    assert INPUTS[step](made) != []


def test_the_last_report_is_published_three_times() -> None:
    made = Source()
    made.source.on_room_reply(R, NO, 10)
    assert [phases(made.migrator.tick(now_ms)) for now_ms in (1_009, 1_010, 2_010, 3_010)] == [
        [], ["aborted"], ["aborted"], [],
    ]  # fmt: skip


# -- the destination ---------------------------------------------------------------------------------------------------


def room(name: str, kv_tokens: int = 10, ttl_ms: int = 1_000) -> RoomRequest:
    return RoomRequest(name, 2, kv_tokens, ttl_ms)


def handed(name: str, hop: int = 1) -> HandoverRequest:
    return HandoverRequest(HandedRequest(name, "f", hop, 1, b"state"), 2)


def test_room_takes_a_slot_and_cache_until_it_is_released_or_expires() -> None:
    migrator, _ = worker("b", 2, slots_in=2)
    destination = migrator.destination
    assert destination.on_room_request(room("x", 30), fits=True) == (YES, [ExpireRoom("x", 3_000)])
    assert destination.on_room_request(room("y"), fits=True)[0] == YES
    assert destination.on_room_request(room("z"), fits=True) == (NO, [])
    assert destination.on_room_request(room("x", 30), fits=True)[0] == YES, "asked again"
    assert (destination.expected, destination.free_slots) == (["x", "y"], 0)
    assert (destination.reserved_kv_tokens("y"), destination.reserved_kv_tokens("")) == (30, 40)
    assert destination.on_room_request(room("x", 0, ttl_ms=0), fits=True) == (NO, [])
    assert destination.free_slots == 1
    destination.on_room_expired("y")
    destination.on_room_expired("y")
    assert (destination.free_slots, destination.reserved_kv_tokens("")) == (2, 0)


def test_a_worker_that_is_full_drains_or_cannot_gives_no_room() -> None:
    migrator, _ = worker("b", 2)
    assert migrator.destination.on_room_request(room("x"), fits=False) == (NO, [])
    migrator.drain()
    assert migrator.destination.on_room_request(room("x"), fits=True) == (NO, [])
    assert migrator.free_slots(9) == FreeSlots(0, 9)
    unable, _ = worker("b", 2, supported=False)
    assert unable.destination.on_room_request(room("x"), fits=True) == (NO, [])


def test_messages_are_for_one_incarnation() -> None:
    destination = worker("b", 2)[0].destination
    assert [destination.is_addressed(incarnation) for incarnation in (1, 2, 3)] == [False, True, False]


def test_a_request_runs_once_its_claim_is_granted_and_not_before() -> None:
    migrator, held = worker("b", 2)
    destination = migrator.destination
    destination.on_room_request(room("r"), fits=True)
    reply, effects = destination.on_handover_request(handed("r"), 10)
    assert reply is None
    assert effects == [DiscardRequest("r"), SendClaim("f", ClaimRequest("r", "b", 2, 1))]
    assert held.hop("r") is None
    assert migrator.on_claim_reply("r", 1, ClaimReply(granted=True, worker="b", incarnation=2), 20) == [
        RunRequest(handed("r").request),
        ReplyHandover("r", 1, TAKEN),
    ]
    assert held.hop("r") == 1
    assert destination.free_slots == 4


def test_a_request_whose_claim_is_refused_is_dropped() -> None:
    migrator, held = worker("b", 2)
    migrator.destination.on_handover_request(handed("r"), 10)
    assert migrator.on_claim_reply("r", 1, ClaimReply(granted=False, worker="a", incarnation=1), 20) == [
        DiscardRequest("r"),
        ReplyHandover("r", 1, NOT_TAKEN),
    ]
    assert (held.hop("r"), held.unresolved()) == (None, [])
    assert migrator.destination.on_handover_request(handed("r"), 30) == (NOT_TAKEN, []), "an old message"


def test_a_destination_whose_frontend_is_gone_gives_up() -> None:
    migrator, held = worker("b", 2, claim_timeout_ms=1_000)
    migrator.destination.on_handover_request(handed("r"), 0)
    assert kinds(migrator.on_claim_reply("r", 1, None, 1_000)) == [SendClaim]
    assert kinds(migrator.on_claim_reply("r", 1, None, 1_001)) == [DiscardRequest, ReplyHandover]
    assert held.unresolved() == []


def test_a_handover_that_comes_twice_is_claimed_once_and_answered_alike() -> None:
    migrator, _ = worker("b", 2)
    assert migrator.destination.on_handover_request(handed("r"), 10)[0] is None
    assert migrator.destination.on_handover_request(handed("r"), 11) == (None, []), "it waits with the first"
    granted = ClaimReply(granted=True, worker="b", incarnation=2)
    assert migrator.on_claim_reply("r", 1, granted, 20) != []
    assert migrator.on_claim_reply("r", 1, granted, 21) == [], "an answer that comes twice"
    assert migrator.destination.on_handover_request(handed("r"), 30) == (TAKEN, [])


def test_a_request_needs_a_slot_also_where_its_room_has_expired() -> None:
    migrator, held = worker("b", 2, slots_in=1)
    destination = migrator.destination
    destination.on_room_request(room("x"), fits=True)
    assert destination.on_handover_request(handed("r"), 10) == (NOT_TAKEN, [])
    assert held.unresolved() == []
    destination.on_room_expired("x")
    assert destination.on_handover_request(handed("r"), 20)[0] is None
    destination.on_room_expired("r")
    assert destination.expected == ["r"], "its owner is being asked for"


def test_a_request_that_runs_here_under_an_earlier_hop_is_stopped_before_it_is_claimed() -> None:
    migrator, held = worker("b", 2)
    held.assign("r", 3)
    assert migrator.destination.on_handover_request(handed("r", 3), 10) == (TAKEN, []), "it is that one"
    _, effects = migrator.destination.on_handover_request(handed("r", 5), 10)
    assert effects[0] == DiscardRequest("r")
    assert held.hop("r") is None
    assert migrator.destination.on_handover_request(handed("r", 4), 11) == (NOT_TAKEN, []), "an older one"


# -- the frontend ------------------------------------------------------------------------------------------------------


def test_the_frontend_answers_a_claim_with_the_owner() -> None:
    owners = RequestOwners()
    owners.assign("r", "a", 1)
    assert owners.answer(ClaimRequest("r", "b", 2, 1)) == ClaimReply(granted=True, worker="b", incarnation=2)
    assert owners.answer(ClaimRequest("r", "a", 1, 1)) == ClaimReply(granted=False, worker="b", incarnation=2)
    assert owners.answer(ClaimRequest("r", "b", 2, 1)).granted, "repeated"
    assert owners.owner("r") == RequestOwner("b", 2, 1)
    owners.end("r")
    assert owners.answer(ClaimRequest("r", "b", 2, 1)) == ClaimReply(granted=False)
