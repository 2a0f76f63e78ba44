"""The whole core in virtual time: decisions, leadership, commits and announcements."""

import msgspec

from loadline.core.controller import Controller
from loadline.core.planning.planners.threshold import ThresholdKnobs
from loadline.core.queries.status import status
from loadline.core.vocabulary.decisions import StoredDecision
from loadline.core.vocabulary.effects import (
    AnnounceDecision,
    Campaign,
    CommitDecision,
    ReadDecisions,
    Resign,
    SendDrain,
)
from loadline.core.vocabulary.events import (
    AnnouncementRequested,
    AnyEvent,
    BusConnectionChanged,
    CampaignLost,
    CommitUnknown,
    DecisionAnswered,
    LeaderChanged,
    LeaseRenewalFailed,
    LoadReported,
    PauseChanged,
    RegistryRead,
    ShutdownRequested,
)
from loadline.core.vocabulary.samples import RegisteredWorker
from tests.support.controller_world import ControllerWorld, alarms, booted, scaler_answer
from tests.support.fleet_harness import sample


def test_a_steady_fleet_gets_no_decision() -> None:
    world = booted()
    world.queue = 0
    world.kv = 0.7
    effects = world.run(20)
    assert world.decisions(effects) == []


def test_high_kv_usage_adds_one_decode_worker_per_interval() -> None:
    world = booted()
    world.queue = 1  # mean 1 is above 0.5 but the trend is flat: 1 is still above
    world.kv = 0.95
    effects = world.run(31)
    assert world.decisions(effects) == [{"prefill": 3, "decode": 3}]
    announced = [e for e in effects if isinstance(e, AnnounceDecision)]
    assert announced, "a committed decision is announced"
    assert announced[0].decision.epoch == 11
    assert announced[0].decision.reasons[:2] == ("prefill:prefill_queue_high", "decode:kv_usage_high")


def test_the_sample_that_crosses_a_threshold_decides_in_its_turn() -> None:
    world = booted(planner_knobs={"threshold": ThresholdKnobs(prefill_queue_scale_down_threshold=0)})
    world.kv = 0.899
    assert world.decisions(world.run(40)) == []
    world.now += 10
    world.kv = 1.0
    assert world.decisions(world.report()) == [{"prefill": 2, "decode": 3}]


def test_an_announcement_repeats_until_the_decision_is_applied() -> None:
    world = booted()
    world.scaler_status = None
    world.kv, world.queue = 0.95, 1
    world.run(31)
    effects = world.run(3)
    assert len([e for e in effects if isinstance(e, AnnounceDecision)]) == 3
    answer = scaler_answer(world.stored["m"].decision)
    world.handle(answer)
    assert not [e for e in world.run(9) if isinstance(e, AnnounceDecision)], "accepted: announced more rarely"
    assert [e for e in world.run(2) if isinstance(e, AnnounceDecision)]
    world.handle(msgspec.structs.replace(answer, status="done"))
    assert not [e for e in world.run(30) if isinstance(e, AnnounceDecision)]


def test_an_unrenewed_lease_stops_commits_before_its_end() -> None:
    world = booted()
    world.kv = 0.95
    world.run(3)
    world.perform = lambda _effect: []  # type: ignore[method-assign, assignment]  # the store no longer answers
    effects = world.run(40)
    assert world.decisions(effects) == []
    assert any(isinstance(e, Resign) for e in effects)


def test_another_leader_key_ends_leadership_at_once() -> None:
    world = booted()
    effects = world.handle(LeaderChanged("all", "other", 99, 99))
    assert any(isinstance(e, Resign) for e in effects)
    assert not world.controller.leading


def test_a_lost_lease_ends_leadership_at_once() -> None:
    world = booted()
    world.controller.handle([LeaseRenewalFailed("all", 77, lost=True)], world.now)
    assert not world.controller.leading


def test_an_unknown_commit_is_read_back_and_found() -> None:
    world = booted()
    world.kv, world.queue = 0.95, 1
    world.answer_commits = False
    effects = world.run(31)
    (commit,) = [e for e in effects if isinstance(e, CommitDecision)]
    world.stored["m"] = StoredDecision(commit.decision, 500)
    effects = world.handle(CommitUnknown(commit.decision.decision_id, "m"))
    assert any(isinstance(e, ReadDecisions) for e in effects)
    assert any(isinstance(e, AnnounceDecision) for e in effects)
    assert world.controller.state.fleet.models["m"].pools["decode"].decided == 3


def test_the_sequence_of_a_failed_unknown_commit_is_not_reused() -> None:
    world = booted()
    world.kv, world.queue = 0.95, 1
    world.answer_commits = False
    (commit,) = [e for e in world.run(31) if isinstance(e, CommitDecision)]
    world.answer_commits = True
    world.handle(CommitUnknown(commit.decision.decision_id, "m"))
    world.run(10)
    assert world.stored["m"].decision.sequence == commit.decision.sequence + 1


