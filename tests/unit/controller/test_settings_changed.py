"""The core goes by other settings: what stays keeps what is known of it, and what is new or gone harms nothing."""

from typing import Any

import msgspec
from msgspec.structs import replace

from loadline.core.fleet.fleet import FleetKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.guardrails.knobs import GuardrailKnobs
from loadline.core.planning.planners.threshold import ThresholdKnobs
from loadline.core.state.settings import Settings
from loadline.core.vocabulary.decisions import StoredDecision
from loadline.core.vocabulary.effects import AnnounceDecision, AnyEffect, CommitDecision, ReadDecisions, SendDrain
from loadline.core.vocabulary.events import (
    CommitUnknown,
    DecisionCommitted,
    DecisionsRead,
    DrainRequested,
    LearnedRead,
    RegistryRead,
    SettingsChanged,
    WorkerDeregistered,
    WorkerRegistered,
)
from loadline.core.vocabulary.learned import LearnedState
from loadline.core.vocabulary.samples import RegisteredWorker, WorkerRecord
from loadline.runtime import journal_records
from tests.support.desk import READ_AT, Desk, leading
from tests.support.segments import lone_agent

DECODE = PoolKnobs("decode", "decode")


def change(desk: Desk, settings: Settings) -> list[AnyEffect]:
    return desk.tell(SettingsChanged(msgspec.Raw(msgspec.json.encode(settings))))


def with_model(settings: Settings, name: str, **knobs: Any) -> Settings:
    models = tuple(replace(model, **knobs) if model.name == name else model for model in settings.models)
    return replace(settings, models=models)


def without(settings: Settings, name: str) -> Settings:
    return replace(settings, models=tuple(model for model in settings.models if model.name != name))


def read(desk: Desk, effects: list[AnyEffect], *stored: StoredDecision) -> list[AnyEffect]:
    (request,) = [effect for effect in effects if type(effect) is ReadDecisions]
    return desk.tell(DecisionsRead(request.request, list(stored), READ_AT))


def known(desk: Desk) -> dict[str, Any]:
    """The snapshot, without what every plan says."""
    found: dict[str, Any] = msgspec.json.decode(desk.controller.snapshot())
    del found["state"]["counters"]
    for model in found["state"]["fleet"]["models"].values():
        del model["plan_at_ms"], model["hold"]
    return found


def growing() -> tuple[Desk, CommitDecision]:
    """A leader whose decision for one worker more of ``m`` is being committed."""
    desk = leading()
    desk.kv["m"] = 0.95
    (commit,) = [effect for effect in desk.pass_time(31) if isinstance(effect, CommitDecision)]
    return desk, commit


# -- what stays --------------------------------------------------------------------------------------------------------


def test_the_same_settings_change_nothing() -> None:
    desk, _ = growing()
    change(desk, desk.controller.settings)  # all are planned: what was news before is none any more
    before = known(desk)
    assert change(desk, desk.controller.settings) == []
    assert known(desk) == before


def test_who_the_agent_is_and_how_it_leads_cannot_change() -> None:
    desk = leading()
    old = desk.controller.settings
    lease = replace(old.leadership, lease_ttl_s=99)
    change(desk, replace(old, agent="somebody", scope="other", leadership=lease))
    assert desk.controller.settings == old


def test_windows_and_bounds_follow_and_keep_what_was_seen() -> None:
    desk = leading()
    desk.pass_time(10)
    guard, threshold = GuardrailKnobs(stabilisation_ms=7_000), ThresholdKnobs(adjustment_interval_ms=5_000)
    settings = with_model(
        desk.controller.settings, "m", guardrails=guard, planner_knobs={"threshold": threshold}, gpu_budget_max=3
    )
    change(desk, replace(settings, fleet=FleetKnobs(quorum_ratio=0.5, traffic_window_ms=9_000)))
    state, planner = desk.controller.state, desk.controller._planners["m"]
    assert state.fleet.models["m"].guardrails.history["decode"].proposals.window_ms == 7_000
    assert (
        state.fleet.models["m"].guardrails.hard.quorum_ratio,
        state.fleet.models["m"].guardrails.hard.gpu_budget_max,
    ) == (0.5, 3)
    assert state.fleet.models["m"].traffic.window_ms == 9_000
    watch = planner.watches["decode"]  # type: ignore[attr-defined]
    assert watch.kv.low.window_ms == 5_000
    assert len(watch.kv.low.values) >= 5
    assert state.fleet.models["n"].guardrails.history["decode"].proposals.window_ms == 0


