"""What a planner of another package may recommend: numbers of NumPy; anything else that is wrong holds its model."""

from math import inf, nan
from typing import Any

import msgspec
import pytest
from numpy import array, bool_, float64, int64

from loadline.core.controller import Controller
from loadline.core.fleet.fleet import Model
from loadline.core.planning import planners
from loadline.core.planning.planner import ForecastRequest
from loadline.core.planning.planners.threshold import ThresholdPlanner
from loadline.core.planning.plugin_values import plain_recommendation
from loadline.core.queries.status import status
from loadline.core.vocabulary.effects import AnyEffect, CommitDecision, RaiseAlarm
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation, RoleDemand
from loadline.core.vocabulary.status import AgentStatus, Estimates
from tests.support.controller_harness import ControllerHarness, leading, make_settings

RIGHT = Reason.of(ReasonCode.CAPACITY_LEARNING, "decode", needed=2.0)


def recommendation(replicas: Any = 3, reason: Reason = RIGHT, **fields: Any) -> Recommendation:
    return Recommendation("own", {"decode": replicas}, (reason,), **{"inputs": {}, **fields})


def planned(
    monkeypatch: pytest.MonkeyPatch, found: Recommendation, *, kept: float = 1.5
) -> tuple[ControllerHarness, list[AnyEffect]]:
    """Return a leading controller whose planner begins to recommend ``found``, and the effects of the next seconds."""
    recommended = [Recommendation("own", {}, (RIGHT,), {})]

    class OwnPlanner(ThresholdPlanner):
        mean: Any = float64(kept)
        request: Any = int64(1)
        is_high: Any = bool_(1)

        def plan(self, model: Model, now: int) -> Recommendation:
            del model, now
            return recommended[-1]

        def next_wake(self) -> Any:
            return int64(2**50)

        def forecast_request(self) -> ForecastRequest | None:
            request, self.request = self.request, None
            return None if request is None else ForecastRequest(request, [])

        def estimates(self, model: Model) -> Estimates:
            del model
            return Estimates(corrections={"decode": self.mean})

    monkeypatch.setitem(planners.PLANNERS, "threshold", OwnPlanner)
    harness = leading()
    recommended.append(found)
    return harness, harness.advance(5)


def estimates_of(harness: ControllerHarness) -> Estimates:
    controller = harness.controller
    found = status(controller.settings, controller.state, "1", harness.now, harness.now, controller.planners)
    return msgspec.json.decode(msgspec.json.encode(found), type=AgentStatus).models[0].estimates


def test_numbers_of_numpy_are_plain_in_a_decision_a_status_and_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = Reason(ReasonCode.CAPACITY_LEARNING, "decode", {"needed": float64(2.5)})
    harness, effects = planned(monkeypatch, recommendation(int64(3), needed))
    [target] = harness.commit_of(effects).targets
    assert type(target.replicas) is int
    assert target.replicas == 3
    assert estimates_of(harness) == Estimates(corrections={"decode": 1.5})
    restored = Controller(make_settings())
    restored.restore(harness.controller.snapshot())
    assert restored.snapshot() == harness.controller.snapshot()


def test_a_planner_may_begin_with_fields_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    class Numeric(ThresholdPlanner):
        name = "numeric"
        summary = "Keeps numbers of NumPy."
        level: float = float64(0.0)
        is_high: bool = bool_(0)  # type: ignore[assignment]

    monkeypatch.setattr(planners, "PLANNERS", dict(planners.PLANNERS))
    planners.register(Numeric)
    assert planners.PLANNERS["numeric"] is Numeric


def test_estimates_that_a_status_cannot_hold_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    harness, _effects = planned(monkeypatch, recommendation(), kept=nan)
    assert estimates_of(harness) == Estimates()


def test_a_wrong_recommendation_holds_the_model_with_an_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    _harness, effects = planned(monkeypatch, recommendation(reason=Reason(ReasonCode.CAPACITY_LEARNING, "decode")))
    text = "ValueError: plan() gives reason capacity_learning without its number 'needed'"
    assert RaiseAlarm("planner_failed", "m", text) in effects
    assert not [one for one in effects if isinstance(one, CommitDecision)]


def test_demands_that_are_not_finite_are_left_out_and_large_counts_are_for_the_guardrails() -> None:
    usable = RoleDemand("decode", 1.0, {"decode": 2.0})
    demands = (usable, RoleDemand("decode", inf, {}), RoleDemand("prefill", 1.0, {"prefill": nan}))
    found = recommendation(4 * 10**9, demands=demands)
    assert plain_recommendation(found, {"decode"}) == recommendation(4 * 10**9, demands=(usable,))


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, r"plan\(\) returned NoneType; it must return a Recommendation"),
        (recommendation(-1), "recommends -1 workers for decode; a count is 0 to"),
        (recommendation(10**30), "recommends 1.* workers for decode"),
        (recommendation(2.5), r"Expected `int`, got `float` - at `\$.targets"),
        (recommendation(nan), r"Expected `int`, got `null` - at `\$.targets"),
        (recommendation(reason=Reason.of(ReasonCode.CAPACITY_LEARNING, needed=inf)), r"at `\$.reasons"),
        (recommendation(reason=Reason("my_code")), r"Invalid enum value 'my_code' - at `\$.reasons"),  # type: ignore[arg-type]
        (
            recommendation(inputs={"rate": object()}),
            r"a planner returned or keeps a value of type object, which no snapshot can hold",
        ),
        (recommendation(victims={"prefill": ("a",)}), "names pool 'prefill'; the pools are decode"),
        (recommendation(unneeded={"prefill": 1}), "names pool 'prefill'; the pools are decode"),
        (recommendation(unneeded={"decode": -1}), "names -1 unneeded workers of decode; a count is 0 to"),
        (recommendation(lasting={"prefill": 1}), "names pool 'prefill'; the pools are decode"),
        (recommendation(lasting={"decode": -1}), "names -1 lasting workers of decode; a count is 0 to"),
    ],
)
def test_what_is_wrong_is_named(found: object, message: str) -> None:
    with pytest.raises((TypeError, ValueError, msgspec.ValidationError), match=message):
        plain_recommendation(found, {"decode"})


@pytest.mark.parametrize("raises", [False, True])
def test_a_planner_that_no_snapshot_can_hold_begins_anew(monkeypatch: pytest.MonkeyPatch, *, raises: bool) -> None:
    spoiled: list[int] = []

    class SpoiledPlanner(ThresholdPlanner):
        mean: float = 1.5

        def plan(self, model: Model, now: int) -> Recommendation:
            del model
            if spoiled:
                spoiled.append(now)
                self.mean = array([1.0])  # type: ignore[assignment]
                if raises:
                    raise ZeroDivisionError
            return Recommendation("own", {}, (RIGHT,), {})

    monkeypatch.setitem(planners.PLANNERS, "threshold", SpoiledPlanner)
    harness = leading()
    before = harness.controller.planners["m"]
    spoiled.append(0)
    [alarm] = [one for one in harness.advance(5) if isinstance(one, RaiseAlarm) and one.model == "m"]
    assert alarm.kind == "planner_failed"
    assert (
        alarm.text.startswith("ZeroDivisionError")
        if raises
        else "type ndarray, which no snapshot can hold" in alarm.text
    )
    assert len(spoiled) > 1
    assert harness.controller.planners["m"] is not before
    restored = Controller(make_settings())
    restored.restore(harness.controller.snapshot())
    assert restored.snapshot() == harness.controller.snapshot()
