"""What a controller does over several terms of leadership, and with news that is late, repeated or out of order."""

from typing import get_args

import msgspec
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
    LeadershipWon,
    LoadReported,
    RegistryRead,
    SettingsChanged,
    ShutdownRequested,
    WorkerDeregistered,
    WorkerDrained,
)
from loadline.core.vocabulary.samples import RegisteredWorker
from tests.support.belief import sample
from tests.support.desk import READ_AT, Desk, leading, make_settings


@pytest.fixture
def desk() -> Desk:
    return leading()


def shrinking(desk: Desk) -> tuple[Decision, str]:
    """A committed decision with a victim."""
    desk.kv["m"] = 0.1
    decision = desk.commit_of(desk.pass_time(31))
    victim = decision.targets[0].victims[0].worker
    desk.kv["m"] = 0.7
    return decision, victim


def drains(effects: list[AnyEffect]) -> list[str]:
    return [e.worker for e in effects if isinstance(e, SendDrain)]


def test_every_event_is_handled() -> None:
    by_the_controller = {SettingsChanged}  # it has the planners, which follow too
    assert HANDLERS.keys() | by_the_controller == set(get_args(AnyEvent))


def test_a_leader_that_leads_again_goes_on_with_its_drains(desk: Desk) -> None:
    decision, victim = shrinking(desk)
    assert drains(desk.tell(DecisionCommitted(decision.decision_id, "m", 90))) == [victim]
    desk.lose()
    assert desk.controller.state.drains.open == {}
    assert drains(desk.win(StoredDecision(decision, 90))) == [victim]


def test_a_commit_confirmed_after_stepping_down_drains_nobody(desk: Desk) -> None:
    decision, victim = shrinking(desk)
    desk.lose()
    assert drains(desk.tell(DecisionCommitted(decision.decision_id, "m", 90))) == []
    assert desk.controller.state.drains.open == {}
    assert desk.controller.state.fleet.models["m"].pools["decode"].ready == 2, "whoever leads takes it out"
    assert drains(desk.win(StoredDecision(decision, 90))) == [victim]


def test_victims_that_register_after_the_decisions_were_read_are_drained() -> None:
    earlier = Desk()
    earlier.tell(BusConnectionChanged(connected=True), RegistryRead([]))
    earlier.register("a", "b")
    earlier.win()
    decision, victim = shrinking(earlier)
    late = Desk()
    late.now = earlier.now
    late.tell(BusConnectionChanged(connected=True))
    assert drains(late.win(StoredDecision(decision, 90))) == []
    registry = [RegisteredWorker(record, 5) for record in earlier.workers.values()]
    assert drains(late.tell(RegistryRead(registry))) == [victim]


def test_an_ordered_drain_ends_with_the_leadership_even_before_the_decisions_were_read() -> None:
    desk = Desk()
    desk.tell(BusConnectionChanged(connected=True), RegistryRead([]))
    desk.register("a")
    desk.tell(LeadershipWon("all", 20, 7, desk.now))
    assert drains(desk.tell(DrainRequested("m", "decode", "a", "me"))) == ["a"]
    desk.lose()
    assert desk.controller.state.drains.open == {}
    desk.tell(WorkerDeregistered("m", "decode", "a"))
    assert desk.controller.state.fleet.models["m"].pools["decode"].workers == {}


def test_a_drained_worker_that_leaves_frees_its_place(desk: Desk) -> None:
    decision, victim = shrinking(desk)
    desk.tell(DecisionCommitted(decision.decision_id, "m", 90))
    desk.tell(DrainAnswered("m", "decode", victim, decision.decision_id, accepted=True))
    desk.tell(WorkerDrained("m", "decode", victim, 1))
    desk.tell(WorkerDeregistered("m", "decode", victim))
    assert desk.controller.state.fleet.models["m"].pools["decode"].draining_workers() == 0


def test_silence_on_a_bus_that_is_away_kills_no_drain(desk: Desk) -> None:
    decision, victim = shrinking(desk)
    desk.tell(DecisionCommitted(decision.decision_id, "m", 90))
    desk.tell(DrainAnswered("m", "decode", victim, decision.decision_id, accepted=True))
    desk.tell(WorkerDeregistered("m", "decode", victim))
    desk.tell(BusConnectionChanged(connected=False))
    for _ in range(7):
        desk.now += 1_000
        desk.tell()
    desk.tell(BusConnectionChanged(connected=True))
    assert len(desk.controller.state.drains.open) == 1
    desk.now += 5_001
    desk.controller.state.leadership._extend(desk.now)
    desk.tell()
    assert [f.ending for f in desk.controller.state.drains.finished] == ["died"]


