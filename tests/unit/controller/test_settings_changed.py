"""Changed settings: known models and pools keep their state; others are added and removed."""

from typing import Any

import msgspec
from msgspec.structs import replace

from loadline.core.fleet.fleet import FleetKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.guardrails.knobs import GuardrailKnobs
from loadline.core.planning.planners.threshold import ThresholdKnobs
from loadline.core.state.settings import Settings
from loadline.core.vocabulary.decisions import StoredDecision
from loadline.core.vocabulary.effects import (
    AnnounceDecision,
    AnyEffect,
    CommitDecision,
    RaiseAlarm,
    ReadDecisions,
    SendDrain,
)
from loadline.core.vocabulary.events import (
    AnnouncementRequested,
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
from tests.support.controller_harness import READ_AT, ControllerHarness, leading
from tests.support.segments import single_agent

DECODE = PoolKnobs("decode", "decode")


def change(harness: ControllerHarness, settings: Settings) -> list[AnyEffect]:
    return harness.handle(SettingsChanged(msgspec.Raw(msgspec.json.encode(settings))))


def with_model(settings: Settings, name: str, **knobs: Any) -> Settings:
    models = tuple(replace(model, **knobs) if model.name == name else model for model in settings.models)
    return replace(settings, models=models)


def without(settings: Settings, name: str) -> Settings:
    return replace(settings, models=tuple(model for model in settings.models if model.name != name))


def read(harness: ControllerHarness, effects: list[AnyEffect], *stored: StoredDecision) -> list[AnyEffect]:
    (request,) = [effect for effect in effects if type(effect) is ReadDecisions]
    return harness.handle(DecisionsRead(request.request, list(stored), READ_AT))


def known(harness: ControllerHarness) -> dict[str, Any]:
    """Return the snapshot without the fields that each round changes."""
    found: dict[str, Any] = msgspec.json.decode(harness.controller.snapshot())
    del found["state"]["counters"]
    for model in found["state"]["fleet"]["models"].values():
        del model["plan_at_ms"], model["hold"]
    return found


def test_workers_that_new_settings_leave_without_a_pool_are_reported_once() -> None:
    harness = leading()
    settings = harness.controller.settings
    removed = without(settings, "n")
    (alarm,) = [one for one in change(harness, removed) if isinstance(one, RaiseAlarm)]
    assert (alarm.kind, alarm.model) == ("workers_unmanaged", "n")
    assert alarm.text.startswith("2 registered workers have no pool in the new configuration")
    assert not [one for one in change(harness, removed) if isinstance(one, RaiseAlarm)]
    assert not [one for one in change(harness, settings) if isinstance(one, RaiseAlarm)], "they are managed again"
    prefill = with_model(settings, "m", pools=(PoolKnobs("decode", "prefill"),))
    (alarm,) = [one for one in change(harness, prefill) if isinstance(one, RaiseAlarm)]
    assert (alarm.kind, alarm.model) == ("workers_unmanaged", "m")


def growing() -> tuple[ControllerHarness, CommitDecision]:
    """Return a leader whose decision to add a worker of ``m`` is being committed."""
    harness = leading()
    harness.kv["m"] = 0.95
    (commit,) = [effect for effect in harness.advance(31) if isinstance(effect, CommitDecision)]
    return harness, commit


# -- unchanged models --------------------------------------------------------------------------------------------------


def test_the_same_settings_change_nothing() -> None:
    harness, _ = growing()
    change(harness, harness.controller.settings)  # plans all models, so that the next change finds nothing new
    before = known(harness)
    assert change(harness, harness.controller.settings) == []
    assert known(harness) == before


def test_the_identity_and_leader_election_of_an_agent_cannot_change() -> None:
    harness = leading()
    old = harness.controller.settings
    lease = replace(old.leadership, lease_ttl_s=99)
    change(harness, replace(old, agent="agent-9", scope="other", leadership=lease))
    assert harness.controller.settings == old


def test_windows_and_bounds_change_and_keep_their_data() -> None:
    harness = leading()
    harness.advance(10)
    guard, threshold = GuardrailKnobs(stabilisation_ms=7_000), ThresholdKnobs(adjustment_interval_ms=5_000)
    settings = with_model(
        harness.controller.settings, "m", guardrails=guard, planner_knobs={"threshold": threshold}, gpu_budget_max=3
    )
    change(harness, replace(settings, fleet=FleetKnobs(quorum_ratio=0.5, traffic_window_ms=9_000)))
    state, planner = harness.controller.state, harness.controller._planners["m"]
    assert state.fleet.models["m"].guardrails.history["decode"].proposals.window_ms == 7_000
    assert (
        state.fleet.models["m"].guardrails.hard.quorum_ratio,
        state.fleet.models["m"].guardrails.hard.gpu_budget_max,
    ) == (0.5, 3)
    assert state.fleet.models["m"].traffic.window_ms == 9_000
    watch = planner.histories["decode"]  # type: ignore[attr-defined]
    assert watch.kv.low.window_ms == 5_000
    assert len(watch.kv.low.values) >= 5
    assert state.fleet.models["n"].guardrails.history["decode"].proposals.window_ms == 0


def test_settings_without_new_counts_cause_no_decision() -> None:
    harness = leading()
    harness.advance(10)
    change(
        harness,
        with_model(
            harness.controller.settings, "m", guardrails=GuardrailKnobs(), planner_knobs={"threshold": ThresholdKnobs()}
        ),
    )
    assert not [effect for effect in harness.advance(60) if isinstance(effect, CommitDecision)]
    assert harness.controller.state.counters["settings_changed"] == 1


def test_a_longer_deadline_makes_overdue_workers_starting_again() -> None:
    harness = leading()
    starting = WorkerRecord("m", "decode", "c", "decode", 1, "starting")
    harness.handle(WorkerRegistered(RegisteredWorker(starting, 5)))
    harness.advance(62)
    pool = harness.controller.state.fleet.models["m"].pools["decode"]
    assert pool.overdue == 1
    change(harness, with_model(harness.controller.settings, "m", pools=(replace(DECODE, start_deadline_ms=120_000),)))
    assert (pool.overdue, pool.worker_counts(harness.now).starting) == (0, 1)


def test_a_model_can_change_its_kind_of_planner() -> None:
    harness = leading()
    harness.advance(5)
    change(harness, with_model(harness.controller.settings, "m", planner="hpa"))
    planners = harness.controller._planners
    assert (planners["m"].name, planners["n"].name) == ("hpa", "threshold")
    assert planners["n"].histories  # type: ignore[attr-defined]


# -- decisions and drains in progress ----------------------------------------------------------------------------------


def test_a_decision_that_is_being_committed_is_announced() -> None:
    harness, commit = growing()
    change(harness, with_model(harness.controller.settings, "m", guardrails=GuardrailKnobs()))
    effects = harness.handle(DecisionCommitted(commit.decision.decision_id, "m", 50))
    assert [effect.decision for effect in effects if isinstance(effect, AnnounceDecision)] == [commit.decision]
    assert harness.desired() == 3


def test_a_commit_above_new_bounds_is_replaced_by_a_new_decision() -> None:
    harness, commit = growing()
    change(harness, with_model(harness.controller.settings, "m", pools=(replace(DECODE, replicas_max=2),)))
    effects = harness.handle(DecisionCommitted(commit.decision.decision_id, "m", 50))
    assert not [effect for effect in effects if isinstance(effect, AnnounceDecision)]
    assert [target.replicas for target in harness.commit_of(effects).targets] == [2]


def test_an_open_decision_above_new_bounds_is_no_longer_announced() -> None:
    harness, commit = growing()
    harness.handle(DecisionCommitted(commit.decision.decision_id, "m", 50))
    effects = change(harness, with_model(harness.controller.settings, "m", pools=(replace(DECODE, replicas_max=2),)))
    assert [target.replicas for target in harness.commit_of(effects).targets] == [2]
    assert not [effect for effect in harness.advance(5) if isinstance(effect, AnnounceDecision)]


def test_a_scaler_that_starts_gets_no_decision_above_new_bounds() -> None:
    harness, commit = growing()
    harness.handle(DecisionCommitted(commit.decision.decision_id, "m", 50))
    harness.controller.state.paused["m"] = "somebody"
    change(harness, with_model(harness.controller.settings, "m", pools=(replace(DECODE, replicas_max=2),)))
    effects = [*harness.handle(AnnouncementRequested("m", "started")), *harness.advance(5)]
    assert not [effect for effect in effects if isinstance(effect, AnnounceDecision)]


def test_a_removed_pool_drops_its_drains() -> None:
    harness = leading()
    harness.advance(2)
    assert [
        effect for effect in harness.handle(DrainRequested("m", "decode", "a", "me")) if isinstance(effect, SendDrain)
    ]
    other = replace(DECODE, name="other")
    change(harness, with_model(harness.controller.settings, "m", pools=(other,)))
    state = harness.controller.state
    assert not state.drains.open
    assert state.fleet.workers == 2
    assert len(state.fleet.unassigned.workers) == 2
    harness.advance(5)
    change(harness, with_model(harness.controller.settings, "m", pools=(DECODE,)))
    assert sorted(state.fleet.models["m"].pools["decode"].workers) == ["a", "b"]
    assert state.fleet.workers == 4
    assert not state.fleet.unassigned.workers


def test_a_pool_with_another_role_starts_empty() -> None:
    harness = leading()
    harness.advance(2)
    change(harness, with_model(harness.controller.settings, "m", pools=(PoolKnobs("decode", "aggregated"),)))
    pool = harness.controller.state.fleet.models["m"].pools["decode"]
    assert (pool.workers, pool.decided) == ({}, None)
    harness.advance(5)
    assert "planner_failures" not in harness.controller.state.counters


# -- added and removed models ------------------------------------------------------------------------------------------


def test_workers_registered_before_their_model_are_assigned_to_it() -> None:
    harness = ControllerHarness(without(ControllerHarness().controller.settings, "m"))
    records = [WorkerRecord("m", "decode", name, "decode", 1) for name in ("a", "b")]
    harness.handle(RegistryRead([RegisteredWorker(records[0], 5)]))
    harness.handle(WorkerRegistered(RegisteredWorker(records[1], 5)))
    change(harness, ControllerHarness().controller.settings)
    assert harness.controller.state.fleet.models["m"].pools["decode"].ready == 2


def test_a_worker_deregistered_before_its_model_is_added_does_not_count() -> None:
    harness = ControllerHarness(without(ControllerHarness().controller.settings, "m"))
    worker = RegisteredWorker(WorkerRecord("m", "decode", "a", "decode", 1), 5)
    harness.handle(WorkerRegistered(worker))
    harness.handle(WorkerDeregistered("m", "decode", "a"))
    harness.handle(RegistryRead([worker]))
    harness.handle(RegistryRead([]))
    assert not harness.controller.state.fleet.unassigned.workers
    change(harness, ControllerHarness().controller.settings)
    assert harness.controller.state.fleet.workers == 0


def test_the_number_of_unassigned_workers_is_bounded() -> None:
    harness = ControllerHarness(
        replace(without(ControllerHarness().controller.settings, "m"), fleet=FleetKnobs(workers_max=1))
    )
    for name in ("a", "b"):
        harness.handle(WorkerRegistered(RegisteredWorker(WorkerRecord("m", "decode", name, "decode", 1), 5)))
    assert len(harness.controller.state.fleet.unassigned.workers) == 1


def test_a_model_that_is_added_again_continues_from_the_store() -> None:
    harness, commit = growing()
    original = harness.controller.settings
    change(harness, without(original, "m"))
    assert harness.handle(DecisionCommitted(commit.decision.decision_id, "m", 50)) == []
    harness.advance(3)
    assert set(harness.controller.state.fleet.models) == {"n"}
    effects = change(harness, original)
    assert not [effect for effect in effects if isinstance(effect, CommitDecision)], "the decisions have not been read"
    effects = read(harness, effects, StoredDecision(commit.decision, 50))
    assert harness.desired() == 3
    assert [effect.decision for effect in effects if isinstance(effect, AnnounceDecision)] == [commit.decision]


def test_a_model_that_is_added_again_reuses_no_sequence() -> None:
    harness, commit = growing()
    original = harness.controller.settings
    change(harness, without(original, "m"))
    harness.handle(CommitUnknown(commit.decision.decision_id, "m"))
    read(harness, change(harness, original))
    (again,) = [effect for effect in harness.advance(45) if isinstance(effect, CommitDecision)]
    assert again.decision.sequence > commit.decision.sequence


def test_only_a_new_model_warms_up() -> None:
    harness = leading()
    harness.advance(5)
    guard = GuardrailKnobs(stabilisation_ms=0, cooldown_down_ms=0, warm_up_ms=60_000)
    original = with_model(with_model(harness.controller.settings, "m", guardrails=guard), "n", guardrails=guard)
    change(harness, without(original, "m"))
    harness.advance(60)
    harness.kv = {"m": 0.1, "n": 0.1}
    read(harness, change(harness, original))
    shrinks = [effect.decision.model for effect in harness.advance(40) if isinstance(effect, CommitDecision)]
    assert set(shrinks) == {"n"}
    shrinks = [effect.decision.model for effect in harness.advance(30) if isinstance(effect, CommitDecision)]
    assert "m" in shrinks


def test_a_new_model_starts_with_its_learned_state() -> None:
    harness = ControllerHarness(without(ControllerHarness().controller.settings, "m"))
    harness.handle(LearnedRead({"m": LearnedState(start_ups_ms={"decode": [4_000]})}))
    change(harness, ControllerHarness().controller.settings)
    assert harness.controller.state.fleet.models["m"].pools["decode"].start_ups_ms == [4_000]


# -- the journal -------------------------------------------------------------------------------------------------------


def test_a_journal_replays_exactly_across_changed_settings() -> None:
    world, agent, journal = single_agent(5, (0.0, 60_000.0, 90_000.0))
    timeline, original = world.timeline, agent.controller.settings
    guard = GuardrailKnobs(stabilisation_ms=2_000, warm_up_ms=2_000)
    changed = with_model(without(original, "whole"), "split", planner="saturation", guardrails=guard)

    def put(settings: Settings) -> None:
        agent.inbox.put(SettingsChanged(msgspec.Raw(msgspec.json.encode(settings))))

    timeline.call_at(5_000.0, lambda: world.demand.update({("whole", "both"): 3.5, ("split", "decode"): 2.5}))
    timeline.call_at(20_000.0, lambda: put(with_model(original, "split", guardrails=guard)))
    timeline.call_at(45_000.0, lambda: put(changed))
    timeline.call_at(70_000.0, lambda: put(original))
    timeline.run_until(120_000.0)
    found = journal_records.replay((str(number), segment) for number, segment in enumerate(journal.kept))
    assert (found.difference, found.segments) == ("", 3)
    assert found.controller is not None
    assert found.controller.settings == original
    assert found.controller.state.counters["settings_changed"] == 3
    assert found.decisions >= 2
