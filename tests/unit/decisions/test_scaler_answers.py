"""Effect of scalers' answers on the desired counts."""

import msgspec
import pytest

from loadline.client.fence import CountsInForce, DecisionFence, Freshness
from loadline.core.controller import Controller
from loadline.core.vocabulary.decisions import Decision, PoolTarget
from loadline.core.vocabulary.effects import AnnounceDecision, CommitDecision, RaiseAlarm
from loadline.core.vocabulary.events import (
    AnnouncementRequested,
    DecisionAnswered,
    DecisionCommitted,
    WorkerDeregistered,
)
from tests.support.controller_harness import ControllerHarness, leading, make_settings
from tests.support.decisions import decision as announced


@pytest.fixture
def harness() -> ControllerHarness:
    return leading()


def growing(harness: ControllerHarness) -> Decision:
    """Return a committed decision that scales up from two to three workers."""
    harness.kv["m"] = 1.0
    decision = harness.commit_of(harness.advance(31))
    harness.handle(DecisionCommitted(decision.decision_id, "m", 90))
    assert harness.desired() == 3
    return decision


def growing_again(harness: ControllerHarness) -> Decision:
    """Return the decision that follows a refused one, committed."""
    for _ in range(60):
        commits = [one for one in harness.advance(1) if isinstance(one, CommitDecision)]
        if commits:
            harness.handle(DecisionCommitted(commits[0].decision.decision_id, "m", 91))
            return commits[0].decision
    raise AssertionError("the leader decides no more")


def refusal(decision: Decision) -> DecisionAnswered:
    return DecisionAnswered(decision.decision_id, "m", decision.epoch, decision.sequence, "s", "refused", {})


def unknown(counts: CountsInForce, decision: Decision) -> dict[str, int]:
    """Return the counts in force that the leader of a decision does not know."""
    return counts.unknown_to(announced(decision.epoch, decision.sequence, *decision.targets))


def test_a_refused_scale_up_does_not_scale_down(harness: ControllerHarness) -> None:
    decision = growing(harness)
    del harness.workers["m", "b"]
    harness.handle(WorkerDeregistered("m", "decode", "b"))
    harness.handle(refusal(decision))
    assert harness.desired() == 2, "one worker is missing for a moment; no guardrail allowed fewer than two"


def test_a_leader_goes_on_from_the_counts_that_its_scaler_keeps(harness: ControllerHarness) -> None:
    """Another leader decided on six workers, and etcd has lost it: two of them have registered."""
    decision = growing(harness)
    effects = harness.handle(msgspec.structs.replace(refusal(decision), in_force={"decode": 6, "elsewhere": 4}))
    assert [effect.kind for effect in effects if isinstance(effect, RaiseAlarm)] == ["decision_refused"]
    assert harness.desired() == 6
    pool = harness.controller.state.fleet.models["m"].pools["decode"]
    assert (pool.worker_counts(harness.now).pending, pool.start_ups_ms) == (4, [])
    harness.kv["m"] = 0.7
    again = harness.commit_of(harness.advance(10))
    assert [(t.previous, t.replicas) for t in again.targets] == [(6, 6)], "the next leader reads it from etcd"
    assert again.reasons[0] == "decided_again"


def test_counts_above_the_maximum_are_known_to_the_next_decision_which_cancels_them(harness: ControllerHarness) -> None:
    """A platform has twelve replicas, two of which have registered; eight are allowed."""
    decision = growing(harness)
    counts = CountsInForce()
    counts.record_existing("m", "decode", 12)
    assert unknown(counts, decision) == {"decode": 12}
    harness.handle(msgspec.structs.replace(refusal(decision), in_force={"decode": 12}))
    again = harness.commit_of(harness.advance(10))
    assert [(t.previous, t.replicas) for t in again.targets] == [(12, 8)]
    assert unknown(counts, again) == {}, "or no decision would ever be accepted"


def test_a_scaler_cannot_claim_more_workers_than_may_register(harness: ControllerHarness) -> None:
    decision = growing(harness)
    harness.handle(msgspec.structs.replace(refusal(decision), in_force={"decode": 10_000}))
    assert harness.desired() == 2 * 8 + 64
    again = harness.commit_of(harness.advance(10))
    assert [t.replicas for t in again.targets] == [8], "nor is more than the maximum requested"


def test_a_claim_that_is_not_believed_raises_an_alarm_with_the_remedy(harness: ControllerHarness) -> None:
    """The scaler refuses whatever starts from fewer, so nothing but an operator ends this."""
    decision = growing(harness)
    effects = harness.handle(msgspec.structs.replace(refusal(decision), in_force={"decode": 10_000}))
    (alarm,) = [one for one in effects if isinstance(one, RaiseAlarm) and one.kind == "claim_refused"]
    assert alarm.model == "m"
    assert alarm.text == (
        "s keeps 10000 replicas of pool decode, and no more than 80 are believed (2 * replicas_max + 64): it refuses "
        "every decision until it keeps fewer"
    )
    (shown,) = [one for one in harness.controller.state.alarms.recent(harness.now) if one.kind == "claim_refused"]
    assert "restart the scaler" in shown.action
    assert "replicas_max" in shown.action
    believed = msgspec.structs.replace(refusal(growing_again(harness)), in_force={"decode": 80})
    assert [e.kind for e in harness.handle(believed) if isinstance(e, RaiseAlarm)] == ["decision_refused"]


