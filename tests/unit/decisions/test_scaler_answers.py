"""What a scaler's answers make of the counts that are desired."""

import msgspec
import pytest

from loadline.core.controller import Controller
from loadline.core.vocabulary.decisions import Decision
from loadline.core.vocabulary.effects import RaiseAlarm
from loadline.core.vocabulary.events import DecisionAnswered, DecisionCommitted, WorkerDeregistered
from tests.support.desk import Desk, leading, make_settings


@pytest.fixture
def desk() -> Desk:
    return leading()


def growing(desk: Desk) -> Decision:
    """A committed decision to go from two to three."""
    desk.kv["m"] = 1.0
    decision = desk.commit_of(desk.pass_time(31))
    desk.tell(DecisionCommitted(decision.decision_id, "m", 90))
    assert desk.desired() == 3
    return decision


def refusal(decision: Decision) -> DecisionAnswered:
    return DecisionAnswered(decision.decision_id, "m", decision.epoch, decision.sequence, "s", "refused", {})


def test_a_refused_growth_is_no_shrink(desk: Desk) -> None:
    decision = growing(desk)
    del desk.workers["m", "b"]
    desk.tell(WorkerDeregistered("m", "decode", "b"))
    desk.tell(refusal(decision))
    assert desk.desired() == 2, "one is away for a moment: there were two, and no rail allowed a shrink"


def test_a_refusal_that_is_repeated_changes_nothing_again(desk: Desk) -> None:
    decision = growing(desk)
    alarms = [e for e in desk.tell(refusal(decision)) if isinstance(e, RaiseAlarm)]
    assert [alarm.kind for alarm in alarms] == ["decision_refused"]
    desk.register("c", models="m")
    assert desk.tell(refusal(decision)) == []
    assert desk.desired() == 2


def test_a_refusal_after_the_end_takes_nothing_back(desk: Desk) -> None:
    decision = growing(desk)
    desk.tell(msgspec.structs.replace(refusal(decision), status="done"))
    desk.tell(refusal(decision))
    assert desk.desired() == 3


def test_what_is_desired_is_never_above_the_maximum(desk: Desk) -> None:
    decision = growing(desk)
    desk.register(*(f"extra{n}" for n in range(9)), models="m")
    desk.tell(refusal(decision))
    assert desk.desired() == 8


def test_after_an_expiry_a_snapshot_knows_what_is_to_be_planned(desk: Desk) -> None:
    decision = growing(desk)
    desk.now = decision.expires_at_ms
    desk.controller.state.leadership._extend(desk.now)
    for model in desk.controller.state.fleet.models.values():
        model.plan_at_ms = desk.now + 500
    assert [e.kind for e in desk.tell() if isinstance(e, RaiseAlarm)] == ["decision_expired"]
    twin = Controller(make_settings())
    twin.restore(desk.controller.snapshot())
    assert twin.next_wake() == desk.controller.next_wake() == desk.now
    assert twin.handle([], desk.now + 1) == desk.controller.handle([], desk.now + 1)
    assert twin.snapshot() == desk.controller.snapshot()


def test_done_with_other_counts_is_not_done(desk: Desk) -> None:
    desk.kv["m"] = 1.0
    decision = desk.commit_of(desk.pass_time(31))
    desk.tell(DecisionCommitted(decision.decision_id, "m", 90))
    answer = DecisionAnswered(decision.decision_id, "m", decision.epoch, decision.sequence, "s", "done", {"decode": 99})
    desk.tell(answer)
    assert desk.controller.state.ledger.live, "still announced"
    desk.tell(msgspec.structs.replace(answer, observed={t.pool: t.replicas for t in decision.targets}))
    assert not desk.controller.state.ledger.live
