"""Decisions of a controller over several terms of leadership, with late, repeated and reordered events."""

from typing import get_args

import pytest

from loadline.core.controller import HANDLERS
from loadline.core.vocabulary.decisions import Decision, PoolTarget, StoredDecision
from loadline.core.vocabulary.effects import (
    AnnounceDecision,
    AnyEffect,
    Campaign,
    CommitDecision,
    RaiseAlarm,
    ReadDecisions,
    Resign,
    SendDrain,
)
from loadline.core.vocabulary.events import (
    AnyEvent,
    BusConnectionChanged,
    CommitRefused,
    CommitUnknown,
    DecisionCommitted,
    DecisionsRead,
    DrainAnswered,
    DrainRequested,
    LeaderChanged,
    LeadershipWon,
    LoadReported,
    RegistryRead,
    SettingsChanged,
    ShutdownRequested,
    WorkerDeregistered,
    WorkerDrained,
)
from loadline.core.vocabulary.samples import RegisteredWorker
from tests.support.controller_harness import READ_AT, ControllerHarness, leading
from tests.support.controller_world import scaler_answer
from tests.support.fleet_harness import sample


@pytest.fixture
def harness() -> ControllerHarness:
    return leading()


def shrinking(harness: ControllerHarness) -> tuple[Decision, str]:
    """A committed decision with a victim."""
    harness.kv["m"] = 0.1
    decision = harness.commit_of(harness.advance(31))
    victim = decision.targets[0].victims[0].worker
    harness.kv["m"] = 0.7
    return decision, victim


def drains(effects: list[AnyEffect]) -> list[str]:
    return [e.worker for e in effects if isinstance(e, SendDrain)]


def test_every_event_has_a_handler() -> None:
    by_the_controller = {SettingsChanged, LoadReported}  # planners change with settings, and loads come in runs
    assert HANDLERS.keys() | by_the_controller == set(get_args(AnyEvent))


def test_a_leader_of_a_new_term_continues_its_drains(harness: ControllerHarness) -> None:
    decision, victim = shrinking(harness)
    harness.handle(DecisionCommitted(decision.decision_id, "m", 90))
    assert drains(harness.handle(scaler_answer(decision))) == [victim]
    harness.lose_lease()
    assert harness.controller.state.drains.open == {}
    assert drains(harness.become_leader(StoredDecision(decision, 90))) == [victim]


def test_a_commit_confirmed_after_resigning_drains_no_worker(harness: ControllerHarness) -> None:
    decision, victim = shrinking(harness)
    harness.lose_lease()
    assert drains(harness.handle(DecisionCommitted(decision.decision_id, "m", 90))) == []
    assert harness.controller.state.drains.open == {}
    assert harness.controller.state.fleet.models["m"].pools["decode"].ready == 2, "the next leader removes the worker"
    assert drains(harness.handle(scaler_answer(decision))) == []
    assert drains(harness.become_leader(StoredDecision(decision, 90))) == []
    assert drains(harness.handle(scaler_answer(decision))) == [victim]


def test_victims_that_register_after_the_read_of_decisions_are_drained() -> None:
    earlier = ControllerHarness()
    earlier.handle(BusConnectionChanged(connected=True), RegistryRead([]))
    earlier.register("a", "b")
    earlier.become_leader()
    decision, victim = shrinking(earlier)
    late = ControllerHarness()
    late.now = earlier.now
    late.handle(BusConnectionChanged(connected=True))
    assert drains(late.become_leader(StoredDecision(decision, 90))) == []
    assert drains(late.handle(scaler_answer(decision))) == []
    registry = [RegisteredWorker(record, 5) for record in earlier.workers.values()]
    assert drains(late.handle(RegistryRead(registry))) == [victim]


def test_a_requested_drain_ends_with_the_term_before_the_read_of_decisions() -> None:
    harness = ControllerHarness()
    harness.handle(BusConnectionChanged(connected=True), RegistryRead([]))
    harness.register("a")
    harness.handle(LeadershipWon("all", 20, 7, harness.now, 20))
    assert drains(harness.handle(DrainRequested("m", "decode", "a", "me"))) == ["a"]
    harness.lose_lease()
    assert harness.controller.state.drains.open == {}
    harness.handle(WorkerDeregistered("m", "decode", "a"))
    assert harness.controller.state.fleet.models["m"].pools["decode"].workers == {}


def test_a_drained_worker_that_leaves_frees_its_place(harness: ControllerHarness) -> None:
    decision, victim = shrinking(harness)
    harness.handle(DecisionCommitted(decision.decision_id, "m", 90), scaler_answer(decision))
    harness.handle(DrainAnswered("m", "decode", victim, decision.decision_id, accepted=True))
    harness.handle(WorkerDrained("m", "decode", victim, 1))
    harness.handle(WorkerDeregistered("m", "decode", victim))
    assert harness.controller.state.fleet.models["m"].pools["decode"].draining_workers() == 0