def test_a_fleet_of_unchanged_counts_stays_as_it_is() -> None:
    desk = leading()
    desk.pass_time(10)
    change(
        desk,
        with_model(
            desk.controller.settings, "m", guardrails=GuardrailKnobs(), planner_knobs={"threshold": ThresholdKnobs()}
        ),
    )
    assert not [effect for effect in desk.pass_time(60) if isinstance(effect, CommitDecision)]


def test_a_longer_deadline_takes_back_what_was_late() -> None:
    desk = leading()
    starting = WorkerRecord("m", "decode", "c", "decode", 1, "starting")
    desk.tell(WorkerRegistered(RegisteredWorker(starting, 5)))
    desk.pass_time(62)
    pool = desk.controller.state.fleet.models["m"].pools["decode"]
    assert pool.late == 1
    change(desk, with_model(desk.controller.settings, "m", pools=(replace(DECODE, start_deadline_ms=120_000),)))
    assert (pool.late, pool.worker_counts(desk.now).starting) == (0, 1)


def test_a_planner_of_another_kind_takes_over() -> None:
    desk = leading()
    desk.pass_time(5)
    change(desk, with_model(desk.controller.settings, "m", planner="hpa"))
    planners = desk.controller._planners
    assert (planners["m"].name, planners["n"].name) == ("hpa", "threshold")
    assert planners["n"].watches  # type: ignore[attr-defined]


# -- what is under way -------------------------------------------------------------------------------------------------


def test_a_decision_that_is_being_committed_goes_on() -> None:
    desk, commit = growing()
    change(desk, with_model(desk.controller.settings, "m", guardrails=GuardrailKnobs()))
    effects = desk.tell(DecisionCommitted(commit.decision.decision_id, "m", 50))
    assert [effect.decision for effect in effects if isinstance(effect, AnnounceDecision)] == [commit.decision]
    assert desk.desired() == 3


def test_a_decision_above_new_bounds_is_not_announced_but_decided_again() -> None:
    desk, commit = growing()
    change(desk, with_model(desk.controller.settings, "m", pools=(replace(DECODE, replicas_max=2),)))
    effects = desk.tell(DecisionCommitted(commit.decision.decision_id, "m", 50))
    assert not [effect for effect in effects if isinstance(effect, AnnounceDecision)]
    assert [target.replicas for target in desk.commit_of(effects).targets] == [2]


def test_an_open_decision_above_new_bounds_is_announced_no_more() -> None:
    desk, commit = growing()
    desk.tell(DecisionCommitted(commit.decision.decision_id, "m", 50))
    effects = change(desk, with_model(desk.controller.settings, "m", pools=(replace(DECODE, replicas_max=2),)))
    assert [target.replicas for target in desk.commit_of(effects).targets] == [2]
    assert not [effect for effect in desk.pass_time(5) if isinstance(effect, AnnounceDecision)]


def test_a_pool_that_goes_takes_its_drains_with_it() -> None:
    desk = leading()
    desk.pass_time(2)
    assert [effect for effect in desk.tell(DrainRequested("m", "decode", "a", "me")) if isinstance(effect, SendDrain)]
    other = replace(DECODE, name="other")
    change(desk, with_model(desk.controller.settings, "m", pools=(other,)))
    state = desk.controller.state
    assert not state.drains.open
    assert state.fleet.workers == 2
    assert len(state.fleet.unassigned.workers) == 2
    desk.pass_time(5)
    change(desk, with_model(desk.controller.settings, "m", pools=(DECODE,)))
    assert sorted(state.fleet.models["m"].pools["decode"].workers) == ["a", "b"]
    assert state.fleet.workers == 4
    assert not state.fleet.unassigned.workers


def test_a_pool_of_another_role_is_another_pool() -> None:
    desk = leading()
    desk.pass_time(2)
    change(desk, with_model(desk.controller.settings, "m", pools=(PoolKnobs("decode", "aggregated"),)))
    pool = desk.controller.state.fleet.models["m"].pools["decode"]
    assert (pool.workers, pool.desired) == ({}, None)
    desk.pass_time(5)
    assert "planner_failures" not in desk.controller.state.counters


# -- what comes and goes -----------------------------------------------------------------------------------------------


def test_workers_that_were_registered_before_their_model_are_counted_when_it_comes() -> None:
    desk = Desk(without(Desk().controller.settings, "m"))
    records = [WorkerRecord("m", "decode", name, "decode", 1) for name in ("a", "b")]
    desk.tell(RegistryRead([RegisteredWorker(records[0], 5)]))
    desk.tell(WorkerRegistered(RegisteredWorker(records[1], 5)))
    change(desk, Desk().controller.settings)
    assert desk.controller.state.fleet.models["m"].pools["decode"].ready == 2


