"""Ledger of decisions: what is read back from the store, lost or forgotten."""

import pytest

from loadline.core.decisions.ledger import Ledger
from loadline.core.vocabulary.decisions import StoredDecision
from tests.support.ledgers import EPOCH, KNOBS, READ_AT, T0, answer, committed, propose, proposed, stored

# -- reading back ------------------------------------------------------------------------------------------------------


def test_an_unknown_commit_stays_pending_until_it_is_read_back() -> None:
    ledger, entry, decision = proposed()
    assert ledger.mark_unknown(decision.decision_id, "m")
    assert entry.pending is decision


def test_an_unknown_commit_found_in_the_store_is_in_force() -> None:
    ledger, entry, decision = proposed()
    ledger.mark_unknown(decision.decision_id, "m")
    assert ledger.load([StoredDecision(decision, 95)], READ_AT, T0 + 1) == [decision]
    assert (entry.state, entry.revision, entry.pending, entry.not_before_ms) == ("committed", 95, None, 0)
    assert ledger.confirm_commit(decision.decision_id, "m", 95, T0 + 2) is None


def test_an_unknown_commit_missing_in_the_store_is_dropped() -> None:
    ledger, entry, decision = proposed()
    ledger.mark_unknown(decision.decision_id, "m")
    assert ledger.load([], READ_AT, T0 + 1) == []
    assert (entry.pending, entry.not_before_ms, entry.revision) == (None, T0 + 5_001, 0)
    assert propose(ledger).sequence == decision.sequence + 1


def test_a_read_does_not_drop_a_commit_in_progress() -> None:
    ledger, entry, decision = proposed()
    ledger.load([], READ_AT, T0 + 1)
    assert entry.pending is decision
    assert ledger.confirm_commit(decision.decision_id, "m", 90, T0 + 2) == decision


def test_a_read_does_not_drop_the_commit_that_follows_an_unknown_one() -> None:
    ledger, entry, decision = proposed()
    ledger.mark_unknown(decision.decision_id, "m")
    ledger.load([], READ_AT, T0 + 1)
    second = propose(ledger)
    ledger.load([], READ_AT, T0 + 2)
    assert entry.pending is second


def test_a_decision_of_another_leader_is_adopted() -> None:
    ledger, entry, _ = committed()
    other = stored(50, 9, 400)
    assert ledger.load([other], READ_AT, T0 + 1) == [other.decision]
    assert (entry.revision, entry.sequence, entry.state) == (400, 9, "committed")
    assert propose(ledger, epoch=60).sequence == 10


def test_a_known_decision_updates_only_its_revision() -> None:
    ledger, entry, decision = committed()
    ledger.record_answer(answer(decision, "accepted"), T0)
    assert ledger.load([StoredDecision(decision, 97)], READ_AT, T0 + 1) == []
    assert (entry.state, entry.revision) == ("accepted", 97)


def test_a_read_that_is_older_than_a_commit_changes_nothing() -> None:
    ledger, entry, decision = committed()
    assert ledger.load([stored(30, 4, 50)], 89, T0 + 1) == []
    assert (entry.decision, entry.revision) == (decision, 90)
    ledger.load([], 89, T0 + 2)
    assert entry.revision == 90


@pytest.mark.parametrize("revision", [90, READ_AT])
def test_a_deleted_key_can_be_created_again(revision: int) -> None:
    ledger, entry, _ = committed()
    ledger.load([], revision, T0)
    assert entry.revision == 0
    assert propose(ledger).sequence == 2, "the sequence continues"


def test_a_read_at_the_revision_of_a_commit_counts() -> None:
    ledger, entry, _ = committed()
    other = stored(50, 9, 90)
    assert ledger.load([other], 90, T0 + 1) == [other.decision]
    assert entry.decision == other.decision


def test_an_expired_decision_of_another_leader_ends_the_announcements_of_an_earlier_one() -> None:
    ledger, entry, _ = committed()
    assert ledger.load([stored(50, 9, 400, now=T0 - 60_000)], READ_AT, T0)
    assert (entry.state, ledger.next_wake()) == ("applied", None)


def test_an_expired_decision_is_loaded_and_not_announced() -> None:
    ledger = Ledger(KNOBS)
    old = stored(30, 4, 200, now=T0 - 60_000)
    assert ledger.load([old], READ_AT, T0) == [old.decision]
    assert ledger.entries["m"].state == "applied"
    assert ledger.next_wake() is None
    assert ledger.tick("m", T0) == []


@pytest.mark.parametrize(
    ("revisions", "revision", "lost"),
    [
        ({"m": 90}, 90, False),
        ({"m": 95}, 95, False),
        ({}, 89, False),  # it was committed after the read was served
        ({}, 90, True),
        ({"m": 50}, 90, True),
        ({"n": 95}, 95, True),
    ],
)
def test_a_decision_that_a_later_read_does_not_have_is_lost(
    revisions: dict[str, int], revision: int, *, lost: bool
) -> None:
    ledger, _, _ = committed()
    assert ledger.has_lost(revisions, revision) is lost


@pytest.mark.parametrize(
    ("found", "revision", "unstored"),
    [(None, 89, False), (None, 90, True), ((EPOCH, 1), 90, False), ((EPOCH, 2), 95, False), ((EPOCH - 1, 9), 95, True)],
)
def test_a_decision_that_is_newer_than_the_one_in_the_store_is_unstored(
    found: tuple[int, int] | None, revision: int, *, unstored: bool
) -> None:
    ledger, _, _ = committed()
    read = [stored(*found, revision)] if found else []
    assert ledger.unstored(read, revision) == (["m"] if unstored else [])


# -- forgetting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epoch", "forgotten"), [(EPOCH - 1, False), (EPOCH, False), (EPOCH + 1, True)])
def test_a_new_leader_forgets_the_decisions_of_earlier_terms(epoch: int, *, forgotten: bool) -> None:
    ledger, _, decision = committed()
    assert ledger.forget_before("m", epoch) is forgotten
    entry = ledger.entries["m"]
    assert (entry.decision, entry.revision, entry.sequence) == (None if forgotten else decision, 90, 1)
    assert ledger.next_wake() == (None if forgotten else T0)
    assert not forgotten or not ledger.forget_before("m", epoch), "there is none any more"


def test_a_removed_model_has_no_decision_and_its_sequence_continues() -> None:
    ledger, _, _ = committed()
    ledger.retire("m")
    assert (ledger.next_wake(), ledger.tick("m", T0), ledger.is_open("m"), ledger.live) == (None, [], False, {})
    assert propose(ledger).sequence == 2
    assert ledger.commit_effect("m", "all", 7).expected_revision == 90


def test_a_model_without_decisions_can_be_removed_and_has_none_to_announce() -> None:
    ledger = Ledger(KNOBS)
    ledger.retire("m")
    assert not ledger.entries
    assert (ledger.is_open("m"), ledger.unaccepted("m"), ledger.next_wake()) == (False, None, None)
    assert not ledger.announce_again("m", T0)
    assert (ledger.is_open("m"), ledger.unaccepted("m"), ledger.next_wake()) == (False, None, None)