def test_a_new_leader_resumes_decision_and_drains() -> None:
    world = booted()
    world.kv, world.queue = 0.3, 0
    world.run(31)
    decision = world.stored["m"].decision
    other = ControllerWorld()
    other.stored, other.now, other.revision = world.stored, world.now, 900
    other.handle(BusConnectionChanged(connected=True))
    other.handle(RegistryRead([RegisteredWorker(record, 5) for record in world.workers.values()]))
    announced = [e.decision.decision_id for e in other.effects if isinstance(e, AnnounceDecision)]
    assert announced == [decision.decision_id]
    drained = {e.worker for e in other.effects if isinstance(e, SendDrain)}
    assert drained == {victim.worker for target in decision.targets for victim in target.victims}


def test_an_expired_decision_raises_an_alarm() -> None:
    world = booted()
    world.kv, world.queue = 0.95, 1
    world.run(31)
    effects = world.run(901)
    assert "decision_expired" in alarms(effects)
    (alarm,) = status(world.controller.settings, world.controller.state, "", 0, world.now).alarms
    assert (alarm.kind, alarm.model) == ("decision_expired", "m")
    pools = world.controller.state.fleet.models["m"].pools
    assert pools["decode"].decided is not None


def test_a_paused_model_holds_until_it_is_resumed() -> None:
    world = booted()
    world.kv, world.queue = 0.95, 1
    world.handle(PauseChanged("m", paused=True, by="me"))
    assert world.decisions(world.run(40)) == []
    assert world.decisions(world.handle(PauseChanged("m", paused=False))) == [{"prefill": 3, "decode": 3}]


def test_no_operation_explains_and_commits_nothing() -> None:
    world = booted(no_operation=True)
    world.kv, world.queue = 0.95, 1
    assert world.decisions(world.run(60)) == []
    advised = [e for e in world.controller.state.explanations.of_model("m") if e.outcome == "advised"]
    assert [e.targets for e in advised] == [{"prefill": 3, "decode": 3}]
    ready = world.controller.state.fleet.models["m"].conditions[1]
    assert (ready.status, ready.reason) == (True, "SkippedProcessing")
    assert ready.message.startswith("no_operation is set: the decision is not executed")


def test_minimum_replicas_are_requested_without_data() -> None:
    world = ControllerWorld()
    world.handle(BusConnectionChanged(connected=True), RegistryRead([]))
    effects = world.run(6)
    assert world.decisions(effects) == [{"prefill": 1, "decode": 1}]


def test_nothing_is_decided_without_a_bus() -> None:
    world = booted()
    world.kv, world.queue = 0.95, 1
    world.handle(BusConnectionChanged(connected=False))
    assert world.decisions(world.run(14)) == []
    assert any(isinstance(e, Resign) for e in world.run(3)), "another agent may reach the bus"


def test_a_shutdown_resigns_and_stops_decisions() -> None:
    world = booted()
    world.kv, world.queue = 0.95, 1
    effects = world.handle(ShutdownRequested())
    assert isinstance(effects[-1], Resign)
    assert world.decisions(world.run(60)) == []


def test_a_follower_campaigns_once_the_leader_key_is_removed() -> None:
    world = ControllerWorld()
    world.controller.handle([BusConnectionChanged(connected=True)], world.now)
    world.controller.handle([CampaignLost("all", "other", beat=8)], world.now)
    assert world.controller.handle([], world.now + 1_000) == []
    effects = world.controller.handle([LeaderChanged("all", "", 0, 9)], world.now + 2_000)
    assert [type(e) for e in effects] == [Campaign]


def test_a_restored_controller_continues_identically() -> None:
    world = booted()
    world.kv, world.queue = 0.95, 1
    world.run(25)
    restored = Controller(world.settings)
    restored.restore(world.controller.snapshot())
    assert restored.snapshot() == world.controller.snapshot()
    for second in range(20):
        world.sequence += 1
        load = sample(world.sequence, 0.99, 2)
        events: list[AnyEvent] = [LoadReported("m", r.pool, r.worker, 1, [load]) for r in world.workers.values()]
        now = world.now + 1_000 * (second + 1)
        assert restored.handle(events, now) == world.controller.handle(events, now)
    assert restored.snapshot() == world.controller.snapshot()


def test_a_scaler_can_request_the_current_decision() -> None:
    world = booted()
    world.kv, world.queue = 0.95, 1
    world.run(31)
    decision = world.stored["m"].decision
    world.handle(DecisionAnswered(decision.decision_id, "m", decision.epoch, decision.sequence, "s", "done", {}))
    effects = world.handle(AnnouncementRequested("m", "s"))
    assert [e.decision for e in effects if isinstance(e, AnnounceDecision)] == [decision]


def test_a_request_after_expiry_causes_a_new_decision() -> None:
    world = booted()
    world.kv, world.queue = 0.95, 1
    world.run(31)
    old = world.stored["m"].decision
    world.handle(DecisionAnswered(old.decision_id, "m", old.epoch, old.sequence, "s", "done", {}))
    world.register("prefill", "p3")
    world.register("decode", "d3")
    world.kv, world.queue = 0.7, 0
    world.controller.state.paused["m"] = "test"  # so that nothing is decided before the request
    world.run(901)
    world.controller.state.paused.clear()
    world.handle(AnnouncementRequested("m", "s"))
    new = world.stored["m"].decision
    assert new.sequence == old.sequence + 1
    assert "decided_again" in new.reasons
