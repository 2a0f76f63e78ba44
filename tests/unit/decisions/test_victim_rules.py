"""Rules by which platforms remove workers: victims follow them, and a decision by another rule is decided anew."""

from typing import Final

import msgspec
import pytest

from loadline.core.decisions.victims import select_victims
from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.handlers.drains import start_victims
from loadline.core.handlers.turn import Turn
from loadline.core.vocabulary.decisions import ApplyStatus, Decision, Victim, VictimRule
from loadline.core.vocabulary.effects import AnyEffect, CommitDecision, SaveLearned, SendDrain
from loadline.core.vocabulary.events import DrainRequested, LearnedRead
from loadline.core.vocabulary.reasons import ReasonCode
from loadline.core.vocabulary.scalars import WorkerPhase
from tests.support.controller_world import ControllerWorld, alarms, booted, scaler_answer
from tests.support.fleet_harness import START, fleet_of, registered

DRAINING: Final = (Victim("w-1", 1),)


def pool_of(rule: VictimRule | None, *workers: str, desired: int | None = None, out: str = "") -> Pool:
    """Return a pool whose workers started one after the other; ``out`` drains."""
    fleet = fleet_of(PoolKnobs("decode", "decode", replicas_max=100))
    for incarnation, name in enumerate(workers, 1):
        state: WorkerPhase = "draining" if name == out else "ready"
        fleet.register(registered(name, incarnation=incarnation, state=state), START)
    pool = fleet.models["m"].pools["decode"]
    pool.victim_rule, pool.decided = rule, desired
    return pool


def selected(pool: Pool, replicas: int) -> list[str]:
    """Return the victims of a scale-down to ``replicas``."""
    removal = select_victims({"decode": pool}, {"decode": replicas}, {"decode": DRAINING})["decode"]
    return names(removal.victims)


def names(victims: tuple[Victim, ...]) -> list[str]:
    return [victim.worker for victim in victims]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (None, ["w-1", "w-3", "w-10"]),
        ("named", ["w-1", "w-3", "w-10"]),
        ("newest", ["w-3", "w-10", "w-2"]),
        ("highest_ordinal", ["w-10", "w-3", "w-2"]),
        ("unknown", []),
    ],
)
def test_the_rule_selects_the_victims(rule: VictimRule | None, expected: list[str]) -> None:
    pool = pool_of(rule, "w-0", "w-1", "w-2", "w-10", "w-3", out="w-1")
    assert selected(pool, 2) == expected


@pytest.mark.parametrize(
    ("workers", "replicas", "expected"),
    [
        (("w-0", "w-1", "w-2", "w-4"), 4, ["w-4"]),  # w-3 is not registered: the platform removes w-4 nevertheless
        (("w-0", "w-1", "w-2", "w-3"), 4, []),  # w-4 is still starting
        (("w-1", "w-2", "w-3", "w-4", "w-5"), 4, ["w-5"]),  # numbered from 1
        (("w-17", "w-23", "w-40"), 4, ["w-40"]),  # any numbers: one fewer of the five that are desired
        (("w-17", "w-23", "w-40"), 5, []),
        (("w-0", "w-1", "w-2", "w-3", "w-4", "w-5"), 5, ["w-5"]),  # nobody requested it
        (("a", "w-4", "b"), 4, ["w-4"]),
    ],
)
def test_the_highest_numbers_leave(workers: tuple[str, ...], replicas: int, expected: list[str]) -> None:
    pool = pool_of("highest_ordinal", *workers, desired=5)
    assert selected(pool, replicas) == expected


def drained(effects: list[AnyEffect]) -> list[str]:
    """Return the workers of the pool ``decode`` that get drain commands."""
    return [effect.worker for effect in effects if isinstance(effect, SendDrain) and effect.pool == "decode"]


def committed(effects: list[AnyEffect]) -> list[Decision]:
    return [effect.decision for effect in effects if isinstance(effect, CommitDecision)]


def decode(world: ControllerWorld) -> Pool:
    return world.controller.state.fleet.models["m"].pools["decode"]


