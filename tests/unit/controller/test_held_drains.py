"""Drains are held until a scaler has accepted the decision that names the victims."""

import msgspec
import pytest
from msgspec import Raw
from msgspec.structs import replace

from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.planning.guardrails.constraints import Constraints
from loadline.core.vocabulary.decisions import ApplyStatus, StoredDecision, Victim
from loadline.core.vocabulary.effects import AnyEffect, RemoveWorker, SendDrain
from loadline.core.vocabulary.events import (
    BusConnectionChanged,
    DrainRequested,
    LeaderChanged,
    RegistryRead,
    SettingsChanged,
    WorkerDeregistered,
    WorkerRegistered,
)
from loadline.core.vocabulary.reasons import ReasonCode
from loadline.core.vocabulary.samples import RegisteredWorker
from tests.support.controller_world import ControllerWorld, alarms, booted, scaler_answer
from tests.support.guardrail_harness import GuardrailHarness


def drains(effects: list[AnyEffect]) -> list[str]:
    """Return the workers of the pool ``decode`` that get drain commands."""
    return [effect.worker for effect in effects if isinstance(effect, SendDrain) and effect.pool == "decode"]


def decode(world: ControllerWorld) -> Pool:
    return world.controller.state.fleet.models["m"].pools["decode"]


def shrinking(**knobs: object) -> ControllerWorld:
    """Return a world whose decision to drain d1 has been announced, and no scaler has answered."""
    world = booted(**knobs)
    world.scaler_status = None
    world.kv = 0.3
    world.run(31)
    world.kv = 0.7
    (target,) = [t for t in world.stored["m"].decision.targets if t.pool == "decode"]
    assert (target.replicas, target.victims) == (1, (Victim("d1", 1),))
    assert decode(world).decided == 1
    return world


@pytest.mark.parametrize("status", ["accepted", "progress", "done"])
def test_drains_begin_when_a_scaler_accepts(status: ApplyStatus) -> None:
    world = shrinking()
    world.run(20)
    assert drains(world.effects) == []
    effects = world.handle(scaler_answer(world.stored["m"].decision, status))
    assert drains(effects) == ["d1"], "in the same turn"
    (command,) = [effect for effect in effects if isinstance(effect, SendDrain) and effect.pool == "decode"]
    assert command.ttl_ms == world.controller.state.drains.knobs.ttl_ms, "its time begins now"
    assert drains(world.handle(scaler_answer(world.stored["m"].decision, status))) == [], "a repeated answer"


def test_an_answer_to_another_decision_begins_no_drain() -> None:
    world = shrinking()
    other = scaler_answer(world.stored["m"].decision)
    world.handle(type(other)("f" * 16, *[getattr(other, name) for name in other.__struct_fields__[1:]]))
    assert drains(world.effects) == []


def test_victims_of_a_refused_decision_serve_on() -> None:
    world = shrinking()
    assert decode(world).ready == 1
    world.handle(scaler_answer(world.stored["m"].decision, "refused"))
    assert (decode(world).ready, decode(world).decided) == (2, 2)
    assert world.controller.state.drains.open == {}
    world.run(30)
    assert drains(world.effects) == []


def test_victims_of_an_expired_decision_serve_on() -> None:
    world = shrinking()
    world.run(900)
    assert alarms(world.effects).count("decision_expired") == 1
    assert (decode(world).ready, drains(world.effects)) == (2, [])
    assert not any(isinstance(effect, RemoveWorker) for effect in world.effects)


def test_a_refusal_after_the_acceptance_cancels_no_drain() -> None:
    world = shrinking()
    decision = world.stored["m"].decision
    world.handle(scaler_answer(decision))
    world.handle(scaler_answer(decision, "refused"))
    assert decode(world).draining_workers() == 1


def test_a_pool_grows_but_does_not_shrink_while_its_drains_are_held() -> None:
    world = booted()
    world.register("decode", "d3")
    world.scaler_status, world.kv = None, 0.1
    world.run(150)
    assert decode(world).decided == 2
    first = world.stored["m"].decision
    assert [t.victims for t in first.targets if t.pool == "decode"] == [(Victim("d1", 1),)]
    world.kv = 0.95
    world.run(30)
    found = {t.pool: t for t in world.stored["m"].decision.targets}["decode"]
    assert found.replicas > 2
    assert found.victims == (Victim("d1", 1),), "a scaler may have accepted although its answer was lost"
    assert drains(world.effects) == []
    assert drains(world.handle(scaler_answer(first))) == [], "another decision is in force"
    assert drains(world.handle(scaler_answer(world.stored["m"].decision))) == ["d1"]


def test_a_pool_shrinks_further_once_a_scaler_has_accepted() -> None:
    world = booted()
    world.register("decode", "d3")
    world.kv = 0.1
    world.run(150)
    assert decode(world).decided == 1


def test_the_victims_of_the_next_decision_wait_for_its_own_acceptance() -> None:
    world = booted()
    world.register("decode", "d3")
    world.kv = 0.1
    while decode(world).decided != 2:
        world.run(1)
    world.scaler_status = None
    world.run(150)
    assert decode(world).decided == 1
    assert set(drains(world.effects)) == {"d1"}
    assert set(drains(world.handle(scaler_answer(world.stored["m"].decision)))) == {"d2"}


@pytest.mark.parametrize("refused", [True, False])
def test_a_read_of_the_registry_resumes_no_drain_of_a_failed_decision(*, refused: bool) -> None:
    world = shrinking()
    if refused:
        world.handle(scaler_answer(world.stored["m"].decision, "refused"))
    else:
        world.run(900)
    world.handle(RegistryRead([RegisteredWorker(record, 5) for record in world.workers.values()]))
    assert (decode(world).ready, world.controller.state.drains.open) == (2, {})


