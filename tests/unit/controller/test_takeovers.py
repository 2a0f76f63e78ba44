"""What a new leader waits for: the warm-up, and the cooldown after the last decision of a former one."""

import msgspec
import pytest

from loadline.core.vocabulary.decisions import Decision, PoolTarget, StoredDecision
from loadline.core.vocabulary.effects import AnyEffect, CommitDecision
from loadline.core.vocabulary.events import BusConnectionChanged, RegistryRead
from tests.support.controller_harness import ControllerHarness, make_settings


def commits(effects: list[AnyEffect]) -> int:
    return sum(isinstance(effect, CommitDecision) for effect in effects)


def guarded(**limits: int) -> ControllerHarness:
    """Return a follower with two workers whose model has these guardrails."""
    settings = make_settings()
    guardrails = msgspec.structs.replace(settings.models[0].effective_guardrails, **limits)
    models = tuple(msgspec.structs.replace(model, guardrails=guardrails) for model in settings.models)
    harness = ControllerHarness(msgspec.structs.replace(settings, models=models))
    harness.handle(BusConnectionChanged(connected=True), RegistryRead([]))
    harness.register("a", "b")
    return harness


def test_after_a_takeover_a_shrink_waits_for_the_warm_up() -> None:
    harness = guarded(warm_up_ms=20_000)
    harness.become_leader()
    harness.advance(40)
    harness.lose_lease()
    harness.kv["m"] = 0.1
    harness.advance(40)
    harness.become_leader()
    assert commits(harness.advance(19)) == 0, "the agent had data before, but leads only since now"
    assert commits(harness.advance(2)) == 1


@pytest.mark.parametrize(
    ("previous", "issued_s", "left_s"),
    [
        pytest.param(1, -20, 40, id="grown"),
        pytest.param(3, -20, 40, id="shrunk"),
        pytest.param(1, 3_600, 60, id="by a clock that is ahead"),
    ],
)
def test_the_cooldown_after_the_decision_of_a_former_leader_goes_on(previous: int, issued_s: int, left_s: int) -> None:
    harness = guarded(cooldown_up_ms=60_000)
    harness.kv["m"] = 1.0
    harness.advance(60)
    issued_at_ms = harness.now + issued_s * 1_000
    decision = Decision(
        "x", "m", 5, 1, issued_at_ms, issued_at_ms + 900_000, (PoolTarget("decode", "decode", 2, previous),), ("load",)
    )
    begun = harness.become_leader(StoredDecision(decision, 9))
    assert commits([*begun, *harness.advance(left_s - 1)]) == 0
    assert commits(harness.advance(2)) == 1
    assert not harness.controller.state.fleet.models["m"].pools["decode"].start_ups_ms, "none has been seen"
