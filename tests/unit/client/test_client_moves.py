"""The moves of a worker: what it answers, how far its requests are, and what ends them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from loadline.client.moves import DRAIN_SLOTS_MAX, Moves, Part, Slots
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
A, B = Part("c", "a"), Part("c", "b")


def moves(**limits: Any) -> Moves:
    return Moves(RECORD, **limits)


def begun(**command: Any) -> Moves:
    """With both requests begun, at 0."""
    made = moves()
    reply = made.answer(replace(COMMAND, **command), QUEUE, 0)
    assert reply is not None
    assert reply.accepted
    made.begin("c")
    return made


def phases(reports: list[MigrationReport]) -> list[str]:
    return [report.phase for report in reports]


def refusal(made: Moves, queue: list[MigratableRequest] = QUEUE, **command: Any) -> str | None:
    reply = made.answer(replace(COMMAND, **command), queue, 0)
    assert reply is not None
    assert not reply.accepted
    assert isinstance(decode_as(MigrateReply, encode(reply), ""), MigrateReply)
    return reply.reason


def test_it_says_what_it_has_chosen_and_begins_it_once() -> None:
    made = moves()
    assert made.answer(COMMAND, QUEUE, 0) == MigrateReply("c", accepted=True, requests=2, tokens=310)
    assert made.begin("c") == [A, B]
    assert made.begin("c") == []
    assert made.begin("unknown") == []


def test_the_same_command_has_the_same_answer_and_begins_nothing() -> None:
    made = begun()
    first = made.answer(COMMAND, QUEUE, 1)
    assert first == made.answer(replace(COMMAND, epoch=1), [], 2)
    assert made.begin("c") == []
    made.failed(A, "finished", 3)
    made.switched(B, 4)
    assert made.answer(COMMAND, [*QUEUE, MigratableRequest("d", 1, 1)], 5) == first
    assert made.begin("c") == []


def test_a_refusal_is_repeated_too() -> None:
    made = moves()
    assert refusal(made, []) == "nothing_to_move"
    assert refusal(made, QUEUE) == "nothing_to_move"


@pytest.mark.parametrize(
    "command",
    [
        {"model": "other"},
        {"source": MigrationEndpoint("other", "w", 1_000)},
        {"source": MigrationEndpoint("p", "other", 1_000)},
        {"source": MigrationEndpoint("p", "w", 1_001)},
    ],
)
def test_what_concerns_another_worker_is_left_to_it(command: dict[str, Any]) -> None:
    assert moves().answer(replace(COMMAND, **command), QUEUE, 0) is None


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
def test_what_is_refused(reason: str, command: dict[str, Any]) -> None:
    made = moves()
    assert refusal(made, [], command_id="before") == "nothing_to_move"
    assert refusal(made, **command) == reason


def test_an_engine_that_cannot_move_refuses_and_takes_nothing_in() -> None:
    made = moves(supported=False)
    assert refusal(made) == "unsupported"
    assert not made.admit("x")


def test_a_leader_of_an_older_term_is_not_obeyed() -> None:
    made = begun()
    assert refusal(made, command_id="d", epoch=4) == "stale_epoch"
    assert refusal(made, [], command_id="e", epoch=5) == "nothing_to_move"


def test_a_request_is_in_one_move_at_a_time() -> None:
    made = begun()
    assert refusal(made, command_id="d") == "nothing_to_move"
    made.failed(A, "destination_refused", 1)
    reply = made.answer(replace(COMMAND, command_id="e"), QUEUE, 1)
    assert reply is not None
    assert reply.requests == 1
    assert made.begin("e") == [Part("e", "a")]
    assert made.admitted(A, 2) == [], "what its former move says late is not of this one"
    assert phases(made.admitted(Part("e", "a"), 2)) == ["admitted"]


def test_a_share_is_of_the_cache_that_the_record_says() -> None:
    reply = moves().answer(replace(COMMAND, rule="RATIO", value=0.25), QUEUE, 0)
    assert reply is not None
    assert (reply.requests, reply.tokens) == (1, 105)


def test_phases_are_said_of_each_request_and_the_end_is_said_three_times() -> None:
    made = begun()
    said = [*made.admitted(A, 10), *made.admitted(B, 11), *made.copying(A, 12), *made.copying(B, 12)]
    assert made.switching(A, 20)
    said += made.switched(A, 25)
    said += made.failed(B, "destination_lost", 40, "it hung up")
    assert phases(said) == ["admitted", "admitted", "copying", "copying", "switched", "done"]
    last = said[-1]
    assert (last.requests, last.moved, last.failed, last.tokens, last.took_ms) == (2, 1, 1, 105, 40)
    assert (last.reason, last.detail) == ("destination_lost", "it hung up")
    assert all(isinstance(decode_as(MigrationReport, encode(one), ""), MigrationReport) for one in said)
    assert made.wake_ms() == 1_040
    assert made.repeats(1_039) == []
    assert made.repeats(1_040) == [last]
    assert made.repeats(2_040) == [last]
    assert made.repeats(99_999) == []
    assert made.wake_ms() is None


def test_a_move_of_nothing_is_aborted_and_a_failure_before_any_phase_is_said_with_the_next() -> None:
    made = begun()
    assert made.failed(A, "finished", 1) == []
    said = made.failed(B, "failed", 2, "x" * 1_000)
    assert phases(said) == ["aborted"]
    assert (said[0].failed, said[0].moved, len(said[0].detail)) == (2, 0, 256)


def test_a_failure_is_said_in_the_phase_of_the_move() -> None:
    made = begun()
    made.admitted(A, 1)
    assert phases(made.failed(A, "failed", 2)) == ["admitted"]


def test_the_deadline_withdraws_what_is_not_being_handed_over() -> None:
    made = begun()
    made.admitted(A, 1)
    assert made.switching(A, 29_999)
    assert made.wake_ms() == 30_000
    assert made.overdue(29_999) == []
    assert made.overdue(30_000) == [B]
    assert made.overdue(30_000) == [], "said once"
    assert (made.is_withdrawn(A), made.is_withdrawn(B)) == (False, True)
    assert not made.switching(B, 29_999)
    made.failed(B, "deadline", 30_000)
    assert made.overdue(99_999) == []
    assert made.wake_ms() is None, "a switch in doubt takes as long as it takes"
    assert phases(made.switched(A, 99_999)) == ["switched", "done"]


def test_nothing_is_handed_over_after_the_deadline() -> None:
    made = begun()
    assert not made.switching(A, 30_000)
    assert not made.switching(Part("c", "unknown"), 1)
    assert made.overdue(30_000) == [A, B]


def test_what_comes_late_changes_nothing() -> None:
    made = begun()
    made.failed(A, "withdrawn", 1)
    assert made.admitted(A, 2) == made.copying(A, 2) == made.switched(A, 2) == made.failed(A, "failed", 2) == []
    assert not made.switching(A, 2)
    assert made.copying(B, 2) == [], "nothing is copied to a destination that has not admitted it"


def test_slots_are_what_is_free() -> None:
    made = moves(slots_in=2, slots_out=3)
    assert made.slots(10) == Slots(2, 3)
    made.answer(COMMAND, QUEUE, 0)
    assert made.slots(10) == Slots(2, 1)
    three = [MigratableRequest(name, 1, 1) for name in "xyz"]
    reply = made.answer(replace(COMMAND, command_id="d"), three, 0)
    assert reply is not None
    assert reply.requests == 1
    assert made.slots(10) == Slots(2, 0)
    assert refusal(made, three, command_id="e") == "no_slots"
    made.switched(A, 1)
    assert made.slots(10) == Slots(2, 1)


def test_one_that_drains_gives_away_all_it_has_and_takes_nothing_in() -> None:
    made = moves(slots_out=1)
    made.draining = True
    assert made.slots(10) == Slots(0, 10)
    assert made.slots(1_000) == Slots(0, DRAIN_SLOTS_MAX)
    made.answer(COMMAND, QUEUE, 0)
    assert made.slots(10) == Slots(0, 8)
    assert not made.admit("x")


def test_what_comes_in_takes_a_slot_until_it_is_settled() -> None:
    made = moves(slots_in=1)
    assert made.admit("x")
    assert made.admit("x"), "asked again"
    assert not made.admit("y")
    assert made.slots(0).taken_in == 0
    made.settle("x")
    made.settle("x")
    assert made.admit("y")


def test_what_is_remembered_is_bounded() -> None:
    made = begun()
    for number in range(3_000):
        made.answer(replace(COMMAND, command_id=f"r{number}"), [], 0)
    assert len(made._replies) <= 1_024
    reply = made.answer(COMMAND, [], 0)
    assert reply is not None
    assert reply.accepted, "a move under way is never forgotten"
    for number in range(3_000):
        made.answer(replace(COMMAND, command_id=f"m{number}"), [MigratableRequest("z", 1, 1)], 0)
        made.switched(Part(f"m{number}", "z"), 0)
    assert len(made._last) <= 1_024


STEPS = st.sampled_from(
    ["command", "repeat", "begin", "admitted", "copying", "switching", "switched", "failed", "late"]
)
NUMBERS = st.integers(0, 3)


@given(st.lists(st.tuples(STEPS, NUMBERS, NUMBERS), max_size=60), st.integers(0, 3))
def test_every_move_ends_once_whatever_is_said_in_whatever_order(
    steps: list[tuple[str, int, int]], slots_out: int
) -> None:
    made, now_ms = moves(slots_out=slots_out), 0
    replies: dict[str, MigrateReply] = {}
    said: dict[str, list[MigrationReport]] = {}
    for step, number, which in steps:
        now_ms += 7
        command_id, part = f"c{number}", Part(f"c{number}", f"r{which}")
        if step in {"command", "repeat"}:
            queue = [MigratableRequest(f"r{one}", 10, 1) for one in range(4)]
            reply = made.answer(replace(COMMAND, command_id=command_id, ttl_ms=50), queue, now_ms)
            assert reply is not None
            assert replies.setdefault(command_id, reply) == reply
        elif step == "begin":
            made.begin(command_id)
        elif step == "switching":
            made.switching(part, now_ms)
        elif step == "late":
            for late in made.overdue(now_ms):
                said.setdefault(late.command_id, []).extend(made.failed(late, "deadline", now_ms))
        elif step == "failed":
            said.setdefault(command_id, []).extend(made.failed(part, "failed", now_ms))
        else:
            reached = {"admitted": made.admitted, "copying": made.copying, "switched": made.switched}[step]
            said.setdefault(command_id, []).extend(reached(part, now_ms))
        assert 0 <= made.slots(9).given_away <= slots_out
    for command_id, reports in said.items():
        reply = replies.get(command_id)
        assert reports == [] or (reply is not None and reply.accepted)
        ends = [report.phase in ("done", "aborted") for report in reports]
        assert not any(ends[:-1]), "nothing is said after the end"
        assert all(report.moved + report.failed <= report.requests for report in reports)
        if ends and ends[-1]:
            last = reports[-1]
            assert (last.phase == "done", last.moved + last.failed) == (last.moved > 0, last.requests)
