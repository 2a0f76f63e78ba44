"""Records of migrations in flight, by themselves: slots, what a worker's report does not show yet, and their ends."""

import pytest

from loadline.core.migration.in_flight import ENDED_RETENTION_MS, InFlightMigration, InFlightMigrations
from loadline.core.vocabulary.events import MigrationAnswered, MigrationReported
from loadline.core.vocabulary.migrations import Migration, MigrationEndpoint, MigrationReportPhase

HOT, COLD = MigrationEndpoint("decode", "hot", 1), MigrationEndpoint("decode", "cold", 1)
TTL_MS, SLOTS = 10_000, 8


def command(command_id: str = "one", model: str = "m", requests_max: int = 6) -> Migration:
    return Migration(
        command_id, model, 3, HOT, COLD, "decode_load", "NUM_REQ", "LCR", 6.0, requests_max=requests_max
    )  # fmt: skip


def started(*commands: Migration, now: int = 0) -> InFlightMigrations:
    """Return migrations in flight that are expected to move 5 requests of 500 tokens each."""
    in_flight = InFlightMigrations()
    for one in commands or (command(),):
        in_flight.start(one, 5, 500, TTL_MS, now)
    return in_flight


def reported(
    in_flight: InFlightMigrations,
    now: int,
    phase: MigrationReportPhase = "copying",
    moved: int = 0,
    *,
    failed: int = 0,
    tokens: int = 0,
    model: str = "m",
    requests: int = 5,
    source: MigrationEndpoint = HOT,
    command_id: str = "one",
) -> InFlightMigration | None:
    event = MigrationReported(
        command_id, model, 3, source, COLD, "decode_load", phase, requests, moved, failed, tokens, took_ms=now
    )  # fmt: skip
    return in_flight.record_report(event, TTL_MS, SLOTS, now)


def test_slots_are_those_of_the_command_until_the_source_answers() -> None:
    in_flight = started()
    (one,) = in_flight.open.values()
    assert one.slots == 6
    in_flight.record_answer(MigrationAnswered("one", "m", accepted=None), now=1)
    assert one.slots == 0
    in_flight.record_answer(MigrationAnswered("one", "m", accepted=True, requests=4, tokens=390), now=2)
    assert (one.slots, one.tokens) == (4, 390)
    reported(in_flight, 3, moved=1, failed=1, requests=4)
    assert one.slots == 2
    reported(in_flight, 4, moved=2, failed=2, requests=4)
    assert one.slots == 0


def test_an_end_frees_all_slots_and_has_the_tokens_that_were_migrated() -> None:
    in_flight = started()
    one = reported(in_flight, 0, "done", moved=3, tokens=310, requests=6)
    assert one is not None
    assert (one.ended, one.slots, one.tokens, one.slots_freed_at_ms) == (True, 0, 310, 0)


def test_slots_are_freed_by_each_request_that_moves_and_by_the_end() -> None:
    in_flight = started()
    (one,) = in_flight.open.values()
    freed = [one.slots_freed_at_ms]
    for now, moved in ((7, 1), (9, 1), (12, 4)):
        reported(in_flight, now, "switched" if now == 9 else "copying", moved)
        freed.append(one.slots_freed_at_ms)
    reported(in_flight, 20, "aborted", moved=4, failed=1)
    assert [*freed, one.slots_freed_at_ms] == [-1, 7, 7, 12, 20]
    assert one.progress == [(7, 1, 0), (12, 4, 0)]


def test_what_a_worker_has_reported_since_is_no_longer_expected() -> None:
    in_flight = started()
    (one,) = in_flight.open.values()
    assert one.unobserved(100) == (5, 500)
    reported(in_flight, 10, moved=2, tokens=180)
    reported(in_flight, 20, moved=3, failed=1, tokens=290)
    # Before the first step, all but the failed one are expected, with their share of the tokens.
    assert one.unobserved(10) == (4, 400)
    assert one.unobserved(20) == (2, 213)
    assert one.unobserved(21) == (1, 105)


def test_a_failed_request_is_not_expected_although_none_has_moved() -> None:
    in_flight = started()
    (one,) = in_flight.open.values()
    reported(in_flight, 10, failed=2)
    assert one.unobserved(50) == (3, 300)


