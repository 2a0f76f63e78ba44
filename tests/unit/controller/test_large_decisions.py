"""Size of decisions: victims are bounded, and a decision that is too large to decode is never committed."""

import asyncio

import pytest
from msgspec.structs import replace

from loadline.core.fleet.fleet import FleetKnobs
from loadline.core.fleet.pool import DRAINS_MAX, PoolKnobs
from loadline.core.planning.guardrails.constraints import Constraints
from loadline.core.planning.guardrails.knobs import GuardrailKnobs
from loadline.core.planning.planners.static import StaticKnobs
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.decisions import Decision, PoolTarget, Victim
from loadline.core.vocabulary.effects import AnyEffect, CommitDecision, RaiseAlarm, RemoveWorker, SendDrain
from loadline.core.vocabulary.events import (
    AnyEvent,
    BusConnectionChanged,
    CommitRefused,
    DecisionCommitted,
    RegistryRead,
    WorkerDrained,
)
from loadline.ports import Write
from loadline.wire.codec import DECISION_BYTES_MAX, decode_as, decode_decision, encode, encode_decision
from loadline.wire.messages import ScalingDecision
from tests.support.controller_harness import READ_AT, ControllerHarness
from tests.support.controller_world import alarms, booted
from tests.support.guardrail_harness import GuardrailHarness
from tests.support.memory import KEYS, MemoryStore, effect_runner

DECISION = Decision("id", "m", 1, 1, 0, 1_000, (PoolTarget("decode", "decode", 1, 2),), ())


def with_victims(count: int, name: str = "w") -> Decision:
    victims = tuple(Victim(f"{name}{number}", 1) for number in range(count))
    return replace(DECISION, targets=(PoolTarget("decode", "decode", 1, 2, victims),))


def committed(decision: Decision) -> tuple[AnyEvent, list[bytes]]:
    """Return the event that answers a commit, and the values in the store after it."""

    async def run() -> tuple[AnyEvent, list[bytes]]:
        store, answers = MemoryStore(), list[AnyEvent]()
        runner = effect_runner(answers.append, store)
        lease = await store.grant(10)
        await store.commit([], [Write(KEYS.leader("all"), b"a", lease)])
        await runner.perform(CommitDecision(decision, "all", lease, 0))
        (answer,) = answers
        return answer, [entry.value for entry in (await store.read(KEYS.decisions)).entries]

    return asyncio.run(run())


@pytest.mark.parametrize("decision", [with_victims(10_001), with_victims(3_000, "w" * 90), replace(DECISION, model="")])
def test_a_decision_that_is_too_large_to_decode_is_not_committed(decision: Decision) -> None:
    answer, stored = committed(decision)
    assert isinstance(answer, CommitRefused)
    assert not answer.fenced
    assert answer.detail.startswith(f"a decision for {decision.model} is not committed: {len(encode(decision))} bytes")
    assert stored == []


def test_the_largest_decision_of_a_large_model_is_committed_and_decoded() -> None:
    victims = tuple(Victim("w" * 97 + f"{number:03}", 2**53) for number in range(DRAINS_MAX))
    targets = tuple(PoolTarget(f"pool{number}", "decode", 1, 2, victims) for number in range(24))
    answer, (stored,) = committed(replace(DECISION, targets=targets))
    assert isinstance(answer, DecisionCommitted)
    found = decode_decision(stored)
    assert isinstance(found, Decision)
    assert found.targets == targets
    fields = {name: getattr(found, name) for name in found.__struct_fields__}
    announced = encode(ScalingDecision(**fields, ttl_ms=2**53))
    assert len(announced) <= 262_144
    assert isinstance(decode_as(ScalingDecision, announced), ScalingDecision)


def test_the_limit_of_decisions_leaves_room_for_the_ttl_of_an_announcement() -> None:
    room = DECISION_BYTES_MAX - len(encode(replace(DECISION, reasons=("",))))
    largest = replace(DECISION, reasons=("r" * room,))
    value = encode_decision(largest)
    assert isinstance(value, bytes)
    assert len(value) == DECISION_BYTES_MAX
    assert not isinstance(encode_decision(replace(DECISION, reasons=("r" * (room + 1),))), bytes)


def test_a_refused_commit_raises_an_alarm_that_names_model_and_size() -> None:
    world = booted()
    world.answer_commits = False
    world.kv = 0.95
    world.run(31)
    (commit,) = [effect for effect in world.effects if isinstance(effect, CommitDecision)]
    text = "a decision for m is not committed: 999999 bytes, 262000 are allowed"
    found = world.handle(CommitRefused(commit.decision.decision_id, "m", fenced=False, detail=text))
    assert [(e.model, e.text) for e in found if isinstance(e, RaiseAlarm)] == [("m", text)]
    assert world.controller.state.ledger.entries["m"].pending is None


def test_a_count_that_exceeds_the_registered_workers_of_the_fleet_is_decided_once() -> None:
    pool = PoolKnobs("decode", "decode", replicas_max=30_000)
    knobs = {"static": StaticKnobs({"decode": 30_000})}
    model = ModelKnobs("m", (pool,), planner="static", planner_knobs=knobs, guardrails=GuardrailKnobs(30_000))
    harness = ControllerHarness(Settings("agent-1", "all", (model,), fleet=FleetKnobs(workers_max=20_000)))
    harness.handle(BusConnectionChanged(connected=True), RegistryRead([]))
    harness.register("a", models="m")
    harness.become_leader()
    decision = harness.commit_of(harness.advance(6))
    found = harness.handle(DecisionCommitted(decision.decision_id, "m", READ_AT + 1))
    assert not [effect for effect in found if isinstance(effect, CommitDecision)]
    assert harness.desired() == 30_000


def drains(effects: list[AnyEffect]) -> list[str]:
    """Return the workers of the pool ``decode`` that get drain commands."""
    return [effect.worker for effect in effects if isinstance(effect, SendDrain) and effect.pool == "decode"]


def test_a_surplus_is_drained_in_several_decisions() -> None:
    world = booted()
    world.controller.state.fleet.models["m"].pools["decode"].reset_decided(2, world.now)
    world.register("decode", *(f"fake{number}" for number in range(100)))
    world.run(75)
    sizes = [len(t.victims) for t in world.stored["m"].decision.targets if t.pool == "decode"]
    first = set(drains(world.effects))
    assert (sizes, len(first)) == ([DRAINS_MAX], DRAINS_MAX)
    assert alarms(world.effects).count("workers_surplus") == 1
    assert not any(isinstance(effect, RemoveWorker) for effect in world.effects)
    for worker in first:
        world.workers.pop(worker)
        world.handle(WorkerDrained("m", "decode", worker, 1))
    world.effects.clear()
    world.run(75)
    second = set(drains(world.effects))
    assert second
    assert not first & second


def test_a_scale_down_waits_for_drains_because_scalers_end_workers_in_excess_of_the_target() -> None:
    harness = GuardrailHarness(PoolKnobs("a", "decode", replicas_min=0, replicas_max=300), current=200)
    harness.guard.knobs = replace(harness.guard.knobs, step_down_max=1_000)

    def targets(draining: int) -> tuple[int, list[str]]:
        limits = Constraints(harness.acting_since_ms, draining={"a": draining})
        found = harness.guard.apply(harness.refresh(), {"a": 10}, limits, harness.now)
        return found.targets["a"], [str(reason.code) for reason in found.limits]

    assert targets(0) == (200 - DRAINS_MAX, ["drain_limit"])
    assert targets(DRAINS_MAX - 1) == (199, ["drain_limit"])
    assert targets(10_000) == (200, ["drain_limit"])