def victims(world: ControllerWorld) -> tuple[str, ...]:
    (target,) = [t for t in world.stored["m"].decision.targets if t.pool == "decode"]
    assert target.victim_rule == (decode(world).victim_rule or "named")
    return tuple(names(target.victims))


def shrinking(**knobs: object) -> ControllerWorld:
    """Return a world with a decision that removes d1, which no scaler has answered."""
    world = booted(**knobs)
    world.scaler_status = None
    world.kv = 0.3
    world.run(31)
    world.kv = 0.7
    assert victims(world) == ("d1",)
    return world


@pytest.mark.parametrize("status", ["accepted", "progress", "refused"])
@pytest.mark.parametrize(("rule", "expected"), [("highest_ordinal", ("d2",)), ("unknown", ())])
def test_another_rule_leads_to_another_decision_at_once(
    status: ApplyStatus, rule: VictimRule, expected: tuple[str, ...]
) -> None:
    world = shrinking()
    first = world.stored["m"].decision
    effects = world.handle(scaler_answer(first, status, decode=rule))
    (again,) = committed(effects)
    assert (again.sequence, victims(world)) == (first.sequence + 1, expected)
    assert {t.pool: t.replicas for t in again.targets} == {t.pool: t.replicas for t in first.targets}
    assert (alarms(effects), drained(effects)) == ([], [])
    assert world.controller.state.ledger.entry("m").not_before_ms <= world.now, "no failure, so no wait"
    effects = world.handle(scaler_answer(again, decode=rule))
    assert (drained(effects), committed(effects)) == (list(expected), [])


def test_scalers_that_declare_different_rules_do_not_cause_decisions_without_end() -> None:
    world = shrinking()
    decisions = 0
    for rule in ("highest_ordinal", "named", "unknown", "highest_ordinal", "named") * 4:
        effects = world.handle(scaler_answer(world.stored["m"].decision, decode=rule))
        decisions += len(committed(effects))
    assert decisions == 1
    assert drained(world.effects) == [], "nobody knows which worker leaves"


def test_a_second_refusal_for_the_rule_is_a_failure() -> None:
    world = shrinking()
    world.handle(scaler_answer(world.stored["m"].decision, "refused", decode="highest_ordinal"))
    effects = world.handle(scaler_answer(world.stored["m"].decision, "refused", decode="unknown"))
    assert (alarms(effects), committed(effects)) == (["decision_refused"], [])
    assert world.controller.state.ledger.entry("m").not_before_ms > world.now


def test_a_refusal_for_another_reason_stays_a_failure() -> None:
    world = shrinking()
    world.handle(scaler_answer(world.stored["m"].decision, decode="highest_ordinal"))
    refused = scaler_answer(world.stored["m"].decision, "refused", decode="highest_ordinal")
    assert alarms(world.handle(refused)) == ["decision_refused"]
    world = shrinking()
    assert alarms(world.handle(scaler_answer(world.stored["m"].decision, "refused"))) == ["decision_refused"]


def test_an_expired_decision_that_a_scaler_refuses_leaves_its_rule() -> None:
    world = shrinking()
    world.handle(scaler_answer(world.stored["m"].decision, decode="unknown"))
    world.handle(scaler_answer(world.stored["m"].decision, "refused"))
    assert decode(world).victim_rule == "unknown"
    world.run(40)
    world.handle(scaler_answer(world.stored["m"].decision))
    assert decode(world).victim_rule == "named", "an answer without rules: every victim can be named"


@pytest.mark.parametrize("status", ["accepted", "refused"])
def test_an_answer_without_rules_says_that_victims_can_be_named_unless_it_refuses(status: ApplyStatus) -> None:
    world = booted()
    world.scaler_status, decode(world).victim_rule, world.kv = None, "highest_ordinal", 0.3
    world.run(31)
    assert victims(world) == ("d2",)
    effects = world.handle(scaler_answer(world.stored["m"].decision, status))
    assert len(committed(effects)) == (status == "accepted")
    assert alarms(effects) == ([] if status == "accepted" else ["decision_refused"])
    assert decode(world).victim_rule == ("named" if status == "accepted" else "highest_ordinal")


