"""Decisions that wait for the last one, and what its scaler says about it."""

import pytest
from msgspec.structs import replace

from loadline.cli.status_output import format_statuses
from loadline.core.queries import status as query
from loadline.core.vocabulary.decisions import ApplyStatus
from loadline.core.vocabulary.durations import rounded_duration
from loadline.core.vocabulary.effects import AnyEffect
from loadline.core.vocabulary.status import ModelStatus
from tests.support.controller_world import ControllerWorld, booted, scaler_answer
from tests.support.fleet_harness import START


def growing(*, blocking: bool) -> ControllerWorld:
    """Return a world whose scaler has accepted to start a third decode worker, and whose load needs more."""
    world = booted()
    ledger = world.controller.state.ledger
    ledger.knobs = replace(ledger.knobs, blocking=blocking, ttl_ms=200_000)
    world.kv = 0.99
    world.run(31)
    assert counts(world) == 3
    assert ledger.entry("m").state == "accepted"
    world.register("decode", "d3")
    return world


def counts(world: ControllerWorld) -> int:
    return {t.pool: t.replicas for t in world.stored["m"].decision.targets}["decode"]


def answer(world: ControllerWorld, status: ApplyStatus, detail: str = "") -> list[AnyEffect]:
    return world.handle(replace(scaler_answer(world.stored["m"].decision, status), detail=detail))


def model(world: ControllerWorld) -> ModelStatus:
    return query.status(world.settings, world.controller.state, "0", START, world.now).models[0]


def test_by_default_a_decision_replaces_one_that_is_being_applied() -> None:
    world = growing(blocking=False)
    world.run(60)
    assert counts(world) > 3


def test_a_blocking_model_waits_until_its_decision_is_done() -> None:
    world = growing(blocking=True)
    world.run(60)
    assert counts(world) == 3
    left_ms = world.controller.state.ledger.entry("m").expires_at_ms - world.now
    left = rounded_duration(left_ms)
    assert f"decisions.blocking: the last decision is not done; it expires in {left}" in model(world).hold
    answer(world, "done")
    assert counts(world) == 4, "in the same turn"


@pytest.mark.parametrize("status", ["refused", None])
def test_a_decision_that_failed_does_not_block(status: ApplyStatus | None) -> None:
    world = growing(blocking=True)
    if status:
        answer(world, status)
    world.scaler_status = None
    world.run(60 if status else 240)
    assert counts(world) > 3


def test_a_new_leader_waits_for_a_decision_that_may_have_been_accepted() -> None:
    before = growing(blocking=True)
    world = ControllerWorld()
    world.stored, world.revision, world.now = before.stored, before.revision, before.now
    world.controller.state.ledger.knobs = before.controller.state.ledger.knobs
    world.scaler_status, world.kv = None, 0.99
    world.boot()
    world.register("decode", "d3")
    world.run(60)
    entry = world.controller.state.ledger.entry("m")
    assert (world.controller.leading, entry.state, counts(world)) == (True, "committed", 3)
    assert any("decisions.blocking" in sentence for sentence in model(world).hold)


def test_a_decision_for_the_rule_of_the_platform_is_not_blocked() -> None:
    world = booted()
    ledger = world.controller.state.ledger
    ledger.knobs = replace(ledger.knobs, blocking=True)
    world.scaler_status, world.kv = None, 0.3
    world.run(31)
    world.handle(scaler_answer(world.stored["m"].decision, decode="highest_ordinal"))
    assert [v.worker for t in world.stored["m"].decision.targets for v in t.victims if t.pool == "decode"] == ["d2"]


def test_the_status_says_why_a_decision_waits() -> None:
    world = growing(blocking=False)
    answer(world, "progress", "quota exceeded: 2 of 4 GPUs")
    decision = model(world).decision
    assert decision is not None
    assert (decision.state, decision.detail) == ("accepted", "quota exceeded: 2 of 4 GPUs")
    shown = format_statuses([query.status(world.settings, world.controller.state, "0", START, world.now)])
    lines = [line.strip() for line in shown.splitlines()]
    assert lines[lines.index("scaler: quota exceeded: 2 of 4 GPUs") - 1].startswith(f"decision {decision.decision_id}")
    answer(world, "progress")
    assert model(world).decision == replace(decision, detail="")


def test_what_a_scaler_said_belongs_to_its_decision() -> None:
    world = growing(blocking=False)
    first = world.stored["m"].decision
    answer(world, "progress", "image not found")
    world.scaler_status = None
    world.run(60)
    decision = model(world).decision
    assert decision is not None
    assert (decision.decision_id != first.decision_id, decision.detail) == (True, "")
    world.handle(replace(scaler_answer(first, "progress"), detail="image not found"))
    assert model(world).decision == decision