def test_an_unreachable_bus_fails_no_drain(harness: ControllerHarness) -> None:
    decision, victim = shrinking(harness)
    harness.handle(DecisionCommitted(decision.decision_id, "m", 90), scaler_answer(decision))
    harness.handle(DrainAnswered("m", "decode", victim, decision.decision_id, accepted=True))
    harness.handle(WorkerDeregistered("m", "decode", victim))
    harness.handle(BusConnectionChanged(connected=False))
    for _ in range(7):
        harness.now += 1_000
        harness.handle()
    harness.handle(BusConnectionChanged(connected=True))
    assert len(harness.controller.state.drains.open) == 1
    harness.now += 5_001
    harness.controller.state.leadership._extend(harness.now)
    harness.handle()
    assert [f.ending for f in harness.controller.state.drains.finished] == ["died"]


def test_a_pending_read_does_not_answer_a_later_unknown_commit(harness: ControllerHarness) -> None:
    harness.kv = {"m": 1.0, "n": 1.0}
    effects = harness.advance(31)
    first, second = harness.commit_of(effects, "m"), harness.commit_of(effects, "n")
    (early,) = [e for e in harness.handle(CommitUnknown(first.decision_id, "m")) if isinstance(e, ReadDecisions)]
    (late,) = [e for e in harness.handle(CommitUnknown(second.decision_id, "n")) if isinstance(e, ReadDecisions)]
    harness.handle(DecisionsRead(early.request, [], READ_AT))
    assert harness.controller.state.ledger.entries["n"].pending is not None
    harness.handle(DecisionsRead(late.request, [StoredDecision(second, 95)], READ_AT))
    assert harness.controller.state.ledger.entries["n"].pending is None
    assert harness.desired("n") == 3
    assert harness.desired("m") is None


def test_the_answer_to_a_read_of_an_earlier_term_is_ignored(harness: ControllerHarness) -> None:
    harness.lose_lease()
    (early,) = [e for e in harness.handle(LeadershipWon("all", 50, 7, harness.now, 50)) if isinstance(e, ReadDecisions)]
    harness.lose_lease()
    effects = harness.handle(LeadershipWon("all", 60, 7, harness.now, 60), DecisionsRead(early.request, [], READ_AT))
    assert not harness.controller.state.decisions_read
    (late,) = [e for e in effects if isinstance(e, ReadDecisions)]
    harness.handle(DecisionsRead(late.request, [], READ_AT))
    assert harness.controller.state.decisions_read


def test_a_commit_of_an_earlier_term_delays_no_decision(harness: ControllerHarness) -> None:
    harness.kv["m"] = 1.0
    decision = harness.commit_of(harness.advance(31))
    harness.lose_lease()
    harness.become_leader()
    assert harness.handle(CommitUnknown(decision.decision_id, "m")) == [], (
        "its epoch has ended, so it cannot be committed any more"
    )
    assert commits(harness.advance(40)) == 1


def test_a_read_older_than_a_commit_reverts_no_decision(harness: ControllerHarness) -> None:
    harness.kv = {"m": 1.0, "n": 1.0}
    effects = harness.advance(31)
    first, second = harness.commit_of(effects, "m"), harness.commit_of(effects, "n")
    (read,) = [e for e in harness.handle(CommitUnknown(first.decision_id, "m")) if isinstance(e, ReadDecisions)]
    harness.handle(DecisionCommitted(second.decision_id, "n", 300))
    harness.handle(DecisionsRead(read.request, [], 299))
    assert harness.controller.state.ledger.entries["n"].revision == 300
    assert harness.desired("n") == 3


def commits(effects: list[AnyEffect]) -> int:
    return sum(isinstance(effect, CommitDecision) for effect in effects)


def test_a_model_has_at_most_one_uncommitted_decision(harness: ControllerHarness) -> None:
    harness.kv["m"] = 1.0
    decision = harness.commit_of(harness.advance(31))
    assert commits(harness.advance(40)) == 0, "the result of the commit is unknown"
    harness.handle(CommitUnknown(decision.decision_id, "m"))
    assert commits(harness.advance(40)) == 0, "still unknown"


def test_a_stopping_agent_starts_no_decision(harness: ControllerHarness) -> None:
    harness.kv["m"] = 1.0
    harness.commit_of(harness.advance(31))
    harness.handle(ShutdownRequested())
    harness.kv["n"] = 1.0
    assert commits(harness.advance(40)) == 0, "a second commit would delay the shutdown"
    assert harness.controller.leading