def test_a_worker_that_has_gone_before_its_model_came_is_not_counted() -> None:
    desk = Desk(without(Desk().controller.settings, "m"))
    worker = RegisteredWorker(WorkerRecord("m", "decode", "a", "decode", 1), 5)
    desk.tell(WorkerRegistered(worker))
    desk.tell(WorkerDeregistered("m", "decode", "a"))
    desk.tell(RegistryRead([worker]))
    desk.tell(RegistryRead([]))
    assert not desk.controller.state.fleet.unassigned.workers
    change(desk, Desk().controller.settings)
    assert desk.controller.state.fleet.workers == 0


def test_strangers_are_no_more_than_workers_may_be() -> None:
    desk = Desk(replace(without(Desk().controller.settings, "m"), fleet=FleetKnobs(workers_max=1)))
    for name in ("a", "b"):
        desk.tell(WorkerRegistered(RegisteredWorker(WorkerRecord("m", "decode", name, "decode", 1), 5)))
    assert len(desk.controller.state.fleet.unassigned.workers) == 1


def test_a_model_that_comes_back_goes_on_from_what_the_store_holds() -> None:
    desk, commit = growing()
    whole = desk.controller.settings
    change(desk, without(whole, "m"))
    assert desk.tell(DecisionCommitted(commit.decision.decision_id, "m", 50)) == []
    desk.pass_time(3)
    assert set(desk.controller.state.fleet.models) == {"n"}
    effects = change(desk, whole)
    assert not [effect for effect in effects if isinstance(effect, CommitDecision)], "nothing is known of its decisions"
    effects = read(desk, effects, StoredDecision(commit.decision, 50))
    assert desk.desired() == 3
    assert [effect.decision for effect in effects if isinstance(effect, AnnounceDecision)] == [commit.decision]


def test_a_sequence_is_never_used_again() -> None:
    desk, commit = growing()
    whole = desk.controller.settings
    change(desk, without(whole, "m"))
    desk.tell(CommitUnknown(commit.decision.decision_id, "m"))
    read(desk, change(desk, whole))
    (again,) = [effect for effect in desk.pass_time(45) if isinstance(effect, CommitDecision)]
    assert again.decision.sequence > commit.decision.sequence


def test_a_new_model_warms_up_and_the_others_need_not() -> None:
    desk = leading()
    desk.pass_time(5)
    guard = GuardrailKnobs(stabilisation_ms=0, cooldown_down_ms=0, warm_up_ms=60_000)
    whole = with_model(with_model(desk.controller.settings, "m", guardrails=guard), "n", guardrails=guard)
    change(desk, without(whole, "m"))
    desk.pass_time(60)
    desk.kv = {"m": 0.1, "n": 0.1}
    read(desk, change(desk, whole))
    shrinks = [effect.decision.model for effect in desk.pass_time(40) if isinstance(effect, CommitDecision)]
    assert set(shrinks) == {"n"}
    shrinks = [effect.decision.model for effect in desk.pass_time(30) if isinstance(effect, CommitDecision)]
    assert "m" in shrinks


def test_a_new_model_begins_with_what_the_store_holds_of_it() -> None:
    desk = Desk(without(Desk().controller.settings, "m"))
    desk.tell(LearnedRead({"m": LearnedState(start_ups_ms={"decode": [4_000]})}))
    change(desk, Desk().controller.settings)
    assert desk.controller.state.fleet.models["m"].pools["decode"].start_ups_ms == [4_000]


# -- the journal -------------------------------------------------------------------------------------------------------


def test_a_journal_replays_exactly_across_changes() -> None:
    world, agent, journal = lone_agent(5, (0.0, 60_000.0, 90_000.0))
    timeline, whole = world.timeline, agent.controller.settings
    guard = GuardrailKnobs(stabilisation_ms=2_000, warm_up_ms=2_000)
    changed = with_model(without(whole, "whole"), "split", planner="saturation", guardrails=guard)

    def put(settings: Settings) -> None:
        agent.inbox.put(SettingsChanged(msgspec.Raw(msgspec.json.encode(settings))))

    timeline.call_at(5_000.0, lambda: world.demand.update({("whole", "both"): 3.5, ("split", "decode"): 2.5}))
    timeline.call_at(20_000.0, lambda: put(with_model(whole, "split", guardrails=guard)))
    timeline.call_at(45_000.0, lambda: put(changed))
    timeline.call_at(70_000.0, lambda: put(whole))
    timeline.run_until(120_000.0)
    found = journal_records.replay((str(number), segment) for number, segment in enumerate(journal.kept))
    assert (found.difference, found.segments) == ("", 3)
    assert found.controller is not None
    assert found.controller.settings == whole
    assert found.controller.state.counters["settings_changed"] == 3
    assert found.decisions >= 2
