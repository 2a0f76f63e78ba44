"""A planner with a fault holds its own model: it is said, counted and told once, and the others go on."""

import pytest

from loadline.core.controller import Controller
from loadline.core.fleet.fleet import Model
from loadline.core.planning.planners.threshold import ThresholdPlanner
from loadline.core.vocabulary.effects import AnyEffect, CommitDecision, RaiseAlarm
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation
from tests.support.desk import Desk, leading, make_settings
from tests.support.holds import hold_of

FAULT = "ZeroDivisionError: float division by zero"


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Models whose planner fails."""
    names: set[str] = set()
    plan = ThresholdPlanner.plan

    def faulty(planner: ThresholdPlanner, model: Model, now: int) -> Recommendation:
        if model.name in names:
            raise ZeroDivisionError("float division by zero")
        return plan(planner, model, now)

    monkeypatch.setattr(ThresholdPlanner, "plan", faulty)
    return names


def said(desk: Desk) -> list[Reason]:
    return [reason for opinion in hold_of(desk.controller.state, "m").recommendations for reason in opinion.reasons]


def told(effects: list[AnyEffect]) -> list[AnyEffect]:
    return [effect for effect in effects if isinstance(effect, RaiseAlarm)]


def test_other_models_go_on_and_a_replay_gives_the_same(broken: set[str]) -> None:
    desk = leading()
    broken.add("m")
    desk.kv = {"m": 1.0, "n": 1.0}
    effects = desk.pass_time(40)
    assert told(effects) == [RaiseAlarm("planner_failed", "m", FAULT)]
    assert {e.decision.model for e in effects if isinstance(e, CommitDecision)} == {"n"}
    assert desk.controller.state.counters["planner_failures"] >= 40
    assert said(desk) == [Reason(ReasonCode.PLANNER_FAILED, detail=FAULT)]

    twin = Controller(make_settings())
    twin.restore(desk.controller.snapshot())
    later = desk.now + 2_000
    assert twin.handle([], later) == desk.controller.handle([], later)
    assert twin.snapshot() == desk.controller.snapshot()


def test_it_plans_again_when_it_can_and_the_next_fault_is_told_anew(broken: set[str]) -> None:
    desk = leading()
    for fails in (True, False, True):
        broken.symmetric_difference_update("m")
        assert len(told(desk.pass_time(5))) == fails
        assert (Reason(ReasonCode.PLANNER_FAILED, detail=FAULT) in said(desk)) == fails