def test_decisions_wait_for_the_bus(harness: ControllerHarness) -> None:
    harness.kv["m"] = 1.0
    harness.advance(30)
    harness.handle(BusConnectionChanged(connected=False))
    assert commits(harness.advance(10)) == 0
    assert harness.controller.leading
    assert commits(harness.handle(BusConnectionChanged(connected=True))) == 1


def test_after_a_refused_commit_the_next_decision_is_delayed(harness: ControllerHarness) -> None:
    harness.kv["m"] = 1.0
    decision = harness.commit_of(harness.advance(31))
    harness.handle(CommitRefused(decision.decision_id, "m", fenced=False))
    assert commits(harness.advance(4)) == 0
    assert commits(harness.advance(1)) == 1


def test_no_decision_before_the_registry_was_read() -> None:
    harness = ControllerHarness()
    harness.handle(BusConnectionChanged(connected=True))
    harness.become_leader()
    assert commits(harness.advance(60)) == 0, "the registry was not read, so the fleet only looks empty"
    harness.handle(RegistryRead([]))
    assert commits(harness.advance(6)) == 2, "the fleet is known to be below its minimum"


def test_no_commit_after_the_deadline_of_the_lease(harness: ControllerHarness) -> None:
    harness.kv["m"] = 1.0
    harness.advance(30)
    harness.now = harness.controller.state.leadership.deadline_ms
    report = [LoadReported("m", "decode", name, 1, [sample(99, 1.0)]) for name in ("a", "b")]
    assert commits(harness.handle(*report)) == 0


def test_a_fenced_commit_is_followed_by_a_read(harness: ControllerHarness) -> None:
    harness.kv["m"] = 1.0
    decision = harness.commit_of(harness.advance(31))
    effects = harness.handle(CommitRefused(decision.decision_id, "m", fenced=True))
    assert [type(e) for e in effects] == [RaiseAlarm, ReadDecisions]
    assert harness.advance(31)[:1] == [], "no decision before the decisions were read"


def test_a_stop_waits_for_the_pending_commit(harness: ControllerHarness) -> None:
    harness.kv["m"] = 1.0
    decision = harness.commit_of(harness.advance(31))
    assert harness.handle(ShutdownRequested()) == []
    effects = harness.handle(DecisionCommitted(decision.decision_id, "m", 90))
    assert isinstance(effects[-1], Resign)
    assert not any(isinstance(e, Campaign) for e in harness.advance(60))


def alarms(effects: list[AnyEffect]) -> list[str]:
    return [effect.kind for effect in effects if isinstance(effect, RaiseAlarm)]


def read_by(effects: list[AnyEffect]) -> int:
    """Return the number of the read that effects request."""
    (request,) = [effect.request for effect in effects if isinstance(effect, ReadDecisions)]
    return request


def decided(harness: ControllerHarness) -> Decision:
    """Commit a decision at revision 5,000, and let the harness want another one."""
    harness.kv["m"] = 1.0
    decision = harness.commit_of(harness.advance(31))
    harness.handle(DecisionCommitted(decision.decision_id, "m", 5_000))
    harness.register("c", "d")
    return decision


@pytest.mark.parametrize("remains", [True, False])
def test_a_leader_of_a_restored_store_keeps_its_decision_and_commits_the_counts_again(
    harness: ControllerHarness,
    remains: bool,  # noqa: FBT001
) -> None:
    earlier = Decision("early", "m", 10, 0, harness.now, harness.now + 60_000, (), ())
    decision, _ = shrinking(harness)
    harness.handle(DecisionCommitted(decision.decision_id, "m", 5_000), scaler_answer(decision, "done"))
    harness.advance(5)
    effects = harness.handle(LeaderChanged("all", "agent-1", 7, 12, 12, 10, store_went_back=True))
    assert alarms(effects) == ["store_went_back"]
    effects = harness.handle(DecisionsRead(read_by(effects), [StoredDecision(earlier, 9)] if remains else [], 13))
    assert alarms(effects) == [], "it is reported once"
    entry = harness.controller.state.ledger.entries["m"]
    assert (entry.decision, entry.revision) == (decision, 9 if remains else 0)
    (commit,) = [e for e in effects if isinstance(e, CommitDecision) and e.decision.model == "m"]
    assert (commit.expected_revision, commit.decision.sequence) == (entry.revision, decision.sequence + 1)
    assert [t.replicas for t in commit.decision.targets] == [t.replicas for t in decision.targets]
    effects = harness.handle(CommitUnknown(commit.decision.decision_id, "m", "lost"))
    harness.handle(DecisionsRead(read_by(effects), [StoredDecision(commit.decision, 14)], 15))
    assert not any(isinstance(effect, CommitDecision) for effect in harness.advance(30)), "it is in the store"