def test_an_end_before_a_workers_report_is_expected_with_all_its_tokens() -> None:
    in_flight = started()
    one = reported(in_flight, 10, "aborted", moved=3, failed=2, tokens=310)
    assert one is not None
    assert one.unobserved(5) == (3, 310)
    assert one.unobserved(11) == (0, 0)


def test_nothing_is_expected_of_a_migration_whose_requests_have_all_moved() -> None:
    in_flight = started()
    one = reported(in_flight, 10, moved=5, tokens=480)
    assert one is not None
    assert one.unobserved(11) == (0, 20)


def test_no_more_requests_count_as_moved_or_failed_than_were_selected() -> None:
    one = reported(started(), 5, moved=4, failed=9)
    assert one is not None
    assert (one.moved, one.failed, one.slots) == (4, 1, 0)


def test_only_the_source_of_a_migration_reports_it_and_nothing_follows_its_end() -> None:
    in_flight = started()
    assert reported(in_flight, 5, moved=1, source=COLD) is None
    assert reported(in_flight, 6, "done", moved=2) is not None
    assert reported(in_flight, 7, moved=3) is None
    assert in_flight.open["one"].moved == 2


def test_adopted_migrations_of_a_source_occupy_no_more_slots_than_it_may_send() -> None:
    in_flight = InFlightMigrations()
    assert reported(in_flight, 0, "done", requests=2) is None
    first = reported(in_flight, 1, requests=6)
    other = reported(in_flight, 2, requests=8, source=COLD, command_id="other source")
    rest = reported(in_flight, 3, requests=6, command_id="two")
    assert first is not None
    assert other is not None
    assert rest is not None
    assert [one.adopted for one in (first, other, rest)] == [True] * 3
    assert [one.slots for one in (first, other, rest)] == [6, 8, 2]
    assert reported(in_flight, 4, requests=1, command_id="three") is None
    assert list(in_flight.open) == ["one", "other source", "two"]


def test_one_slot_is_enough_to_adopt_and_an_ended_migration_leaves_its_slots_to_others() -> None:
    in_flight = InFlightMigrations()
    reported(in_flight, 1, requests=7)
    last = reported(in_flight, 2, requests=4, command_id="two")
    assert last is not None
    assert (last.command.requests_max, last.slots) == (1, 1)
    reported(in_flight, 3, "done", requests=7, moved=7)
    freed = reported(in_flight, 4, requests=8, command_id="three")
    assert freed is not None
    assert freed.slots == 7


@pytest.mark.parametrize("model", ["m", "other"])
def test_a_report_that_repeats_the_state_or_names_another_model_changes_nothing(model: str) -> None:
    in_flight = started()
    assert reported(in_flight, 5, moved=1) is not None
    repeated = {"m": 1, "other": 2}[model]
    assert reported(in_flight, 6, moved=repeated, model=model) is None
    assert in_flight.open["one"].moved == 1


def test_the_migrations_of_a_removed_model_are_removed_with_it() -> None:
    in_flight = started(command(), command("two", "other"))
    assert [one.command.command_id for one in in_flight.of_model("other")] == ["two"]
    in_flight.remove_model("m")
    assert list(in_flight.open) == ["two"]


def test_the_next_wake_is_when_the_first_record_is_removed() -> None:
    in_flight = InFlightMigrations()
    assert in_flight.next_wake() is None
    in_flight.start(command("two"), 5, 500, TTL_MS, now=1_000)
    in_flight.start(command(), 5, 500, TTL_MS, now=0)
    for ended_at_ms, wake_ms in ((None, 12_000), (9_000, 13_000)):
        if ended_at_ms is not None:
            reported(in_flight, ended_at_ms, "done", moved=5)
        assert in_flight.next_wake() == wake_ms
    assert in_flight.expire(12_999) == []
    assert [one.command.command_id for one in in_flight.expire(13_000)] == ["two"]
    assert in_flight.next_wake() == 9_000 + ENDED_RETENTION_MS == 14_000
    assert in_flight.expire(13_999) == []
    assert len(in_flight.open) == 1
    assert in_flight.expire(14_000) == []
    assert not in_flight.open
