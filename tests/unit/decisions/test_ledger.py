"""Ledger of decisions, from proposal to application."""

import pytest
from msgspec.structs import replace

from loadline.core.decisions.ledger import Ledger, decision_id
from loadline.core.vocabulary.decisions import ApplyStatus
from loadline.core.vocabulary.effects import AnnounceDecision, RaiseAlarm
from loadline.core.vocabulary.rejections import Rejection
from tests.support.ledgers import EPOCH, KNOBS, READ_AT, T0, answer, committed, propose, proposed, stored, targets

# -- proposing and committing ------------------------------------------------------------------------------------------


def test_an_id_depends_on_model_epoch_and_sequence() -> None:
    ids = {decision_id(model, epoch, sequence) for model in ("m", "n") for epoch in (1, 2) for sequence in (1, 2)}
    assert len(ids) == 8
    assert decision_id("m", 1, 1) == "39e2a37e30634763", "also in other versions of the agent"
    assert decision_id("m", 1, 1) == decision_id("m", 1, 1)


def test_a_proposal_has_all_fields_for_scalers() -> None:
    ledger, _, decision = proposed()
    assert (decision.epoch, decision.sequence, decision.issued_at_ms) == (EPOCH, 1, T0)
    assert (decision.expires_at_ms, decision.drain_ttl_ms) == (T0 + 60_000, 600_000)
    effect = ledger.commit_effect("m", "all", 7)
    assert (effect.decision, effect.scope, effect.expected_revision) == (decision, "all", 0)
    assert ledger.next_wake() is None, "nothing is announced before its commit"


def test_a_commit_expects_the_last_known_revision() -> None:
    ledger, _, decision = committed()
    ledger.record_answer(answer(decision, "done"), T0)
    second = propose(ledger)
    assert second.sequence == 2
    assert ledger.commit_effect("m", "all", 7).expected_revision == 90


@pytest.mark.parametrize("model", ["m", "n"])
def test_results_of_other_decisions_are_ignored(model: str) -> None:
    ledger, entry, decision = committed()
    assert ledger.confirm_commit(decision.decision_id, model, 91, T0) is None
    assert not ledger.drop_pending(decision.decision_id, model, T0)
    assert not ledger.mark_unknown(decision.decision_id, model)
    assert (entry.state, entry.revision, entry.not_before_ms) == ("committed", 90, 0)


def test_results_of_an_earlier_proposal_are_ignored() -> None:
    ledger, entry, first = proposed()
    ledger.drop_pending(first.decision_id, "m", T0)
    second = propose(ledger)
    assert ledger.confirm_commit(first.decision_id, "m", 90, T0) is None
    assert not ledger.drop_pending(first.decision_id, "m", T0)
    assert not ledger.mark_unknown(first.decision_id, "m")
    assert entry.pending is second


def test_a_refused_commit_backs_off_and_its_sequence_stays_used() -> None:
    ledger, entry, decision = proposed()
    assert ledger.drop_pending(decision.decision_id, "m", T0)
    assert (entry.pending, entry.not_before_ms) == (None, T0 + 5_000)
    assert propose(ledger).sequence == 2


def test_the_back_off_doubles_up_to_its_maximum_until_a_success() -> None:
    ledger = Ledger(KNOBS)
    waits = []
    for _ in range(6):
        ledger.drop_pending(propose(ledger).decision_id, "m", T0)
        waits.append(ledger.entries["m"].not_before_ms - T0)
    assert waits == [5_000, 10_000, 20_000, 30_000, 30_000, 30_000]
    decision = propose(ledger)
    ledger.confirm_commit(decision.decision_id, "m", 90, T0)
    ledger.record_answer(answer(decision, "done"), T0)
    ledger.drop_pending(propose(ledger).decision_id, "m", T0)
    assert ledger.entries["m"].not_before_ms == T0 + 5_000


# -- announcing --------------------------------------------------------------------------------------------------------


def announced(ledger: Ledger, now: int) -> int | None:
    effects = ledger.tick("m", now)
    assert len(effects) <= 1
    if not effects:
        return None
    assert isinstance(effects[0], AnnounceDecision)
    return effects[0].ttl_ms


