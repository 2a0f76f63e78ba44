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
    made = Source()
    assert made.asked == AskRoom(R, "b", RoomRequest("r", 2, 105, 1_000, 125))
    effects = made.to_copy()
    assert phases(effects) == ["admitted", "copying"]
    assert effects[-1] == StartCopy(R, COMMAND)
    assert made.source.on_copied(R, 20) == [StopRequest(R, COMMAND)]
    assert made.held.hop("r") == 0, "the request runs until it is stopped"
    (sent,) = made.source.on_stopped(R, STOPPED, 30)
    assert sent == SendHandover(R, "b", HandoverRequest(HandedRequest("r", "f", 1, 3, b"state"), 2))
    assert made.held.hop("r") is None, "neither worker runs the request now"
    assert made.held.unresolved() == [("r", 1)]
    effects = made.source.on_handover_reply(R, TAKEN, 40)
    assert kinds(effects) == [DiscardRequest, PublishReports, EndTransfer]
    assert phases(effects) == ["switched", "done"]
    assert made.held.unresolved() == []
    assert made.migrator.free_slots(10) == FreeSlots(4, 4)


def test_a_waiting_request_is_handed_over_without_a_copy() -> None:
    migrator, held = worker("a", 1)
    held.assign("r", 0)
    migrator.answer(replace(COMMAND, order="FCW"), [MigratableRequest("r", 100, 0, waiting=True)], 0)
    (asked,) = migrator.source.begin("c")
    assert isinstance(asked, AskRoom)
    assert (asked.message.kv_tokens, asked.message.kv_tokens_max) == (0, None)


@pytest.mark.parametrize(("reply", "reason"), [(NO, "destination_refused"), (None, "destination_lost")])
def test_a_request_without_room_at_the_destination_continues(reply: RoomReply | None, reason: str) -> None:
    made = Source()
    assert_rolled_back(made.source.on_room_reply(R, reply, 10), reason)
    assert made.held.hop("r") == 0


@pytest.mark.parametrize("step", [Source.to_copy, Source.to_stop])
def test_a_request_that_cannot_be_copied_or_stopped_continues(step: Callable[[Source], list[Effect]]) -> None:
    made = Source()
    step(made)
    effects = made.source.on_failure(R, "finished", 30, "it ended")
    assert_rolled_back(effects, "finished")
    assert reports(effects)[0].detail == "it ended"
    assert made.held.hop("r") == 0


def test_a_request_that_another_worker_owns_meanwhile_is_not_handed_over() -> None:
    made = Source()
    made.to_stop()
    made.held.end("r")
    assert_rolled_back(made.source.on_stopped(R, STOPPED, 30), "withdrawn")


@pytest.mark.parametrize(("reply", "reason"), [(NOT_TAKEN, "destination_refused"), (None, "destination_lost")])
def test_a_source_whose_claim_is_granted_resumes(reply: HandoverReply | None, reason: str) -> None:
    made = Source()
    assert made.to_claim(reply) == [SendClaim("f", ClaimRequest("r", "a", 1, 1))]
    assert made.held.hop("r") is None, "not before the frontend grants the claim"
    effects = made.claim(ClaimReply(granted=True, worker="a", incarnation=1))
    assert_rolled_back(effects, reason, RunRequest)
    assert effects[0] == RunRequest(HandedRequest("r", "f", 1, 2, b"state")), "the request is reported as not migrated"
    assert made.held.hop("r") == 1


def test_a_request_is_migrated_if_the_destination_owns_it_when_the_source_claims_it() -> None:
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
def test_a_request_that_the_frontend_gave_to_a_third_worker_is_discarded(owner: ClaimReply) -> None:
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


def test_a_request_is_discarded_if_its_frontend_does_not_answer() -> None:
    made = Source(claim_timeout_ms=1_000)
    made.to_claim()
    assert kinds(made.claim(None, 1_040)) == [SendClaim]
    assert_rolled_back(made.claim(None, 1_041), "withdrawn", DiscardRequest)
    assert (made.held.hop("r"), made.held.unresolved()) == (None, [])


def test_a_request_that_has_returned_meanwhile_is_kept() -> None:
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


# -- repeated, late and reordered inputs -------------------------------------------------------------------------------


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
def test_an_input_has_an_effect_only_in_its_step(step: str, come: str) -> None:
    made = Source()
    STEPS[step](made)
    assert bool(INPUTS[come](made)) == (come == step)
    assert INPUTS[come](made) == [], "and only once"


@pytest.mark.parametrize("step", ["room", "handover", "claim", "over"])
def test_a_late_failure_of_the_engine_ends_nothing(step: str) -> None:
    made = Source()
    STEPS[step](made)
    assert made.source.on_failure(R, "failed", 60) == []


def test_a_repeated_command_has_no_effect() -> None:
    made = Source()
    assert made.migrator.answer(COMMAND, [], 1) == made.migrator.answer(COMMAND, [], 2)
    assert made.source.begin("c") == []


# -- deadlines ---------------------------------------------------------------------------------------------------------


def test_a_late_copy_is_cancelled_and_its_request_continues() -> None:
    made = Source()
    made.to_copy()
    assert made.migrator.next_wake_ms() == 1_000
    assert made.migrator.tick(999) == []
    assert made.migrator.tick(1_000) == [CancelCopy(R)]
    assert made.migrator.tick(1_001) == [], "cancelled only once"
    effects = made.source.on_failure(R, "failed", 1_002, "its copy was cancelled")
    assert_rolled_back(effects, "deadline")
    assert reports(effects)[0].detail == "its copy did not finish within 1000 ms"
    assert made.held.hop("r") == 0


def test_a_cancelled_copy_that_ends_nevertheless_counts_as_late() -> None:
    made = Source()
    made.to_copy()
    made.migrator.tick(1_000)
    assert_rolled_back(made.source.on_copied(R, 1_001), "deadline")


def test_a_copy_that_ends_with_the_deadline_is_late() -> None:
    made = Source()
    made.to_copy()
    assert_rolled_back(made.source.on_copied(R, 1_000), "deadline")


def test_room_granted_after_the_deadline_is_released() -> None:
    made = Source()
    assert phases(made.migrator.tick(1_000)) == ["aborted"]
    assert kinds(made.source.on_room_reply(R, YES, 1_500)) == [ReleaseRoom, EndTransfer]


@pytest.mark.parametrize("step", ["stop", "handover", "claim"])
def test_the_deadline_does_not_interrupt_a_handover(step: str) -> None:
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