def test_a_scaler_that_saw_a_forged_number_accepts_the_leader_again_within_two_minutes(
    harness: ControllerHarness,
) -> None:
    fence, counts, began = DecisionFence(), CountsInForce(), harness.now
    fence.classify(announced(2**53, 2**53), harness.now / 1_000)
    counts.accept(announced(2**53, 2**53, PoolTarget("decode", "decode", 7, 2)), (2**53, 2**53))
    decision = growing(harness)
    while fence.classify(announced(decision.epoch, decision.sequence), harness.now / 1_000) is Freshness.STALE:
        harness.handle(msgspec.structs.replace(refusal(decision), in_force=counts.of("m")))
        decision = growing_again(harness)
        while (ask_at_s := fence.next_ask_s()) is not None and ask_at_s <= harness.now / 1_000:
            for model in fence.to_ask(ask_at_s):
                fence.record_answer(model, ask_at_s)
        assert harness.now - began <= 120_000
    assert unknown(counts, decision) == {}


def test_a_repeated_refusal_changes_nothing(harness: ControllerHarness) -> None:
    decision = growing(harness)
    alarms = [e for e in harness.handle(refusal(decision)) if isinstance(e, RaiseAlarm)]
    assert [alarm.kind for alarm in alarms] == ["decision_refused"]
    harness.register("c", models="m")
    assert harness.handle(refusal(decision)) == []
    assert harness.desired() == 2


def test_a_refusal_after_the_end_is_ignored(harness: ControllerHarness) -> None:
    decision = growing(harness)
    harness.handle(msgspec.structs.replace(refusal(decision), status="done"))
    harness.handle(refusal(decision))
    assert harness.desired() == 3


def test_what_happens_to_the_workers_of_an_applied_decision_is_kept(harness: ControllerHarness) -> None:
    decision = growing(harness)
    done = msgspec.structs.replace(refusal(decision), status="done")
    entry = harness.controller.state.ledger.entry("m")
    for detail in ("decode: b exited with code 1", "", "decode: it needs a GPU"):
        harness.handle(msgspec.structs.replace(done, detail=detail))
        assert (entry.state, entry.detail) == ("applied", detail)
    harness.handle(refusal(decision))
    assert (entry.state, entry.detail) == ("applied", "decode: it needs a GPU")


def test_workers_that_nobody_requested_do_not_become_desired(harness: ControllerHarness) -> None:
    decision = growing(harness)
    harness.register(*(f"extra{n}" for n in range(9)), models="m")
    harness.handle(refusal(decision))
    assert harness.desired() == 3


def test_a_snapshot_after_an_expiry_has_the_next_planning_time(harness: ControllerHarness) -> None:
    decision = growing(harness)
    harness.now = decision.expires_at_ms
    harness.controller.state.leadership._extend(harness.now)
    for model in harness.controller.state.fleet.models.values():
        model.plan_at_ms = harness.now + 500
    assert [e.kind for e in harness.handle() if isinstance(e, RaiseAlarm)] == ["decision_expired"]
    restored = Controller(make_settings())
    restored.restore(harness.controller.snapshot())
    assert restored.next_wake() == harness.controller.next_wake() == harness.now
    assert restored.handle([], harness.now + 1) == harness.controller.handle([], harness.now + 1)
    assert restored.snapshot() == harness.controller.snapshot()


def test_done_with_other_counts_does_not_close_the_decision(harness: ControllerHarness) -> None:
    harness.kv["m"] = 1.0
    decision = harness.commit_of(harness.advance(31))
    harness.handle(DecisionCommitted(decision.decision_id, "m", 90))
    answer = DecisionAnswered(decision.decision_id, "m", decision.epoch, decision.sequence, "s", "done", {"decode": 99})
    harness.handle(answer)
    assert harness.controller.state.ledger.live, "still announced"
    harness.handle(msgspec.structs.replace(answer, observed={t.pool: t.replicas for t in decision.targets}))
    assert not harness.controller.state.ledger.live


@pytest.mark.parametrize("accepted", [False, True])
def test_a_decision_that_no_scaler_accepted_is_shown_as_superseded(
    harness: ControllerHarness, *, accepted: bool
) -> None:
    first = growing(harness)
    if accepted:
        harness.handle(msgspec.structs.replace(refusal(first), status="accepted"))
    harness.register("c", models="m")
    second = harness.commit_of(harness.advance(61))
    harness.handle(DecisionCommitted(second.decision_id, "m", 91))
    state = harness.controller.state
    shown = {one.decision_id: one.superseded_by for one in state.explanations.of_model("m")}
    assert shown == {first.decision_id: "" if accepted else second.decision_id, second.decision_id: ""}
    assert state.counters.get("decisions_superseded", 0) == (0 if accepted else 1)


def test_the_end_of_a_repeated_announcement_changes_no_desired_count(harness: ControllerHarness) -> None:
    decision = growing(harness)
    harness.register("c", models="m")
    harness.handle(msgspec.structs.replace(refusal(decision), status="done"))
    del harness.workers["m", "b"]
    harness.handle(WorkerDeregistered("m", "decode", "b"), AnnouncementRequested("m", "restarted"))
    announced = [effect for effect in harness.advance(5) if isinstance(effect, AnnounceDecision)]
    assert announced, "a scaler that starts again requests what it may have applied already"
    assert not harness.controller.state.ledger.live
    assert harness.desired() == 3, "the scaler replaces the worker that failed"