def test_a_newer_decision_in_the_store_releases_the_victims_that_it_does_not_name() -> None:
    world = shrinking()
    stored = world.stored["m"]
    targets = tuple(replace(target, replicas=2, victims=()) for target in stored.decision.targets)
    newer = replace(stored.decision, decision_id="newer", sequence=stored.decision.sequence + 1, targets=targets)
    world.stored["m"] = StoredDecision(newer, world.revision)
    world.handle(LeaderChanged("all", "agent-1", 77, world.revision, store_went_back=True))
    assert (decode(world).ready, decode(world).decided, world.controller.state.drains.open) == (2, 2, {})


def test_the_victims_of_a_decision_above_a_lowered_maximum_serve_on() -> None:
    world = shrinking()
    decision = world.stored["m"].decision
    prefill, decode_target = decision.targets
    growing = replace(prefill, replicas=6, victims=())
    world.stored["m"] = StoredDecision(
        replace(decision, sequence=decision.sequence + 1, targets=(growing, decode_target)), world.revision
    )
    world.handle(LeaderChanged("all", "agent-1", 77, world.revision, store_went_back=True))
    assert decode(world).ready == 1
    (model,) = world.settings.models
    pools = (replace(model.pools[0], replicas_max=3), model.pools[1])
    lowered = replace(world.settings, models=(replace(model, pools=pools),))
    world.answer_commits = False
    world.handle(SettingsChanged(Raw(msgspec.json.encode(lowered))))
    assert decode(world).ready == 2


def test_the_reason_for_not_shrinking_further_is_named() -> None:
    harness = GuardrailHarness(PoolKnobs("a", "decode"))
    limits = Constraints(harness.acting_since_ms, unaccepted=frozenset({"a"}))
    found = harness.guard.apply(harness.refresh(), {"a": 1}, limits, harness.now)
    assert found.targets["a"] == 4
    assert ReasonCode.UNACCEPTED in {reason.code for reason in found.limits}
    assert harness.guard.apply(harness.refresh(), {"a": 5}, limits, harness.now).targets["a"] == 5


def test_a_new_leader_drains_when_a_scaler_answers_it() -> None:
    world = shrinking()
    world.handle(scaler_answer(world.stored["m"].decision))
    other = ControllerWorld()
    other.scaler_status = None
    other.stored, other.now, other.revision = world.stored, world.now, 900
    other.handle(BusConnectionChanged(connected=True))
    other.handle(RegistryRead([RegisteredWorker(record, 5) for record in world.workers.values()]))
    assert drains(other.effects) == []
    assert decode(other).ready == 1, "the victim is no capacity"
    assert drains(other.handle(scaler_answer(world.stored["m"].decision))) == ["d1"]


def test_an_operator_drains_a_victim_without_a_scaler() -> None:
    world = shrinking()
    assert drains(world.handle(DrainRequested("m", "decode", "d1", "me"))) == ["d1"]


def test_a_victim_that_leaves_before_its_drain_begins_is_gone_at_once() -> None:
    world = shrinking()
    record = world.workers.pop("d1")
    world.handle(WorkerDeregistered("m", "decode", "d1"))
    assert list(decode(world).workers) == ["d2"]
    assert [drain.worker for drain in world.controller.state.drains.open.values()] == ["p1"]
    world.handle(scaler_answer(world.stored["m"].decision))
    effects = world.handle(WorkerRegistered(RegisteredWorker(record, 6)))
    assert drains(effects) == ["d1"], "it registers again as the same victim"


def test_a_victim_that_registers_again_in_the_turn_in_which_it_leaves_stays_a_victim() -> None:
    world = shrinking()
    world.handle(WorkerDeregistered("m", "decode", "d1"), WorkerRegistered(RegisteredWorker(world.workers["d1"], 6)))
    assert decode(world).ready == 1
    assert drains(world.handle(scaler_answer(world.stored["m"].decision))) == ["d1"]
    assert (decode(world).ready, decode(world).draining_workers()) == (1, 1)


def test_a_draining_victim_whose_key_another_incarnation_held_for_a_moment_is_no_capacity() -> None:
    world = shrinking()
    world.handle(scaler_answer(world.stored["m"].decision))
    record = world.workers["d1"]
    other = replace(record, incarnation=2)
    world.handle(*(WorkerRegistered(RegisteredWorker(one, 6)) for one in (other, record)))
    assert (decode(world).ready, decode(world).draining_workers()) == (1, 1)


def test_a_victim_whose_lease_is_lost_while_its_drain_is_held_has_failed() -> None:
    world = shrinking(migration=MigrationKnobs(enabled=True))
    world.handle(WorkerDeregistered("m", "decode", "d1"))
    assert len(world.controller.state.migration.vanished) == 1


def test_a_victim_whose_lease_is_lost_while_it_drains_has_not_failed() -> None:
    world = shrinking(migration=MigrationKnobs(enabled=True))
    world.handle(scaler_answer(world.stored["m"].decision))
    world.handle(WorkerDeregistered("m", "decode", "d1"))
    assert len(world.controller.state.migration.vanished) == 0


def test_a_victim_that_died_is_drained_again_if_a_scaler_accepted_its_removal_and_refused_later() -> None:
    world = shrinking()
    decision = world.stored["m"].decision
    world.handle(scaler_answer(decision))
    world.handle(scaler_answer(decision, "refused"))
    record = world.workers.pop("d1")
    world.handle(WorkerDeregistered("m", "decode", "d1"))
    world.run(20)
    assert "d1" not in decode(world).workers
    assert drains(world.handle(WorkerRegistered(RegisteredWorker(record, 6)))) == ["d1"]
