"""Platforms that select the workers to remove, in the fault simulation: with a true, a changing and a false rule."""

import random
from collections.abc import Callable
from functools import partial
from typing import Final

import pytest

from loadline.core.planning.guardrails import gpu_guardrails
from loadline.core.planning.guardrails.removal_guardrails import unnumbered_workers
from loadline.core.vocabulary.decisions import VictimRule
from loadline.sim.chaos import world as worlds
from loadline.sim.chaos.fault_injector import FaultInjector
from loadline.sim.chaos.faults import inject_fault
from loadline.sim.chaos.plan import Fault, FaultPlan
from loadline.sim.chaos.world import ChaosWorld
from loadline.sim.world.worker import SimulatedWorkerKnobs
from tests.support.rule_scaler import RULES, RuleScaler

FAULTY_MS: Final = 600_000.0
CALM_MS: Final = 240_000.0
FAULTS: Final = {"agent_killed": 4, "agent_paused": 3, "demand": 24}
TOLD: Final[tuple[VictimRule, ...]] = ("named", "newest", "highest_ordinal")


class RuleWorld:
    """World with a platform that has a rule, and faults of agents."""

    def __init__(self, seed: int, monkeypatch: pytest.MonkeyPatch, rule: VictimRule) -> None:
        monkeypatch.setattr(worlds, "SimulatedScaler", RuleScaler)
        # As a sidecar in Kubernetes, it ends by itself a minute after the time limit of its drain, 25 s here.
        lingering = partial(SimulatedWorkerKnobs, drained_linger_ms=85_000.0)
        monkeypatch.setattr(worlds, "SimulatedWorkerKnobs", lingering)
        self.rng = random.Random(f"rules:{seed}")
        self.world = ChaosWorld(FaultPlan(seed, agents=2))
        scaler = self.world.scaler
        assert isinstance(scaler, RuleScaler)
        self.scaler = scaler
        self.scaler.rule, self.scaler.start = rule, self.world.start_worker
        self.injector = FaultInjector(self.world)
        for kind, count in FAULTS.items():
            for _ in range(count):
                fault = Fault(kind, self.rng.uniform(20_000.0, FAULTY_MS), 8_000.0, self.rng.random())
                self.at(fault.at_ms, partial(inject_fault, self.injector, fault))
        self.at(FAULTY_MS, self.injector.undo_all)

    def at(self, at_ms: float, act: Callable[[], object]) -> None:
        self.world.timeline.call_at(at_ms, act)

    def run(self) -> None:
        self.world.start()
        self.scaler.schedule_reconcile()
        self.world.timeline.run_until(FAULTY_MS + CALM_MS)

    def ended_while_serving(self) -> list[str]:
        return [name for name, rule, served in self.scaler.removed if served and rule != "unknown"]

    def assert_converged(self) -> None:
        leader = self.world.leader
        assert leader is not None
        for model, state in leader.controller.state.fleet.models.items():
            for name, pool in state.pools.items():
                serving = sum(worker.serving for worker in self.world.workers_of((model, name)))
                assert serving == pool.decided == pool.ready, f"{model}/{name}"
            assert leader.controller.state.ledger.entries[model].state == "applied"


@pytest.mark.parametrize("rule", TOLD)
def test_a_platform_with_a_rule_ends_no_worker_that_serves(rule: VictimRule, monkeypatch: pytest.MonkeyPatch) -> None:
    world = RuleWorld(0, monkeypatch, rule)
    world.run()
    assert len(world.scaler.removed) > 5, "workers are removed"
    assert world.ended_while_serving() == []
    world.assert_converged()


@pytest.mark.parametrize("seed", range(2))
def test_counts_converge_after_a_platform_changes_its_rule_and_its_scaler_is_away(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = RuleWorld(seed, monkeypatch, "named")
    for _ in range(12):
        world.at(
            world.rng.uniform(20_000.0, FAULTY_MS), partial(setattr, world.scaler, "rule", world.rng.choice(RULES))
        )
    for _ in range(4):
        away_ms = world.rng.uniform(20_000.0, FAULTY_MS - 60_000.0)
        world.at(away_ms, world.scaler.leave)
        world.at(away_ms + 30_000.0, world.scaler.come_back)
    world.run()
    world.assert_converged()


@pytest.mark.parametrize("rule", ["named", "newest"])
def test_counts_converge_though_the_platform_removes_by_another_rule_than_declared(
    rule: VictimRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = RuleWorld(3, monkeypatch, rule)
    world.scaler.declared = "newest" if rule != "newest" else "highest_ordinal"
    world.run()
    world.assert_converged()


@pytest.mark.parametrize("guarded", [True, False])
def test_without_numbers_no_pool_shrinks(guarded: bool, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: FBT001 - a parameter
    if not guarded:
        kept = tuple(one for one in gpu_guardrails.MODEL_GUARDRAILS if one is not unnumbered_workers)
        monkeypatch.setattr("loadline.core.planning.guardrails.guardrails.MODEL_GUARDRAILS", kept)
    world = RuleWorld(1, monkeypatch, "highest_ordinal")
    start = world.scaler.start
    number = iter("abcdefghijklmnopqrstuvwxyz" * 9)
    world.scaler.start = lambda model, pool, name: start(model, pool, name or f"odd-{next(number)}-{pool}")
    world.run()
    assert (world.ended_while_serving() == []) is guarded