def test_a_read_under_way_does_not_answer_for_a_later_unknown(desk: Desk) -> None:
    desk.kv = {"m": 1.0, "n": 1.0}
    effects = desk.pass_time(31)
    first, second = desk.commit_of(effects, "m"), desk.commit_of(effects, "n")
    (early,) = [e for e in desk.tell(CommitUnknown(first.decision_id, "m")) if isinstance(e, ReadDecisions)]
    (late,) = [e for e in desk.tell(CommitUnknown(second.decision_id, "n")) if isinstance(e, ReadDecisions)]
    desk.tell(DecisionsRead(early.request, [], READ_AT))
    assert desk.controller.state.ledger.entries["n"].pending is not None
    desk.tell(DecisionsRead(late.request, [StoredDecision(second, 95)], READ_AT))
    assert desk.controller.state.ledger.entries["n"].pending is None
    assert desk.desired("n") == 3
    assert desk.desired("m") is None


def test_the_answer_of_a_read_in_an_earlier_term_is_not_taken(desk: Desk) -> None:
    desk.lose()
    (early,) = [e for e in desk.tell(LeadershipWon("all", 50, 7, desk.now)) if isinstance(e, ReadDecisions)]
    desk.lose()
    effects = desk.tell(LeadershipWon("all", 60, 7, desk.now), DecisionsRead(early.request, [], READ_AT))
    assert not desk.controller.state.decisions_read
    (late,) = [e for e in effects if isinstance(e, ReadDecisions)]
    desk.tell(DecisionsRead(late.request, [], READ_AT))
    assert desk.controller.state.decisions_read


def test_a_commit_of_an_earlier_term_holds_nothing_up(desk: Desk) -> None:
    desk.kv["m"] = 1.0
    decision = desk.commit_of(desk.pass_time(31))
    desk.lose()
    desk.win()
    assert desk.tell(CommitUnknown(decision.decision_id, "m")) == [], "its epoch is over: it can not land any more"
    assert commits(desk.pass_time(40)) == 1


def test_a_read_that_is_older_than_a_commit_takes_nothing_back(desk: Desk) -> None:
    desk.kv = {"m": 1.0, "n": 1.0}
    effects = desk.pass_time(31)
    first, second = desk.commit_of(effects, "m"), desk.commit_of(effects, "n")
    (read,) = [e for e in desk.tell(CommitUnknown(first.decision_id, "m")) if isinstance(e, ReadDecisions)]
    desk.tell(DecisionCommitted(second.decision_id, "n", 300))
    desk.tell(DecisionsRead(read.request, [], 299))
    assert desk.controller.state.ledger.entries["n"].revision == 300
    assert desk.desired("n") == 3


def commits(effects: list[AnyEffect]) -> int:
    return sum(isinstance(effect, CommitDecision) for effect in effects)


def test_one_decision_of_a_model_is_under_way_at_a_time(desk: Desk) -> None:
    desk.kv["m"] = 1.0
    decision = desk.commit_of(desk.pass_time(31))
    assert commits(desk.pass_time(40)) == 0, "its outcome is not known yet"
    desk.tell(CommitUnknown(decision.decision_id, "m"))
    assert commits(desk.pass_time(40)) == 0, "nor now"


def test_a_stop_begins_nothing_while_it_waits(desk: Desk) -> None:
    desk.kv["m"] = 1.0
    desk.commit_of(desk.pass_time(31))
    desk.tell(ShutdownRequested())
    desk.kv["n"] = 1.0
    assert commits(desk.pass_time(40)) == 0, "another model would grow, but its commit could not be waited for"
    assert desk.controller.leading


def test_without_a_bus_nothing_is_decided_and_with_it_at_once(desk: Desk) -> None:
    desk.kv["m"] = 1.0
    desk.pass_time(30)
    desk.tell(BusConnectionChanged(connected=False))
    assert commits(desk.pass_time(10)) == 0
    assert desk.controller.leading
    assert commits(desk.tell(BusConnectionChanged(connected=True))) == 1


def test_after_a_refused_commit_the_next_one_waits(desk: Desk) -> None:
    desk.kv["m"] = 1.0
    decision = desk.commit_of(desk.pass_time(31))
    desk.tell(CommitRefused(decision.decision_id, "m", fenced=False))
    assert commits(desk.pass_time(4)) == 0
    assert commits(desk.pass_time(1)) == 1


