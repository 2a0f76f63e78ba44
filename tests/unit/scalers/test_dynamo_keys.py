"""Steps and transactions of Dynamo's virtual connector, from the contents of its keys."""

import pytest

from loadline.ports import StoreEntry, Write
from loadline.scalers.dynamo_keys import Counts, Step, announcement, next_step, prefix_of, read_state, repetition

PREFIX = prefix_of("ns")


def state(*written: tuple[str, str]) -> dict[str, StoreEntry]:
    """Return the entries after some puts, in this order."""
    entries = {}
    for revision, (key, value) in enumerate(written, 1):
        entries[PREFIX + key] = StoreEntry(PREFIX + key, value.encode(), revision, revision)
    return entries


PREFILL, DECODE = ("num_prefill_workers", "2"), ("num_decode_workers", "3")
WANTED = Counts(2, 3)


@pytest.mark.parametrize(
    ("written", "step"),
    [
        ([], "write"),
        ([PREFILL, DECODE, ("decision_id", "0")], "wait"),
        ([PREFILL, DECODE, ("decision_id", "0"), ("scaled_decision_id", "0")], "done"),
        ([PREFILL, DECODE, ("decision_id", "5"), ("scaled_decision_id", "4")], "wait"),
        ([("num_decode_workers", "3"), ("num_prefill_workers", "1"), ("decision_id", "5")], "wait"),
        (
            [
                ("num_decode_workers", "3"),
                ("num_prefill_workers", "1"),
                ("decision_id", "5"),
                ("scaled_decision_id", "9"),
            ],
            "write",
        ),
        # A planner died between its three puts: no client knows of these counts.
        ([("decision_id", "5"), ("scaled_decision_id", "5"), PREFILL, DECODE], "write"),
        ([PREFILL, DECODE], "write"),
        ([PREFILL, DECODE, ("decision_id", "x"), ("scaled_decision_id", "7")], "write"),
        ([PREFILL, DECODE, ("decision_id", "-1")], "write"),
        ([PREFILL, DECODE, ("decision_id", "0"), ("scaled_decision_id", "x")], "wait"),
    ],
)
def test_the_next_step_follows_from_the_keys(written: list[tuple[str, str]], step: Step) -> None:
    assert next_step(read_state(PREFIX, state(*written)), WANTED, timed_out=False) == step


def test_an_unacknowledged_decision_is_replaced_after_the_timeout_and_never_written_twice() -> None:
    read = read_state(PREFIX, state(PREFILL, DECODE, ("decision_id", "0")))
    assert next_step(read, Counts(2, 4), timed_out=False) == "wait"
    assert next_step(read, Counts(2, 4), timed_out=True) == "write"
    assert next_step(read, WANTED, timed_out=True) == "wait"


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ([], 0),
        ([("decision_id", "4"), ("scaled_decision_id", "4")], 5),
        # Otherwise the old acknowledgement would apply to the new decision.
        ([("decision_id", "1"), ("scaled_decision_id", "7")], 8),
        ([("scaled_decision_id", "7")], 8),
        ([("decision_id", "9" * 30), ("scaled_decision_id", "2")], 3),
    ],
)
def test_the_next_decision_has_an_id_that_nobody_acknowledged(written: list[tuple[str, str]], expected: int) -> None:
    _, writes = announcement(PREFIX, read_state(PREFIX, state(*written)), WANTED)
    assert Write(f"{PREFIX}decision_id", str(expected).encode()) in writes


def test_all_counts_and_the_id_are_one_transaction_on_unchanged_keys() -> None:
    read = read_state(PREFIX, state(PREFILL, DECODE, ("decision_id", "0")))
    compares, writes = announcement(PREFIX, read, Counts(0, 12))
    assert {(one.key, one.target, one.number) for one in compares} == {
        (f"{PREFIX}num_prefill_workers", "mod", 1),
        (f"{PREFIX}num_decode_workers", "mod", 2),
        (f"{PREFIX}decision_id", "mod", 3),
        (f"{PREFIX}scaled_decision_id", "mod", 0),
    }
    written = {write.key: write.value for write in writes}
    assert written == {
        f"{PREFIX}num_prefill_workers": b"0",
        f"{PREFIX}num_decode_workers": b"12",
        f"{PREFIX}decision_id": b"1",
    }


def test_a_role_without_a_pool_keeps_its_count() -> None:
    read = read_state(PREFIX, state(PREFILL, DECODE, ("decision_id", "0"), ("scaled_decision_id", "0")))
    assert next_step(read, Counts(None, 3), timed_out=False) == "done"
    _, writes = announcement(PREFIX, read, Counts(None, 4))
    assert [write.key for write in writes] == [f"{PREFIX}num_decode_workers", f"{PREFIX}decision_id"]


def test_a_repetition_changes_no_value() -> None:
    read = read_state(PREFIX, state(PREFILL, DECODE, ("decision_id", "6")))
    _, writes = repetition(PREFIX, read)
    assert writes == [Write(f"{PREFIX}decision_id", b"6")]
