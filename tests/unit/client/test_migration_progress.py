"""Migrations of a worker: answers to commands, reports, and ends of migrations."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from loadline.client.handover.effects import Transfer
from loadline.client.handover.progress import DRAIN_SLOTS_MAX, MigrationProgress
from loadline.core.migration.requests import MigratableRequest
from loadline.core.vocabulary.migrations import MigrationEndpoint
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.wire.codec import decode_as, encode
from loadline.wire.messages import MigrateCommand, MigrateReply, MigrationReport

RECORD = WorkerRecord("m", "p", "w", "decode", 1_000, kv_blocks_total=100, block_size_tokens=10)
COMMAND = MigrateCommand(
    "c", "m", 5, MigrationEndpoint("p", "w", 1_000), MigrationEndpoint("p", "other", 7),
    "decode_load", "NUM_REQ", "FCR", -1.0,
    requests_max=8, ttl_ms=30_000,
)  # fmt: skip
QUEUE = [MigratableRequest("a", 100, 5), MigratableRequest("b", 200, 5)]
A, B = Transfer("c", "a"), Transfer("c", "b")


def progress(**limits: Any) -> MigrationProgress:
    return MigrationProgress(RECORD, **limits)


def begun(**command: Any) -> MigrationProgress:
    """Return a migration whose two requests were begun at 0."""
    tracker = progress()
    reply = tracker.answer(replace(COMMAND, **command), QUEUE, 0)
    assert reply is not None
    assert reply.accepted
    tracker.begin("c")
    return tracker


def phases(reports: list[MigrationReport]) -> list[str]:
    return [report.phase for report in reports]


def refusal(tracker: MigrationProgress, queue: list[MigratableRequest] = QUEUE, **command: Any) -> str | None:
    reply = tracker.answer(replace(COMMAND, **command), queue, 0)
    assert reply is not None
    assert not reply.accepted
    assert isinstance(decode_as(MigrateReply, encode(reply), ""), MigrateReply)
    return reply.reason


def test_a_command_is_answered_with_the_selected_requests_and_begun_once() -> None:
    tracker = progress()
    assert tracker.answer(COMMAND, QUEUE, 0) == MigrateReply("c", accepted=True, requests=2, tokens=310)
    assert tracker.begin("c") == [A, B]
    assert tracker.begin("c") == []
    assert tracker.begin("unknown") == []


def test_a_repeated_command_gets_the_same_answer_and_has_no_effect() -> None:
    tracker = begun()
    first = tracker.answer(COMMAND, QUEUE, 1)
    assert first == tracker.answer(replace(COMMAND, epoch=1), [], 2)
    assert tracker.begin("c") == []
    tracker.record_failure(A, "finished", 3)
    tracker.record_moved(B, 4)
    assert tracker.answer(COMMAND, [*QUEUE, MigratableRequest("d", 1, 1)], 5) == first
    assert tracker.begin("c") == []


def test_a_repeated_command_gets_the_same_refusal() -> None:
    tracker = progress()
    assert refusal(tracker, []) == "nothing_to_move"
    assert refusal(tracker, QUEUE) == "nothing_to_move"


@pytest.mark.parametrize(
    "command",
    [
        {"model": "other"},
        {"source": MigrationEndpoint("other", "w", 1_000)},
        {"source": MigrationEndpoint("p", "other", 1_000)},
        {"source": MigrationEndpoint("p", "w", 1_001)},
    ],
)
def test_commands_for_other_workers_are_ignored(command: dict[str, Any]) -> None:
    assert progress().answer(replace(COMMAND, **command), QUEUE, 0) is None


@pytest.mark.parametrize(
    ("reason", "command"),
    [
        ("gone", {"source": MigrationEndpoint("p", "w", 999)}),
        ("stale_epoch", {"epoch": 4}),
        ("expired", {"ttl_ms": 0}),
        ("destination_unknown", {"destination": MigrationEndpoint("p", "w", 1_000)}),
        ("nothing_to_move", {"hops_max": 0}),
        ("nothing_to_move", {"requests_max": 0}),
        ("nothing_to_move", {"tokens_max": 50}),
    ],
)
def test_invalid_commands_are_refused(reason: str, command: dict[str, Any]) -> None:
    tracker = progress()
    assert refusal(tracker, [], command_id="before") == "nothing_to_move"
    assert refusal(tracker, **command) == reason


def test_an_engine_that_cannot_hand_over_refuses() -> None:
    assert refusal(progress(supported=False)) == "unsupported"


def test_commands_of_an_older_epoch_are_refused() -> None:
    tracker = begun()
    assert refusal(tracker, command_id="d", epoch=4) == "stale_epoch"
    assert refusal(tracker, [], command_id="e", epoch=5) == "nothing_to_move"


def test_a_request_is_in_one_migration_at_a_time() -> None:
    tracker = begun()
    assert refusal(tracker, command_id="d") == "nothing_to_move"
    tracker.record_failure(A, "destination_refused", 1)
    reply = tracker.answer(replace(COMMAND, command_id="e"), QUEUE, 1)
    assert reply is not None
    assert reply.requests == 1
    assert tracker.begin("e") == [Transfer("e", "a")]
    assert tracker.record_admitted(A, 2) == [], "late reports of the earlier migration are ignored"
    assert phases(tracker.record_admitted(Transfer("e", "a"), 2)) == ["admitted"]


def test_a_ratio_refers_to_the_registered_cache_size() -> None:
    reply = progress().answer(replace(COMMAND, rule="RATIO", value=0.25), QUEUE, 0)
    assert reply is not None
    assert (reply.requests, reply.tokens) == (1, 105)


def test_phases_are_reported_for_each_request_and_the_end_three_times() -> None:
    tracker = begun()
    published = [
        *tracker.record_admitted(A, 10),
        *tracker.record_admitted(B, 11),
        *tracker.record_copying(A, 12),
        *tracker.record_copying(B, 12),
    ]
    assert tracker.begin_switch(A, 20)
    published += tracker.record_moved(A, 25)
    published += tracker.record_failure(B, "destination_lost", 40, "it hung up")
    assert phases(published) == ["admitted", "admitted", "copying", "copying", "switched", "done"]
    last = published[-1]
    assert (last.requests, last.moved, last.failed, last.tokens, last.took_ms) == (2, 1, 1, 105, 40)
    assert (last.reason, last.detail) == ("destination_lost", "it hung up")
    assert all(isinstance(decode_as(MigrationReport, encode(one), ""), MigrationReport) for one in published)
    assert tracker.next_wake_ms() == 1_040
    assert tracker.repeat_final(1_039) == []
    assert tracker.repeat_final(1_040) == [last]
    assert tracker.repeat_final(2_040) == [last]
    assert tracker.repeat_final(99_999) == []
    assert tracker.next_wake_ms() is None


def test_an_empty_migration_is_aborted_and_an_early_failure_is_reported_with_the_next_phase() -> None:
    tracker = begun()
    assert tracker.record_failure(A, "finished", 1) == []
    published = tracker.record_failure(B, "failed", 2, "x" * 1_000)
    assert phases(published) == ["aborted"]
    assert (published[0].failed, published[0].moved, len(published[0].detail)) == (2, 0, 256)


def test_a_failure_is_reported_in_the_current_phase() -> None:
    tracker = begun()
    tracker.record_admitted(A, 1)
    assert phases(tracker.record_failure(A, "failed", 2)) == ["admitted"]


def test_the_deadline_withdraws_requests_that_are_not_being_handed_over() -> None:
    tracker = begun()
    tracker.record_admitted(A, 1)
    assert tracker.begin_switch(A, 29_999)
    assert tracker.next_wake_ms() == 30_000
    assert tracker.withdraw_overdue(29_999) == []
    assert tracker.withdraw_overdue(30_000) == [B]
    assert tracker.withdraw_overdue(30_000) == [], "reported once"
    assert (tracker.is_withdrawn(A), tracker.is_withdrawn(B)) == (False, True)
    assert not tracker.begin_switch(B, 29_999)
    tracker.record_failure(B, "deadline", 30_000)
    assert tracker.withdraw_overdue(99_999) == []
    assert tracker.next_wake_ms() is None, "an unanswered handover has no deadline"
    assert phases(tracker.record_moved(A, 99_999)) == ["switched", "done"]


def test_nothing_is_handed_over_after_the_deadline() -> None:
    tracker = begun()
    assert not tracker.begin_switch(A, 30_000)
    assert not tracker.begin_switch(Transfer("c", "unknown"), 1)
    assert tracker.withdraw_overdue(30_000) == [A, B]


def test_late_inputs_have_no_effect() -> None:
    tracker = begun()
    tracker.record_failure(A, "withdrawn", 1)
    assert (
        tracker.record_admitted(A, 2)
        == tracker.record_copying(A, 2)
        == tracker.record_moved(A, 2)
        == tracker.record_failure(A, "failed", 2)
        == []
    )
    assert not tracker.begin_switch(A, 2)
    assert tracker.record_copying(B, 2) == [], "nothing is copied to a destination that has not admitted it"


def test_free_slots_exclude_reserved_ones() -> None:
    tracker = progress(slots_out=3)
    assert tracker.free_slots(10) == 3
    tracker.answer(COMMAND, QUEUE, 0)
    assert tracker.free_slots(10) == 1
    three = [MigratableRequest(name, 1, 1) for name in "xyz"]
    reply = tracker.answer(replace(COMMAND, command_id="d"), three, 0)
    assert reply is not None
    assert reply.requests == 1
    assert tracker.free_slots(10) == 0
    assert refusal(tracker, three, command_id="e") == "no_slots"
    tracker.record_moved(A, 1)
    assert tracker.free_slots(10) == 1


def test_a_draining_worker_hands_over_all_requests() -> None:
    tracker = progress(slots_out=1)
    tracker.draining = True
    assert tracker.free_slots(10) == 10
    assert tracker.free_slots(1_000) == DRAIN_SLOTS_MAX
    tracker.answer(COMMAND, QUEUE, 0)
    assert tracker.free_slots(10) == 8


def test_the_memory_of_ended_migrations_is_bounded() -> None:
    tracker = begun()
    for number in range(3_000):
        tracker.answer(replace(COMMAND, command_id=f"r{number}"), [], 0)
    assert len(tracker._replies) <= 1_024
    reply = tracker.answer(COMMAND, [], 0)
    assert reply is not None
    assert reply.accepted, "a migration in flight is never forgotten"
    for number in range(3_000):
        tracker.answer(replace(COMMAND, command_id=f"m{number}"), [MigratableRequest("z", 1, 1)], 0)
        tracker.record_moved(Transfer(f"m{number}", "z"), 0)
    assert len(tracker._final) <= 1_024


STEPS = st.sampled_from(
    ["command", "repeat", "begin", "admitted", "copying", "switching", "switched", "failed", "late"]
)
NUMBERS = st.integers(0, 3)


@given(st.lists(st.tuples(STEPS, NUMBERS, NUMBERS), max_size=60), st.integers(0, 3))
def test_every_migration_ends_once_for_any_order_of_inputs(steps: list[tuple[str, int, int]], slots_out: int) -> None:
    tracker, now_ms = progress(slots_out=slots_out), 0
    replies: dict[str, MigrateReply] = {}
    published: dict[str, list[MigrationReport]] = {}
    for step, number, which in steps:
        now_ms += 7
        command_id, part = f"c{number}", Transfer(f"c{number}", f"r{which}")
        if step in {"command", "repeat"}:
            queue = [MigratableRequest(f"r{one}", 10, 1) for one in range(4)]
            reply = tracker.answer(replace(COMMAND, command_id=command_id, ttl_ms=50), queue, now_ms)
            assert reply is not None
            assert replies.setdefault(command_id, reply) == reply
        elif step == "begin":
            tracker.begin(command_id)
        elif step == "switching":
            tracker.begin_switch(part, now_ms)
        elif step == "late":
            for late in tracker.withdraw_overdue(now_ms):
                published.setdefault(late.command_id, []).extend(tracker.record_failure(late, "deadline", now_ms))
        elif step == "failed":
            published.setdefault(command_id, []).extend(tracker.record_failure(part, "failed", now_ms))
        else:
            reached = {
                "admitted": tracker.record_admitted,
                "copying": tracker.record_copying,
                "switched": tracker.record_moved,
            }[step]
            published.setdefault(command_id, []).extend(reached(part, now_ms))
        assert 0 <= tracker.free_slots(9) <= slots_out
    for command_id, reports in published.items():
        reply = replies.get(command_id)
        assert reports == [] or (reply is not None and reply.accepted)
        ends = [report.phase in ("done", "aborted") for report in reports]
        assert not any(ends[:-1]), "nothing is reported after the end"
        assert all(report.moved + report.failed <= report.requests for report in reports)
        if ends and ends[-1]:
            last = reports[-1]
            assert (last.phase == "done", last.moved + last.failed) == (last.moved > 0, last.requests)