def test_nothing_is_decided_before_the_registry_was_read() -> None:
    desk = Desk()
    desk.tell(BusConnectionChanged(connected=True))
    desk.win()
    assert commits(desk.pass_time(60)) == 0, "an empty fleet would be one that nobody has told of"
    desk.tell(RegistryRead([]))
    assert commits(desk.pass_time(6)) == 2, "now it is known to be below its minimum"


def test_nothing_is_committed_by_a_lease_past_its_deadline(desk: Desk) -> None:
    desk.kv["m"] = 1.0
    desk.pass_time(30)
    desk.now = desk.controller.state.leadership.deadline_ms
    report = [LoadReported("m", "decode", name, 1, [sample(99, 1.0)]) for name in ("a", "b")]
    assert commits(desk.tell(*report)) == 0


def test_after_a_takeover_the_shrink_waits_for_the_warm_up() -> None:
    settings = make_settings()
    warm = msgspec.structs.replace(settings.models[0].guardrails, warm_up_ms=20_000)
    models = tuple(msgspec.structs.replace(model, guardrails=warm) for model in settings.models)
    desk = Desk(msgspec.structs.replace(settings, models=models))
    desk.tell(BusConnectionChanged(connected=True), RegistryRead([]))
    desk.register("a", "b")
    desk.win()
    desk.pass_time(40)
    desk.lose()
    desk.kv["m"] = 0.1
    desk.pass_time(40)
    desk.win()
    assert commits(desk.pass_time(19)) == 0, "it had data all the time, but leads since this moment"
    assert commits(desk.pass_time(2)) == 1


def test_a_fenced_commit_is_followed_by_a_read(desk: Desk) -> None:
    desk.kv["m"] = 1.0
    decision = desk.commit_of(desk.pass_time(31))
    effects = desk.tell(CommitRefused(decision.decision_id, "m", fenced=True))
    assert [type(e) for e in effects] == [RaiseAlarm, ReadDecisions]
    assert desk.pass_time(31)[:1] == [], "nothing is decided until it was read"


def test_a_stop_waits_for_the_commit_under_way(desk: Desk) -> None:
    desk.kv["m"] = 1.0
    decision = desk.commit_of(desk.pass_time(31))
    assert desk.tell(ShutdownRequested()) == []
    effects = desk.tell(DecisionCommitted(decision.decision_id, "m", 90))
    assert isinstance(effects[-1], Resign)
    assert not any(isinstance(e, Campaign) for e in desk.pass_time(60))


def test_a_store_that_lost_its_data_is_noticed_and_written_to_again(desk: Desk) -> None:
    desk.kv["m"] = 1.0
    decision = desk.commit_of(desk.pass_time(31))
    desk.tell(DecisionCommitted(decision.decision_id, "m", 5_000))
    desk.lose()
    desk.epoch = 2  # the next term begins at revision 12 of an empty store
    effects = desk.tell(LeadershipWon("all", 12, 7, desk.now))
    assert "store_went_back" in [e.kind for e in effects if isinstance(e, RaiseAlarm)]
    (request,) = [e for e in effects if isinstance(e, ReadDecisions)]
    desk.tell(DecisionsRead(request.request, [], 13))
    assert desk.controller.state.ledger.entries["m"].revision == 0, "the next decision expects no key"


@pytest.mark.parametrize(("epoch", "sequence"), [(2**53, 3), (1, 2**53)])
def test_what_no_agent_can_have_written_is_replaced(desk: Desk, epoch: int, sequence: int) -> None:
    desk.kv["m"] = 1.0
    forged = Decision("x", "m", epoch, sequence, desk.now, desk.now + 60_000, (), ())
    desk.lose()
    effects = desk.win(StoredDecision(forged, 77))
    assert "stored_decision_refused" in [e.kind for e in effects if isinstance(e, RaiseAlarm)]
    commit = next(e for e in desk.pass_time(60) if isinstance(e, CommitDecision))
    assert (commit.expected_revision, commit.decision.sequence) == (77, 1)


def test_counts_beyond_the_bounds_are_not_announced(desk: Desk) -> None:
    desk.lose()
    beyond = Decision("x", "m", 1, 3, desk.now, desk.now + 60_000, (PoolTarget("decode", "decode", 5_000, 2),), ())
    effects = desk.win(StoredDecision(beyond, 77))
    announced = [e for e in [*effects, *desk.pass_time(5)] if isinstance(e, AnnounceDecision)]
    assert all(t.replicas <= 8 for e in announced for t in e.decision.targets)
