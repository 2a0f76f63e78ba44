"""Pools that changed settings remove, add again or give another role: their scaler keeps the last decided counts."""

import msgspec
import pytest
from msgspec.structs import replace

from loadline.core.decisions.ledger import decision_id
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.state.settings import Settings
from loadline.core.vocabulary.decisions import Decision, PoolTarget, StoredDecision, Victim
from loadline.core.vocabulary.effects import AnyEffect, CommitDecision, RaiseAlarm
from loadline.core.vocabulary.events import (
    BusConnectionChanged,
    DecisionAnswered,
    DecisionCommitted,
    RegistryRead,
    SettingsChanged,
)
from tests.support.controller_harness import ControllerHarness, make_settings

EPOCH = 10
DECODE, PREFILL = PoolKnobs("decode", "decode", replicas_max=9), PoolKnobs("prefill", "prefill", replicas_max=9)


def settings(*pools: PoolKnobs) -> Settings:
    known = make_settings()
    return replace(known, models=(replace(known.models[0], pools=pools), known.models[1]))


def change(harness: ControllerHarness, *pools: PoolKnobs) -> list[AnyEffect]:
    return harness.handle(SettingsChanged(msgspec.Raw(msgspec.json.encode(settings(*pools)))))


def in_force(*workers: str, replicas: int, victims: tuple[str, ...] = ()) -> ControllerHarness:
    """Return a leader with workers of ``decode``, of which a scaler keeps so many replicas."""
    harness = ControllerHarness(settings(DECODE, PREFILL))
    harness.handle(BusConnectionChanged(connected=True), RegistryRead([]))
    harness.register(*workers, models="m")
    named = tuple(Victim(name, 1) for name in victims)
    targets = (PoolTarget("decode", "decode", replicas, len(workers), named), PoolTarget("prefill", "prefill", 1, 1))
    decided = Decision(
        decision_id("m", EPOCH, 1), "m", EPOCH, 1, harness.now, harness.now + 900_000, targets, (), 60_000
    )
    harness.become_leader(StoredDecision(decided, 50))
    accept(harness, decided)
    return harness


def accept(harness: ControllerHarness, decision: Decision) -> None:
    number = decision.decision_id, decision.model, decision.epoch, decision.sequence
    harness.handle(DecisionAnswered(*number, "s", "accepted", {}))


def commits(effects: list[AnyEffect]) -> list[CommitDecision]:
    return [effect for effect in effects if isinstance(effect, CommitDecision) and effect.decision.model == "m"]


def commit(harness: ControllerHarness, effects: list[AnyEffect]) -> list[Decision]:
    """Commit the decisions for the model, and have a scaler accept them."""
    decided = [effect.decision for effect in commits(effects)]
    for decision in decided:
        harness.handle(DecisionCommitted(decision.decision_id, "m", 100 + decision.sequence))
        accept(harness, decision)
    return decided


def draining(harness: ControllerHarness) -> list[str]:
    return sorted(drain.worker for drain in harness.controller.state.drains.open.values())


def test_a_pool_with_another_role_keeps_its_count() -> None:
    """With the one ready worker of the new role as its count, a scaler would end the eight that serve."""
    harness = in_force(*"abcdefgh", replicas=8)
    effects = change(harness, replace(DECODE, role="aggregated"), PREFILL)
    assert "workers_unmanaged" in {effect.kind for effect in effects if isinstance(effect, RaiseAlarm)}
    decided = commit(harness, [*effects, *harness.advance(3)])
    assert [t.replicas for one in decided for t in one.targets if t.pool == "decode" and t.replicas < 8] == []
    assert harness.desired() == 8


@pytest.mark.parametrize("late", [False, True])
def test_a_pool_that_is_configured_again_keeps_its_count(*, late: bool) -> None:
    """The decision that leaves it out is committed before or after that."""
    harness = in_force(*"abc", replicas=8)
    effects = [*change(harness, PREFILL), *harness.advance(3)]
    assert [[t.pool for t in one.decision.targets] for one in commits(effects)] == [["prefill"]]
    if late:
        change(harness, DECODE, PREFILL)
        commit(harness, effects)
    else:
        commit(harness, effects)
        change(harness, DECODE, PREFILL)
    assert harness.desired() == 8
    pool = harness.controller.state.fleet.models["m"].pools["decode"]
    assert (pool.ready, pool.worker_counts(harness.now).pending) == (3, 5)


def test_the_count_of_a_removed_pool_outlives_a_snapshot() -> None:
    harness = in_force(*"abc", replicas=8)
    commit(harness, [*change(harness, PREFILL), *harness.advance(3)])
    harness.controller.restore(harness.controller.snapshot())
    change(harness, DECODE, PREFILL)
    assert harness.desired() == 8


def test_victims_whose_pool_is_configured_again_drain_on() -> None:
    harness = in_force(*"abcd", replicas=2, victims=("c", "d"))
    harness.advance(2)
    assert draining(harness) == ["c", "d"]
    change(harness, PREFILL)
    assert draining(harness) == []
    change(harness, DECODE, PREFILL)
    assert draining(harness) == ["c", "d"]
    assert harness.controller.state.fleet.models["m"].pools["decode"].ready == 2


def test_a_standby_resumes_no_drain() -> None:
    harness = in_force(*"abcd", replicas=2, victims=("c", "d"))
    harness.lose_lease()
    change(harness, PREFILL)
    change(harness, DECODE, PREFILL)
    assert draining(harness) == []
    assert harness.desired() == 2


def test_a_leader_whose_last_model_is_removed_goes_on() -> None:
    """As of a shard that has one model."""
    harness = in_force("a", replicas=1)
    harness.handle(SettingsChanged(msgspec.Raw(msgspec.json.encode(replace(settings(DECODE), models=())))))
    harness.workers.clear()
    harness.advance(3)
    assert harness.controller.leading
    change(harness, DECODE, PREFILL)
    assert list(harness.controller.state.fleet.models) == ["m", "n"]