def test_a_decision_is_announced_until_it_is_accepted() -> None:
    ledger, _, _ = committed()
    assert ledger.next_wake() == T0
    assert announced(ledger, T0) == 60_000
    assert ledger.next_wake() == T0 + 1_000
    assert announced(ledger, T0 + 999) is None
    assert announced(ledger, T0 + 1_000) == 59_000


@pytest.mark.parametrize("status", ["accepted", "progress"])
def test_an_accepted_decision_is_announced_less_often(status: ApplyStatus) -> None:
    ledger, entry, decision = committed()
    announced(ledger, T0)
    assert ledger.record_answer(answer(decision, status), T0 + 500) == (None, [])
    assert entry.state == "accepted"
    assert announced(ledger, T0 + 10_499) is None
    assert announced(ledger, T0 + 10_500) == 49_500
    assert ledger.next_wake() == T0 + 20_500
    ledger.record_answer(answer(decision, "progress"), T0 + 20_000)
    assert ledger.next_wake() == T0 + 20_500, "progress does not delay the announcement"


def test_a_decision_that_is_no_longer_announced_stays_in_force_and_has_ended() -> None:
    ledger, entry, decision = committed()
    ledger.stop_announcing("m")
    assert ledger.next_wake() is None
    assert (entry.decision, ledger.is_open("m")) == (decision, False)
    assert ledger.record_answer(answer(decision, "refused"), T0) == (None, []), "it is no failure any more"


def test_an_applied_decision_is_not_announced() -> None:
    ledger, entry, decision = committed()
    assert ledger.record_answer(answer(decision, "done"), T0) == (None, [])
    assert (entry.state, ledger.next_wake()) == ("applied", None)
    assert announced(ledger, T0 + 50_000) is None


def test_an_applied_decision_that_a_scaler_requests_is_announced_three_times() -> None:
    ledger, entry, decision = committed()
    ledger.record_answer(answer(decision, "done"), T0)
    assert ledger.announce_again("m", T0 + 5_000)
    assert announced(ledger, T0 + 5_000) == 55_000
    assert announced(ledger, T0 + 5_999) is None
    assert announced(ledger, T0 + 6_000) == 54_000
    assert ledger.next_wake() == T0 + 7_000
    assert announced(ledger, T0 + 7_000) == 53_000
    assert (entry.state, ledger.next_wake(), announced(ledger, T0 + 8_000)) == ("applied", None, None)


def test_an_applied_decision_is_not_announced_after_its_expiry() -> None:
    ledger, _, decision = committed()
    ledger.record_answer(answer(decision, "done"), T0)
    assert ledger.announce_again("m", T0 + 59_500)
    assert announced(ledger, T0 + 59_500) == 500
    assert ledger.next_wake() == T0 + 60_000
    assert announced(ledger, T0 + 60_000) is None
    assert ledger.next_wake() is None
    assert not ledger.announce_again("m", T0 + 60_000)


def test_a_refused_decision_is_not_announced_again() -> None:
    ledger, entry, decision = committed()
    ledger.record_answer(replace(answer(decision, "refused"), detail="no quota"), T0)
    assert not ledger.announce_again("m", T0 + 1)
    assert ledger.next_wake() is None
    ledger.record_answer(replace(answer(decision, "done"), detail="done after all"), T0 + 2)
    assert (entry.state, entry.detail) == ("refused", "no quota")


def test_the_next_wake_is_that_of_the_first_model() -> None:
    ledger, _, _ = committed()
    second = ledger.propose("n", targets(), ("why",), EPOCH, 600_000, T0)
    ledger.confirm_commit(second.decision_id, "n", 91, T0 + 300)
    assert announced(ledger, T0) == 60_000
    assert ledger.next_wake() == T0 + 300
    ledger.tick("n", T0 + 300)
    assert ledger.next_wake() == T0 + 1_000


@pytest.mark.parametrize(("accepted", "word"), [(False, "not accepted"), (True, "not finished")])
def test_a_decision_expires_with_an_alarm(*, accepted: bool, word: str) -> None:
    ledger, entry, decision = committed()
    if accepted:
        ledger.record_answer(answer(decision, "accepted"), T0)
    assert announced(ledger, T0 + 59_999) == 1
    (alarm,) = ledger.tick("m", T0 + 60_000)
    assert isinstance(alarm, RaiseAlarm)
    assert (alarm.kind, word in alarm.text) == ("decision_expired", True)
    assert (entry.state, entry.not_before_ms, ledger.next_wake()) == ("expired", T0 + 65_000, None)
    assert ledger.tick("m", T0 + 60_001) == []


