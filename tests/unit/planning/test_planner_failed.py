"""A planner that raises: its model is held with one alarm, and others are planned."""

import pytest

from loadline.core.controller import Controller
from loadline.core.fleet.fleet import Model
from loadline.core.planning.planners.threshold import ThresholdPlanner
from loadline.core.vocabulary.effects import AnyEffect, CommitDecision, RaiseAlarm
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation
from tests.support.controller_harness import ControllerHarness, leading, make_settings
from tests.support.holds import hold_of

FAULT = "ZeroDivisionError: float division by zero"


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Return models whose planner raises."""
    names: set[str] = set()
    plan = ThresholdPlanner.plan

    def faulty(planner: ThresholdPlanner, model: Model, now: int) -> Recommendation:
        if model.name in names:
            raise ZeroDivisionError("float division by zero")
        return plan(planner, model, now)

    monkeypatch.setattr(ThresholdPlanner, "plan", faulty)
    return names


def hold_reasons(harness: ControllerHarness) -> list[Reason]:
    return [
        reason
        for recommendation in hold_of(harness.controller.state, "m").recommendations
        for reason in recommendation.reasons
    ]


def alarms_of(effects: list[AnyEffect]) -> list[AnyEffect]:
    return [effect for effect in effects if isinstance(effect, RaiseAlarm)]


def test_a_failed_planner_does_not_affect_other_models_or_the_replay(broken: set[str]) -> None:
    harness = leading()
    broken.add("m")
    harness.kv = {"m": 1.0, "n": 1.0}
    effects = harness.advance(40)
    assert alarms_of(effects) == [RaiseAlarm("planner_failed", "m", FAULT)]
    assert {e.decision.model for e in effects if isinstance(e, CommitDecision)} == {"n"}
    assert harness.controller.state.counters["planner_failures"] >= 40
    assert hold_reasons(harness) == [Reason(ReasonCode.PLANNER_FAILED, detail=FAULT)]

    replayed = Controller(make_settings())
    replayed.restore(harness.controller.snapshot())
    later = harness.now + 2_000
    assert replayed.handle([], later) == harness.controller.handle([], later)
    assert replayed.snapshot() == harness.controller.snapshot()


def test_a_planner_recovers_and_a_new_failure_is_reported_again(broken: set[str]) -> None:
    harness = leading()
    for fails in (True, False, True):
        broken.symmetric_difference_update("m")
        assert len(alarms_of(harness.advance(5))) == fails
        assert (Reason(ReasonCode.PLANNER_FAILED, detail=FAULT) in hold_reasons(harness)) == fails
