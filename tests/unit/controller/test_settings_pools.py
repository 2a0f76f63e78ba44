"""Pools that changed settings remove, add again or give another role: their scaler keeps the last decided counts."""

import msgspec
import pytest
from msgspec.structs import replace

from loadline.core.decisions.ledger import decision_id
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.state.settings import Settings
from loadline.core.vocabulary.decisions import ApplyStatus, Decision, PoolTarget, StoredDecision, Victim
from loadline.core.vocabulary.effects import AnyEffect, CommitDecision, RaiseAlarm
from loadline.core.vocabulary.events import (
    BusConnectionChanged,
    DecisionAnswered,
    DecisionCommitted,
    LeaderChanged,
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


def test_drains_of_a_pool_that_is_configured_again_go_on() -> None:
    harness = in_force(*"abcd", replicas=2, victims=("c", "d"))
    harness.advance(2)
    assert draining(harness) == ["c", "d"]
    commit(harness, [*change(harness, PREFILL), *harness.advance(3)])
    assert draining(harness) == []
    change(harness, DECODE, PREFILL)
    assert draining(harness) == ["c", "d"]
    assert harness.desired() == harness.controller.state.fleet.models["m"].pools["decode"].ready == 2
    decided = commit(harness, harness.advance(70))
    assert {victim.worker for one in decided for t in one.targets for victim in t.victims} <= {"c", "d"}


@pytest.mark.parametrize("status", ["refused", None])  # None: no scaler has answered yet
def test_a_count_that_no_scaler_applied_is_not_restored(status: ApplyStatus | None) -> None:
    harness = in_force(*"abcdefgh", replicas=8)
    harness.handle(
        DecisionAnswered(decision_id("m", EPOCH, 1), "m", EPOCH, 1, "s", "done", {"decode": 8, "prefill": 1})
    )
    harness.controller.state.fleet.models["m"].pools["decode"].reset_decided(2, harness.now)
    harness.controller.state.fleet.models["m"].reconcile = True
    (found,) = commits(harness.advance(1))
    harness.handle(DecisionCommitted(found.decision.decision_id, "m", 60))
    targets = tuple(replace(t, previous=8) if t.pool == "decode" else t for t in found.decision.targets)
    entry = harness.controller.state.ledger.entries["m"]
    entry.decision = replace(found.decision, targets=targets)
    if status is not None:
        number = found.decision.decision_id, "m", found.decision.epoch, found.decision.sequence
        harness.handle(DecisionAnswered(*number, "s", status, {}))
    commit(harness, [*change(harness, PREFILL), *harness.advance(10)])
    change(harness, DECODE, PREFILL)
    assert harness.desired() == 8


def test_the_count_of_a_removed_pool_is_forgotten_after_its_start_deadline() -> None:
    """Its workers have ended, and others may have their GPUs."""
    harness = in_force(*"abc", replicas=8)
    commit(harness, [*change(harness, PREFILL), *harness.advance(3)])
    harness.now += DECODE.start_deadline_ms
    harness.advance(1)
    change(harness, DECODE, PREFILL)
    assert harness.desired() is None
    assert harness.controller.state.fleet.models["m"].removed_pools == {}


def test_the_count_of_a_removed_pool_is_forgotten_if_another_leader_decided_since() -> None:
    harness = in_force(*"abc", replicas=8)
    commit(harness, [*change(harness, PREFILL), *harness.advance(3)])
    harness.lose_lease()
    targets = (PoolTarget("prefill", "prefill", 1, 1),)
    other = Decision(decision_id("m", 25, 9), "m", 25, 9, harness.now, harness.now + 900_000, targets, (), 60_000)
    harness.become_leader(StoredDecision(other, 500))
    change(harness, DECODE, PREFILL)
    assert harness.desired() is None


def test_drains_go_on_after_a_role_has_changed_to_and_fro() -> None:
    harness = in_force(*"abcd", replicas=2, victims=("c", "d"))
    harness.advance(2)
    commit(harness, [*change(harness, replace(DECODE, role="aggregated"), PREFILL), *harness.advance(3)])
    commit(harness, [*change(harness, DECODE, PREFILL), *harness.advance(3)])
    assert draining(harness) == ["c", "d"]
    assert harness.desired() == 2


def test_a_held_drain_is_not_restored() -> None:
    """No scaler has accepted the decision that names its worker."""
    harness = in_force(*"abcd", replicas=4)
    harness.controller.state.drains.start(
        harness.controller.state.fleet, "m", "decode", Victim("d", 1), "id", harness.now, held=True
    )
    change(harness, PREFILL)
    change(harness, DECODE, PREFILL)
    assert draining(harness) == []


def test_a_standby_restores_nothing_and_takes_over_with_the_decision_of_the_last_leader() -> None:
    harness = in_force(*"abcdefgh", replicas=2, victims=tuple("cdefgh"))
    harness.lose_lease()
    change(harness, PREFILL)
    change(harness, DECODE, PREFILL)
    assert (draining(harness), harness.desired()) == ([], None)
    targets = (PoolTarget("decode", "decode", 8, 2), PoolTarget("prefill", "prefill", 1, 1))
    other = Decision(decision_id("m", 15, 9), "m", 15, 9, harness.now, harness.now + 900_000, targets, (), 60_000)
    harness.become_leader(StoredDecision(other, 500))
    assert (draining(harness), harness.desired()) == ([], 8)


def test_a_pool_that_only_the_decision_in_force_has_takes_its_count_from_it() -> None:
    """Another leader, whose file is newer, has decided on it."""
    harness = ControllerHarness(settings(PREFILL))
    harness.handle(BusConnectionChanged(connected=True), RegistryRead([]))
    harness.register(*"abcd", models="m")
    targets = (PoolTarget("decode", "decode", 8, 4), PoolTarget("prefill", "prefill", 1, 1))
    other = Decision(decision_id("m", 15, 9), "m", 15, 9, harness.now, harness.now + 900_000, targets, (), 60_000)
    harness.become_leader(StoredDecision(other, 50))
    change(harness, DECODE, PREFILL)
    assert harness.desired() == 8


def test_a_former_leader_knows_its_own_decision_for_a_pool_that_was_configured_again() -> None:
    harness = in_force(*"abc", replicas=8)
    decided = harness.controller.state.ledger.entries["m"].decision
    assert decided is not None
    harness.lose_lease()
    change(harness, PREFILL)
    change(harness, DECODE, PREFILL)
    harness.become_leader(StoredDecision(decided, 500))
    assert harness.desired() == 8


def test_a_count_that_is_kept_outweighs_the_decision_that_no_scaler_accepted() -> None:
    harness = in_force(*"abcdefgh", replicas=8)
    entry = harness.controller.state.ledger.entries["m"]
    assert entry.decision is not None
    shrinks = (PoolTarget("decode", "decode", 2, 8), PoolTarget("prefill", "prefill", 1, 1))
    entry.decision, entry.state, entry.accepted = replace(entry.decision, targets=shrinks), "committed", False
    change(harness, PREFILL)
    harness.lose_lease()
    change(harness, DECODE, PREFILL)
    harness.become_leader(StoredDecision(entry.decision, 500))
    assert harness.desired() == 8


def test_the_own_decision_of_a_former_term_does_not_forget_the_count() -> None:
    harness = in_force(*"abc", replicas=8)
    (found,) = commits([*change(harness, PREFILL), *harness.advance(3)])
    harness.lose_lease()
    harness.become_leader(StoredDecision(found.decision, 500))
    change(harness, DECODE, PREFILL)
    assert harness.desired() == 8


def test_the_count_of_a_removed_pool_is_forgotten_with_all_others_if_the_store_was_wiped() -> None:
    harness = in_force(*"abcdefgh", replicas=2)
    commit(harness, [*change(harness, PREFILL), *harness.advance(3)])
    harness.lose_lease()
    harness.handle(LeaderChanged("all", "other", 99, 400, epoch=25))
    harness.handle(LeaderChanged("all", "", 0, 401, epoch=25))
    harness.epoch = 25
    harness.become_leader()
    change(harness, DECODE, PREFILL)
    assert harness.desired() is None


def test_a_leader_whose_last_model_is_removed_goes_on() -> None:
    """As of a shard that has one model."""
    harness = in_force("a", replicas=1)
    harness.handle(SettingsChanged(msgspec.Raw(msgspec.json.encode(replace(settings(DECODE), models=())))))
    harness.workers.clear()
    harness.advance(3)
    assert harness.controller.leading
    change(harness, DECODE, PREFILL)
    assert list(harness.controller.state.fleet.models) == ["m", "n"]