def test_a_clock_that_is_ahead_does_not_extend_a_decision() -> None:
    ledger = Ledger(KNOBS)
    ledger.load([stored(30, 4, 200, now=T0 + 3_600_000)], READ_AT, T0)
    assert announced(ledger, T0) == 60_000
    assert announced(ledger, T0 + 59_999) == 1
    assert [type(effect) for effect in ledger.tick("m", T0 + 60_000)] == [RaiseAlarm]
    assert ledger.entries["m"].state == "expired"
    assert not ledger.announce_again("m", T0 + 60_001)


# -- answers -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("detail", "said"), [("no quota", "no quota"), ("", "no reason given")])
def test_a_refused_decision_ends_with_an_alarm_and_a_back_off(detail: str, said: str) -> None:
    ledger, entry, decision = committed()
    rejection, effects = ledger.record_answer(replace(answer(decision, "refused"), detail=detail), T0)
    assert rejection is None
    assert effects == [RaiseAlarm("decision_refused", "m", f"s refused {decision.decision_id}: {said}")]
    assert (entry.state, entry.not_before_ms, ledger.next_wake()) == ("refused", T0 + 5_000, None)
    assert ledger.record_answer(answer(decision, "refused"), T0 + 9_000) == (None, []), "a repetition has no effect"
    assert entry.not_before_ms == T0 + 5_000


@pytest.mark.parametrize("status", ["accepted", "refused", "done"])
@pytest.mark.parametrize("other", [{"epoch": EPOCH - 1}, {"sequence": 2}])
def test_an_answer_with_other_numbers_is_rejected(status: ApplyStatus, other: dict[str, int]) -> None:
    ledger, entry, decision = committed()
    assert ledger.record_answer(answer(decision, status, **other), T0) == (Rejection.UNKNOWN_DECISION, [])
    assert entry.state == "committed"


def test_an_answer_without_a_decision_is_rejected() -> None:
    _, _, decision = committed()
    assert Ledger(KNOBS).record_answer(answer(decision, "done"), T0) == (Rejection.UNKNOWN_DECISION, [])


def test_victims_are_selected_again_once_until_a_decision_is_applied() -> None:
    ledger, _, decision = committed()
    assert ledger.select_again(answer(decision, "accepted"))
    assert not ledger.select_again(answer(decision, "accepted"))
    ledger.record_answer(answer(decision, "done"), T0)
    assert not ledger.select_again(answer(decision, "done")), "its workers have been removed"
    second = propose(ledger)
    ledger.confirm_commit(second.decision_id, "m", 91, T0)
    ledger.record_answer(answer(second, "done"), T0)
    assert ledger.select_again(answer(second, "progress"))


@pytest.mark.parametrize(
    ("status", "epoch", "blocked"),
    [
        ("accepted", EPOCH, True),
        ("done", EPOCH, False),
        ("refused", EPOCH, False),
        (None, EPOCH, False),  # the next decision of the same leader replaces one that no scaler has seen
        (None, EPOCH + 1, True),
        ("done", EPOCH + 1, False),
        ("refused", EPOCH + 1, False),
    ],
)
def test_only_a_decision_that_a_scaler_may_be_applying_blocks(
    status: ApplyStatus | None, epoch: int, *, blocked: bool
) -> None:
    ledger, _, decision = committed()
    ledger.knobs = replace(KNOBS, blocking=True)
    if status:
        ledger.record_answer(answer(decision, status), T0)
    assert ledger.blocks("m", epoch) is blocked
    assert not ledger.blocks("other", epoch)
    if blocked:
        ledger.select_again(answer(decision, "progress"))
        assert not ledger.blocks("m", epoch), "another decision follows with other victims"


@pytest.mark.parametrize("status", ["accepted", "progress", "refused"])
def test_answers_after_the_end_are_ignored(status: ApplyStatus) -> None:
    ledger, entry, decision = committed()
    ledger.record_answer(answer(decision, "done"), T0)
    assert ledger.record_answer(answer(decision, status), T0) == (None, [])
    assert entry.state == "applied"