def test_a_growing_decision_is_not_decided_again() -> None:
    world = booted()
    world.scaler_status = None
    world.kv = 0.99
    world.run(31)
    effects = world.handle(scaler_answer(world.stored["m"].decision, decode="newest"))
    assert (decode(world).victim_rule, committed(effects)) == ("newest", [])


def test_victims_that_stay_are_not_drained_after_the_registry_was_read_again() -> None:
    world = shrinking()
    world.controller.state.paused["m"] = "somebody"  # so that no decision follows
    world.handle(scaler_answer(world.stored["m"].decision, decode="unknown"))
    start_victims(Turn(world.controller.state, world.now), "m")
    assert world.controller.state.drains.open == {}
    assert decode(world).ready == 2


def test_with_an_unknown_rule_a_surplus_waits_for_the_scaler() -> None:
    world = shrinking()
    world.handle(scaler_answer(world.stored["m"].decision, decode="unknown"))
    world.handle(scaler_answer(world.stored["m"].decision, decode="unknown"))
    world.effects.clear()
    world.run(120)
    assert (committed(world.effects), alarms(world.effects)) == ([], []), "an HPA takes five minutes"
    done = scaler_answer(world.stored["m"].decision, "done", decode="unknown")
    world.handle(done)
    world.run(120)
    assert "workers_surplus" in alarms(world.effects)
    assert victims(world) == ()
    assert drained(world.effects) == []


def test_an_operator_drains_a_worker_that_the_platform_cannot_be_told_to_remove() -> None:
    world = booted()
    world.scaler_status, decode(world).victim_rule = None, "highest_ordinal"
    effects = world.handle(DrainRequested("m", "decode", "d1", "somebody"))
    assert drained(effects) == ["d1"]
    assert victims(world) == (), "the platform would remove d2"


def test_a_pool_with_a_worker_without_a_number_does_not_shrink() -> None:
    world = booted()
    world.queue = 5  # the other pool does not shrink
    world.register("decode", "spare")
    world.scaler_status, decode(world).victim_rule = None, "highest_ordinal"
    world.kv = 0.3
    world.run(31)
    hold = world.controller.state.fleet.models["m"].hold
    assert hold is not None
    (reason,) = [reason for reason in hold.limits if reason.code is ReasonCode.UNNUMBERED_WORKER]
    assert reason.sentence().endswith("one has none: spare")
    assert decode(world).decided == 3
    decode(world).victim_rule = "newest"
    world.run(31)
    assert victims(world)


def test_a_new_leader_starts_with_the_rule() -> None:
    world = shrinking()
    world.handle(scaler_answer(world.stored["m"].decision, decode="highest_ordinal"))
    saved = [effect.learned for effect in world.run(3) if isinstance(effect, SaveLearned)]
    assert [learned.victims for learned in saved] == [{"decode": "highest_ordinal"}]
    successor = ControllerWorld()
    successor.handle(LearnedRead({"m": saved[0]}))
    successor.boot()
    successor.scaler_status = None
    successor.kv = 0.3
    successor.run(31)
    assert victims(successor) == ("d2",)
    successor.handle(scaler_answer(successor.stored["m"].decision))
    successor.handle(LearnedRead({"m": saved[0]}))
    assert decode(successor).victim_rule == "named", "what a scaler told this leader is newer"


def test_a_snapshot_has_the_rule_and_that_victims_stay() -> None:
    world = shrinking()
    world.controller.state.paused["m"] = "somebody"
    world.handle(scaler_answer(world.stored["m"].decision, decode="newest"))
    state = msgspec.json.decode(msgspec.json.encode(world.controller.state), type=type(world.controller.state))
    assert state.fleet.models["m"].pools["decode"].victim_rule == "newest"
    assert state.ledger.entry("m").victims_stay


def test_the_victims_of_an_unaccepted_decision_serve_on_if_the_next_one_does_not_name_them() -> None:
    world = booted()
    world.scaler_status, decode(world).victim_rule = None, "newest"
    world.kv = 0.3
    world.run(31)
    assert victims(world) == ("d1",)
    world.kv = 0.99
    world.run(61)
    assert victims(world) == ()
    effects = world.handle(scaler_answer(world.stored["m"].decision, decode="newest"))
    assert (drained(effects), decode(world).ready) == ([], 2), "the platform keeps both"
