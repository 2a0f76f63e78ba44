"""Sources of handovers: each rollback, lost, late and repeated messages, deadlines."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from loadline.client.handover.effects import (
    AskRoom,
    CancelCopy,
    DiscardRequest,
    Effect,
    EndTransfer,
    PublishReports,
    ReleaseRoom,
    RunRequest,
    SendClaim,
    SendHandover,
    StartCopy,
    StopRequest,
)
from loadline.client.handover.messages import (
    ClaimReply,
    ClaimRequest,
    HandedRequest,
    HandoverReply,
    HandoverRequest,
    RoomReply,
    RoomRequest,
)
from loadline.client.handover.migrator import FreeSlots
from loadline.core.migration.requests import MigratableRequest
from tests.support.handovers import (
    COMMAND,
    NO,
    NOT_TAKEN,
    STOPPED,
    TAKEN,
    YES,
    R,
    Source,
    assert_rolled_back,
    kinds,
    phases,
    reports,
    worker,
)

# -- the source --------------------------------------------------------------------------------------------------------


def test_a_handover_ends_with_the_request_at_the_destination() -> None:
    worker_a = Source()
    assert worker_a.asked == AskRoom(R, "b", RoomRequest("r", 2, 105, 1_000, 125))
    effects = worker_a.to_copy()
    assert phases(effects) == ["admitted", "copying"]
    assert effects[-1] == StartCopy(R, COMMAND)
    assert worker_a.source.on_copied(R, 20) == [StopRequest(R, COMMAND)]
    assert worker_a.held.hop("r") == 0, "the request runs until it is stopped"
    (sent,) = worker_a.source.on_stopped(R, STOPPED, 30)
    assert sent == SendHandover(R, "b", HandoverRequest(HandedRequest("r", "f", 1, 3, b"state"), 2))
    assert worker_a.held.hop("r") is None, "neither worker runs the request now"
    assert worker_a.held.unresolved() == [("r", 1)]
    effects = worker_a.source.on_handover_reply(R, TAKEN, 40)
    assert kinds(effects) == [DiscardRequest, PublishReports, EndTransfer]
    assert phases(effects) == ["switched", "done"]
    assert worker_a.held.unresolved() == []
    assert worker_a.migrator.free_slots(10) == FreeSlots(4, 4)


def test_a_waiting_request_is_handed_over_without_a_copy() -> None:
    migrator, held = worker("a", 1)
    held.assign("r", 0)
    migrator.answer(replace(COMMAND, order="FCW"), [MigratableRequest("r", 100, 0, waiting=True)], 0)
    (asked,) = migrator.source.begin("c")
    assert isinstance(asked, AskRoom)
    assert (asked.message.kv_tokens, asked.message.kv_tokens_max) == (0, None)


@pytest.mark.parametrize(("reply", "reason"), [(NO, "destination_refused"), (None, "destination_lost")])
def test_a_request_without_room_at_the_destination_continues(reply: RoomReply | None, reason: str) -> None:
    worker_a = Source()
    assert_rolled_back(worker_a.source.on_room_reply(R, reply, 10), reason)
    assert worker_a.held.hop("r") == 0


@pytest.mark.parametrize("step", [Source.to_copy, Source.to_stop])
def test_a_request_that_cannot_be_copied_or_stopped_continues(step: Callable[[Source], list[Effect]]) -> None:
    worker_a = Source()
    step(worker_a)
    effects = worker_a.source.on_failure(R, "finished", 30, "it ended")
    assert_rolled_back(effects, "finished")
    assert reports(effects)[0].detail == "it ended"
    assert worker_a.held.hop("r") == 0


def test_a_request_that_another_worker_owns_meanwhile_is_not_handed_over() -> None:
    worker_a = Source()
    worker_a.to_stop()
    worker_a.held.end("r")
    assert_rolled_back(worker_a.source.on_stopped(R, STOPPED, 30), "withdrawn")


@pytest.mark.parametrize(("reply", "reason"), [(NOT_TAKEN, "destination_refused"), (None, "destination_lost")])
def test_a_source_whose_claim_is_granted_resumes(reply: HandoverReply | None, reason: str) -> None:
    worker_a = Source()
    assert worker_a.to_claim(reply) == [SendClaim("f", ClaimRequest("r", "a", 1, 1))]
    assert worker_a.held.hop("r") is None, "not before the frontend grants the claim"
    effects = worker_a.claim(ClaimReply(granted=True, worker="a", incarnation=1))
    assert_rolled_back(effects, reason, RunRequest)
    assert effects[0] == RunRequest(HandedRequest("r", "f", 1, 2, b"state")), "the request is reported as not migrated"
    assert worker_a.held.hop("r") == 1


def test_a_request_is_migrated_if_the_destination_owns_it_when_the_source_claims_it() -> None:
    worker_a = Source()
    worker_a.to_claim()
    effects = worker_a.claim(ClaimReply(granted=False, worker="b", incarnation=2))
    assert kinds(effects) == [DiscardRequest, PublishReports, EndTransfer]
    assert phases(effects) == ["switched", "done"]
    assert worker_a.held.unresolved() == []


@pytest.mark.parametrize(
    "owner",
    [ClaimReply(granted=False, worker="c", incarnation=7), ClaimReply(granted=False, worker="b", incarnation=3)],
)
def test_a_request_that_the_frontend_gave_to_a_third_worker_is_discarded(owner: ClaimReply) -> None:
    worker_a = Source()
    worker_a.to_claim()
    assert_rolled_back(worker_a.claim(owner), "withdrawn", DiscardRequest)
    assert worker_a.held.unresolved() == []


def test_a_claim_is_repeated_until_the_frontend_answers() -> None:
    worker_a = Source(claim_retry_ms=70, claim_timeout_ms=None)
    (first,) = worker_a.to_claim()
    assert isinstance(first, SendClaim)
    for now_ms in (50, 10_000, 10_000_000):
        assert worker_a.claim(None, now_ms) == [replace(first, delay_ms=70)]
    assert worker_a.held.hop("r") is None
    assert worker_a.claim(ClaimReply(granted=True, worker="a", incarnation=1))[:1] == [
        RunRequest(HandedRequest("r", "f", 1, 2, b"state"))
    ]


def test_a_request_is_discarded_if_its_frontend_does_not_answer() -> None:
    worker_a = Source(claim_timeout_ms=1_000)
    worker_a.to_claim()
    assert kinds(worker_a.claim(None, 1_040)) == [SendClaim]
    assert_rolled_back(worker_a.claim(None, 1_041), "withdrawn", DiscardRequest)
    assert (worker_a.held.hop("r"), worker_a.held.unresolved()) == (None, [])


def test_a_request_that_has_returned_meanwhile_is_kept() -> None:
    worker_a = Source()
    worker_a.to_claim()
    request = HandedRequest("r", "f", 2, 4, b"later")
    assert kinds(worker_a.migrator.destination.on_handover_request(HandoverRequest(request, 1), 45)[1]) == [
        DiscardRequest,
        SendClaim,
    ]
    assert worker_a.migrator.on_claim_reply("r", 2, ClaimReply(granted=True, worker="a", incarnation=1), 46)[0] == (
        RunRequest(request)
    )
    effects = worker_a.claim(ClaimReply(granted=False, worker="a", incarnation=1))
    assert_rolled_back(effects, "withdrawn")
    assert worker_a.held.hop("r") == 2


# -- repeated, late and reordered inputs -------------------------------------------------------------------------------


STEPS: dict[str, Callable[[Source], Any]] = {
    "room": lambda worker_a: worker_a.asked,
    "copy": Source.to_copy,
    "stop": Source.to_stop,
    "handover": Source.to_handover,
    "claim": Source.to_claim,
    "over": lambda worker_a: (worker_a.to_claim(), worker_a.claim(ClaimReply(granted=True, worker="a", incarnation=1))),
}
INPUTS: dict[str, Callable[[Source], list[Effect]]] = {
    "room": lambda worker_a: worker_a.source.on_room_reply(R, YES, 60),
    "copy": lambda worker_a: worker_a.source.on_copied(R, 60),
    "stop": lambda worker_a: worker_a.source.on_stopped(R, STOPPED, 60),
    "handover": lambda worker_a: worker_a.source.on_handover_reply(R, TAKEN, 60),
    "claim": lambda worker_a: worker_a.claim(ClaimReply(granted=True, worker="a", incarnation=1), 60),
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("come", INPUTS)
def test_an_input_has_an_effect_only_in_its_step(step: str, come: str) -> None:
    worker_a = Source()
    STEPS[step](worker_a)
    assert bool(INPUTS[come](worker_a)) == (come == step)
    assert INPUTS[come](worker_a) == [], "and only once"


@pytest.mark.parametrize("step", ["room", "handover", "claim", "over"])
def test_a_late_failure_of_the_engine_ends_nothing(step: str) -> None:
    worker_a = Source()
    STEPS[step](worker_a)
    assert worker_a.source.on_failure(R, "failed", 60) == []


def test_a_repeated_command_has_no_effect() -> None:
    worker_a = Source()
    assert worker_a.migrator.answer(COMMAND, [], 1) == worker_a.migrator.answer(COMMAND, [], 2)
    assert worker_a.source.begin("c") == []


# -- deadlines ---------------------------------------------------------------------------------------------------------


def test_a_late_copy_is_cancelled_and_its_request_continues() -> None:
    worker_a = Source()
    worker_a.to_copy()
    assert worker_a.migrator.next_wake_ms() == 1_000
    assert worker_a.migrator.tick(999) == []
    assert worker_a.migrator.tick(1_000) == [CancelCopy(R)]
    assert worker_a.migrator.tick(1_001) == [], "cancelled only once"
    effects = worker_a.source.on_failure(R, "failed", 1_002, "its copy was cancelled")
    assert_rolled_back(effects, "deadline")
    assert reports(effects)[0].detail == "its copy did not finish within 1000 ms"
    assert worker_a.held.hop("r") == 0


def test_a_cancelled_copy_that_ends_nevertheless_counts_as_late() -> None:
    worker_a = Source()
    worker_a.to_copy()
    worker_a.migrator.tick(1_000)
    assert_rolled_back(worker_a.source.on_copied(R, 1_001), "deadline")


def test_a_copy_that_ends_with_the_deadline_is_late() -> None:
    worker_a = Source()
    worker_a.to_copy()
    assert_rolled_back(worker_a.source.on_copied(R, 1_000), "deadline")


def test_room_granted_after_the_deadline_is_released() -> None:
    worker_a = Source()
    assert phases(worker_a.migrator.tick(1_000)) == ["aborted"]
    assert kinds(worker_a.source.on_room_reply(R, YES, 1_500)) == [ReleaseRoom, EndTransfer]


@pytest.mark.parametrize("step", ["stop", "handover", "claim"])
def test_the_deadline_does_not_interrupt_a_handover(step: str) -> None:
    worker_a = Source()
    STEPS[step](worker_a)
    assert worker_a.migrator.tick(99_999) == []
    assert worker_a.migrator.next_wake_ms() is None
    assert INPUTS[step](worker_a) != []


def test_the_last_report_is_published_three_times() -> None:
    worker_a = Source()
    worker_a.source.on_room_reply(R, NO, 10)
    assert [phases(worker_a.migrator.tick(now_ms)) for now_ms in (1_009, 1_010, 2_010, 3_010)] == [
        [], ["aborted"], ["aborted"], [],
    ]  # fmt: skip
