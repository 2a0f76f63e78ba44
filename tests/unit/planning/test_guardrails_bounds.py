"""Guardrails that bound a pool for a time: an idle model, replacements and schedules."""

import pytest

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.fleet.schedule_windows import ScheduleMinimum
from loadline.core.planning.guardrails.constraints import Bound, Constraints, SupplyHeadroom
from loadline.core.vocabulary.reasons import ReasonCode
from tests.support.fleet_harness import START
from tests.support.guardrail_harness import MINUTE_MS, A, GuardrailHarness

EMPTY = PoolKnobs("a", "decode", replicas_min=0)
IDLE = Bound(ReasonCode.IDLE, maximum=0, numbers={"idle_ms": 1.0})
MINIMUM = Bound(ReasonCode.SCHEDULE_MINIMUM, minimum=4, numbers={"left_ms": 1.0})


def kept(harness: GuardrailHarness, bound: Bound, **proposed: int) -> tuple[dict[str, int], list[str]]:
    draft = harness.guard.apply(
        harness.refresh(), proposed, Constraints(harness.acting_since_ms, {"a": bound}), harness.now
    )
    return draft.targets, [f"{r.pool}:{r.code}" for r in draft.limits]


def test_an_idle_model_is_emptied_without_step_cooldown_or_stabilisation() -> None:
    harness = GuardrailHarness(EMPTY, step_down_max=1, stabilisation_ms=MINUTE_MS, cooldown_down_ms=MINUTE_MS)
    harness.pool("a").set_decided(4, START)
    assert kept(harness, IDLE, a=4) == ({"a": 0}, ["a:idle"])


def test_an_idle_model_keeps_its_workers_during_the_warm_up() -> None:
    harness = GuardrailHarness(EMPTY, warm_up_ms=MINUTE_MS)
    harness.acting_since_ms = START - MINUTE_MS + 1
    assert kept(harness, IDLE) == ({"a": 4}, ["a:warm_up", "a:idle"])
    harness.now += 1
    harness.guard.history["a"].quorate_since_ms = harness.acting_since_ms
    assert kept(harness, IDLE) == ({"a": 0}, ["a:idle"])


def test_an_idle_model_keeps_its_workers_without_data_and_its_minimum() -> None:
    assert kept(GuardrailHarness(EMPTY, quorate=False), IDLE) == ({"a": 4}, ["a:no_data_no_shrink", "a:idle"])
    assert kept(GuardrailHarness(A), IDLE) == ({"a": A.replicas_min}, ["a:replicas_min", "a:idle"])


def test_a_temporary_minimum_applies_without_step_or_cooldown() -> None:
    harness = GuardrailHarness(EMPTY, current=0, step_up_max=1, cooldown_up_ms=MINUTE_MS)
    harness.pool("a").scaled_down_at_ms = START
    assert kept(harness, MINIMUM) == ({"a": 4}, ["a:schedule_minimum"])
    assert kept(harness, MINIMUM, a=5)[0] == {"a": 4}


def test_maximum_replicas_override_a_temporary_minimum() -> None:
    least = PoolKnobs("a", "decode", replicas_max=3)
    assert kept(GuardrailHarness(least, current=1), MINIMUM) == ({"a": 3}, ["a:replicas_max", "a:schedule_minimum"])


@pytest.mark.parametrize(("wanted", "target", "applied"), [(2, 3, ["a:replacement_not_ready"]), (3, 3, []), (4, 4, [])])
def test_workers_stay_until_those_that_replace_them_are_ready(wanted: int, target: int, applied: list[str]) -> None:
    harness = GuardrailHarness(A)
    supply = SupplyHeadroom({}, {}, replacement_minimums={"a": 3})
    draft = harness.guard.apply(
        harness.refresh(), {"a": wanted}, Constraints(harness.acting_since_ms, supply=supply), harness.now
    )
    assert (draft.targets, [f"{r.pool}:{r.code}" for r in draft.limits]) == ({"a": target}, applied)


@pytest.mark.parametrize(("wanted", "target", "applied"), [(2, 3, ["a:schedule_minimum"]), (3, 3, []), (4, 4, [])])
def test_the_minimum_of_a_schedule_holds_in_its_window(wanted: int, target: int, applied: list[str]) -> None:
    harness = GuardrailHarness(A)
    harness.pool("a").schedule_minimum = ScheduleMinimum(3, harness.now + 5_000)
    draft = harness.apply(a=wanted)
    assert (draft.targets, [f"{r.pool}:{r.code}" for r in draft.limits]) == ({"a": target}, applied)
    assert [reason.numbers["left_ms"] for reason in draft.limits] == [5_000.0] * len(applied)


def test_a_bound_without_effect_gives_no_reason() -> None:
    assert kept(GuardrailHarness(A), MINIMUM, a=4) == ({"a": 4}, [])
    assert kept(GuardrailHarness(EMPTY, current=0), IDLE) == ({"a": 0}, [])