def lose_to_a_wiped_store(harness: ControllerHarness, *, another: bool) -> Decision:
    """Scale down, lose the lease, let another agent lead or not, and lose all data of the store."""
    decision, _ = shrinking(harness)
    harness.handle(DecisionCommitted(decision.decision_id, "m", 90), scaler_answer(decision, "done"))
    harness.lose_lease()
    harness.epoch += 10
    if another:
        harness.handle(LeaderChanged("all", "agent-2", 8, 100, 100, harness.epoch))
    harness.handle(LeaderChanged("all", "", 0, 1, store_went_back=True))
    return decision


@pytest.mark.parametrize("watch_is_first", [True, False])
def test_counts_of_an_earlier_term_are_outdated_if_another_agent_has_led_and_the_store_is_wiped(
    harness: ControllerHarness,
    watch_is_first: bool,  # noqa: FBT001
) -> None:
    decision = lose_to_a_wiped_store(harness, another=True)
    if watch_is_first:
        harness.handle(LeaderChanged("all", "agent-1", 7, 4, 4, harness.epoch + 10))
    harness.become_leader()
    assert harness.desired() is None
    assert not any(isinstance(effect, CommitDecision) for effect in harness.advance(30)), "the fleet stays as it is"
    harness.kv["m"] = 1.0
    later = harness.commit_of(harness.advance(120))
    assert later.sequence > decision.sequence
    assert later.targets[0].replicas > later.targets[0].previous == 2, "from the workers that exist"


def test_counts_of_the_last_term_are_decided_again_if_the_store_is_wiped(harness: ControllerHarness) -> None:
    decision = lose_to_a_wiped_store(harness, another=False)
    effects = harness.become_leader()
    assert harness.desired() == decision.targets[0].replicas
    (commit,) = [e for e in effects + harness.advance(1) if isinstance(e, CommitDecision) and e.decision.model == "m"]
    assert [t.replicas for t in commit.decision.targets] == [t.replicas for t in decision.targets]


@pytest.mark.parametrize(
    ("key_at", "read_at", "reported"),
    [(5_000, 5_001, []), (6_000, 6_001, []), (0, 5_001, ["store_went_back"]), (9, 5_001, ["store_went_back"])],
)
def test_a_leader_reports_a_lost_decision_of_a_store_that_has_counted_on(
    harness: ControllerHarness, key_at: int, read_at: int, reported: list[str]
) -> None:
    pending = decided(harness)
    commit = next(e for e in harness.advance(120) if isinstance(e, CommitDecision) and e.decision.model == "m")
    effects = harness.handle(CommitRefused(commit.decision.decision_id, "m", fenced=True))
    stored = [StoredDecision(pending, key_at)] if key_at else []
    assert alarms(harness.handle(DecisionsRead(read_by(effects), stored, read_at))) == reported
    assert harness.controller.state.ledger.entries["m"].revision == key_at


def test_a_standby_reports_a_store_that_went_back() -> None:
    harness = ControllerHarness()
    effects = harness.handle(BusConnectionChanged(connected=True), LeaderChanged("all", "", 0, 5, store_went_back=True))
    assert alarms(effects) == ["store_went_back"]
    assert not any(isinstance(effect, ReadDecisions) for effect in effects)


@pytest.mark.parametrize(("epoch", "sequence"), [(2**53, 3), (1, 2**53)])
def test_an_impossible_stored_decision_is_replaced(harness: ControllerHarness, epoch: int, sequence: int) -> None:
    harness.kv["m"] = 1.0
    forged = Decision("x", "m", epoch, sequence, harness.now, harness.now + 60_000, (), ())
    harness.lose_lease()
    effects = harness.become_leader(StoredDecision(forged, 77))
    assert "stored_decision_refused" in [e.kind for e in effects if isinstance(e, RaiseAlarm)]
    commit = next(e for e in harness.advance(60) if isinstance(e, CommitDecision))
    assert (commit.expected_revision, commit.decision.sequence) == (77, 1)


@pytest.mark.parametrize(
    ("replicas", "previous", "announced"),
    [(5, 2, {5}), (5_000, 2, set()), (9, 10, {9}), (9, 8, set())],  # the maximum is 8
)
def test_growth_above_the_maximum_is_not_announced(
    harness: ControllerHarness, replicas: int, previous: int, announced: set[int]
) -> None:
    harness.lose_lease()
    target = PoolTarget("decode", "decode", replicas, previous)
    stored = Decision("x", "m", 1, 3, harness.now, harness.now + 60_000, (target,), ())
    effects = harness.become_leader(StoredDecision(stored, 77))
    found = [e for e in [*effects, *harness.advance(5)] if isinstance(e, AnnounceDecision)]
    assert {target.replicas for e in found for target in e.decision.targets} == announced
