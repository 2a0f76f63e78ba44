"""Exact solutions and their application, and pools that replace others."""

from typing import Any

import msgspec
import pytest
from msgspec import field
from msgspec.structs import replace

from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.fleet.fleet import FleetKnobs, Model
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.allocation.supplies import AllocationKnobs
from loadline.core.planning.allocation.worker_levels import LEVEL_RANKS, UNDIVIDED
from loadline.core.planning.guardrails.knobs import GuardrailKnobs
from loadline.core.planning.planner import Planner
from loadline.core.state.settings import Settings
from loadline.core.vocabulary.allocations import Allocation, AllocationProblem
from loadline.core.vocabulary.effects import AnyEffect, SolveAllocation
from loadline.core.vocabulary.events import SettingsChanged, WorkerDeregistered
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation, RoleDemand
from loadline.solver import solve
from tests.support.holds import hold_of
from tests.support.multi_model_world import STEPS, GpuLimits, MultiModelWorld

MINUTE_MS = 60_000
ACCELERATORS = (AcceleratorKnobs("h100", cost_per_hour=2.0), AcceleratorKnobs("a100"))


class DemandingPlanner(Planner):
    """Planner with the demand of a test, which prefers the first pool."""

    demand: float = 0.0
    serves: dict[str, float] = field(default_factory=dict)

    def plan(self, model: Model, now: int) -> Recommendation:
        del model, now
        pool = next(iter(self.serves))
        targets = dict.fromkeys(self.serves, 0) | {pool: int(-(-self.demand // self.serves[pool]))}
        need = RoleDemand("aggregated", self.demand, self.serves)
        return Recommendation(
            "needy", targets, (Reason(ReasonCode.FIXED_COUNT, numbers={"replicas": 0.0}),), {}, (need,)
        )

    def next_wake(self) -> int:
        return 2**50


def pool(name: str, gpu: str, deadline_ms: int = 600_000) -> PoolKnobs:
    return PoolKnobs(name, "aggregated", 1, 0, 100, deadline_ms, accelerator=gpu)


def two_pools(fast: int, slow: int, deadline_ms: int = 600_000) -> list[tuple[PoolKnobs, int]]:
    return [(pool("fast", "h100", deadline_ms), fast), (pool("slow", "a100", deadline_ms), slow)]


def models_of(
    capacity: dict[str, int],
    pools: dict[str, list[tuple[PoolKnobs, int]]],
    guardrails: GuardrailKnobs = STEPS,
    knobs: dict[str, Any] | None = None,
    **first: int,
) -> MultiModelWorld:
    limited = GpuLimits(AllocationKnobs(capacity, **(knobs or {})), ACCELERATORS, priorities=first)
    return MultiModelWorld(pools, FleetKnobs(), limited=limited, guardrails=guardrails)


def needs(models: MultiModelWorld, model: str, demand: float, **serves: float) -> None:
    models.controller._planners[model] = DemandingPlanner(None, demand, serves)
    models.controller.state.fleet.models[model].plan_at_ms = models.now


def limit_codes(models: MultiModelWorld, model: str) -> set[str]:
    return {f"{one.pool} {one.code}" for one in hold_of(models.controller.state, model).limits}


def answer(problem: AllocationProblem) -> Allocation | None:
    return solve(problem, 60.0)


def contended(**knobs: Any) -> MultiModelWorld:
    """Return two models of one priority, of which greedy serves the first by name in full."""
    one = {name: [(pool("main", "h100"), 1)] for name in ("a", "b")}
    models = models_of({"h100": 10}, one, knobs=knobs)
    models.propose("a", main=1)
    models.propose("b", main=1)
    models.run(1_000)
    return models


def swapped(problem: AllocationProblem) -> Allocation:
    """Return a solution that differs from greedy."""
    counts = {want.name: {"main": 0} for want in problem.models}
    current, additional = (f"\0level\0{rank}\0main" for rank in (UNDIVIDED, LEVEL_RANKS - 1))
    found = {"a" + current: {"main": 1}, "b" + current: {"main": 1}, "b" + additional: {"main": 8}}
    return Allocation(counts | found, {})


def test_the_greedy_allocation_applies_until_the_exact_one_arrives() -> None:
    models = contended()
    models.solves, models.solve_ms = swapped, 1_337
    models.propose("b", main=9)
    models.propose("a", main=9)
    models.run(1_000)
    assert models.effective_targets() == {"a": {"main": 9}, "b": {"main": 1}}
    models.run(MINUTE_MS)
    assert models.effective_targets() == {"a": {"main": 1}, "b": {"main": 9}}
    assert len(models.problems) == 1, "equal demands cause no new problem"


def test_a_solution_for_outdated_demands_is_ignored() -> None:
    models = contended(solve_interval_ms=600_000)
    models.solves, models.solve_ms = swapped, 1_337
    models.propose("a", main=9)
    models.propose("b", main=8)
    models.run(1_000)
    models.propose("b", main=7)
    models.run(MINUTE_MS)
    assert models.effective_targets()["a"] == {"main": 9}
    assert len(models.problems) == 1, "the solver is not called again before the interval"


def test_changed_demands_are_solved_again_after_the_interval() -> None:
    models = contended(solve_interval_ms=10_000)
    models.solves = swapped
    models.propose("a", main=9)
    models.propose("b", main=8)
    models.run(1_000)
    models.propose("b", main=9)
    models.run(MINUTE_MS)
    assert len(models.problems) == 2
    assert models.effective_targets() == {"a": {"main": 1}, "b": {"main": 9}}


def test_without_a_solution_the_greedy_allocation_is_final() -> None:
    one = {"high": [(pool("main", "h100"), 2)], "low": [(pool("main", "h100"), 8)]}
    guardrails = GuardrailKnobs(step_down_max=100, stabilisation_ms=600_000, cooldown_down_ms=0, warm_up_ms=0)
    models = models_of({"h100": 10}, one, guardrails, high=1)
    models.solve_ms = 30_000
    models.propose("low", main=8)
    models.propose("high", main=7)
    models.run(20_000)
    assert models.effective_targets()["low"] == {"main": 8}, "no worker is removed while a better solution may arrive"
    models.run(MINUTE_MS)
    assert models.effective_targets() == {"high": {"main": 7}, "low": {"main": 3}}
    assert models.controller.state.counters["allocations_failed"] == 1


def test_the_greedy_solver_sends_no_problem() -> None:
    models = contended(solver="greedy")
    models.propose("a", main=9)
    models.propose("b", main=9)
    models.run(MINUTE_MS)
    assert models.problems == []


def test_another_pool_serves_if_gpus_are_short() -> None:
    models = models_of({"h100": 4}, {"a": two_pools(2, 0), "b": [(pool("main", "h100"), 2)]}, a=2, b=1)
    models.solves = answer
    needs(models, "a", 20.0, fast=10.0, slow=5.0)
    models.propose("b", main=4)
    models.run(3_000)
    assert models.effective_targets()["a"] == {"fast": 2, "slow": 4}, (
        "the old pool keeps its workers until the new ones are ready"
    )
    assert "fast replacement_not_ready" in limit_codes(models, "a")
    models.run(2 * MINUTE_MS)
    assert models.effective_targets() == {"a": {"fast": 0, "slow": 4}, "b": {"main": 4}}
    assert limit_codes(models, "a") == {"fast served_by_another_pool", "slow serves_for_another_pool"}


def test_a_pool_without_shortage_shrinks_as_recommended() -> None:
    guardrails = GuardrailKnobs(step_down_max=100, stabilisation_ms=30_000, cooldown_down_ms=0, warm_up_ms=0)
    spare = [(pool("fast", "h100"), 2), (PoolKnobs("slow", "aggregated", 1, 0, 100), 6)]
    models = models_of({"h100": 2}, {"a": spare}, guardrails)
    models.solves = answer
    needs(models, "a", 28.0, fast=10.0, slow=4.0)
    models.run(20_000)
    assert models.effective_targets()["a"] == {"fast": 2, "slow": 6}, (
        "after the stabilisation window, since no model waits"
    )
    models.controller.state.fleet.models["a"].plan_at_ms = models.now + 15_000
    models.run(MINUTE_MS)
    assert models.effective_targets()["a"] == {"fast": 2, "slow": 2}
    assert "slow serves_for_another_pool" in limit_codes(models, "a")
    assert len(models.problems) == 1, "intermediate counts cause no new problem"


def test_an_exchange_of_pools_never_loses_capacity() -> None:
    models = models_of({"h100": 4}, {"a": two_pools(2, 0), "b": [(pool("main", "h100"), 2)]}, a=2, b=1)
    models.solves = answer
    needs(models, "a", 20.0, fast=10.0, slow=5.0)
    models.propose("b", main=4)
    pools = models.controller.state.fleet.models["a"].pools

    def check() -> None:
        assert pools["fast"].ready * 10.0 + pools["slow"].ready * 5.0 >= 20.0

    models.after_turn = check
    models.run(2 * MINUTE_MS)
    assert (pools["fast"].ready, pools["slow"].ready) == (0, 4)


@pytest.mark.parametrize(("deadline_ms", "moved"), [(MINUTE_MS, True), (600_000, False)])
def test_an_exchange_of_gpus_waits_at_most_for_the_start_deadline(deadline_ms: int, moved: bool) -> None:  # noqa: FBT001 - a case
    pools = {"a": two_pools(0, 2, deadline_ms), "b": two_pools(2, 0, deadline_ms)}
    models = models_of({"h100": 2, "a100": 2}, pools, knobs={"solver": "greedy", "switching_cost_hours": 0.0})
    models.controller.state.allocation.settled = True
    needs(models, "a", 4.0, fast=2.0, slow=2.0)
    needs(models, "b", 4.0, fast=2.0, slow=2.0)
    models.run(1_000)
    allocation = models.controller.state.allocation
    allocation.granted = {"a": {"fast": 2, "slow": 0}, "b": {"fast": 0, "slow": 2}}
    for name in ("a", "b"):
        models.controller.state.fleet.models[name].plan_at_ms = models.now
    models.run(3 * MINUTE_MS)
    places = {"a": {"fast": 2, "slow": 0}, "b": {"fast": 0, "slow": 2}}
    stay = {"a": {"fast": 0, "slow": 2}, "b": {"fast": 2, "slow": 0}}
    assert models.effective_targets() == (places if moved else stay)


def test_an_invalid_role_demand_is_ignored() -> None:
    models = models_of({"h100": 4}, {"a": two_pools(2, 0), "b": [(pool("main", "h100"), 2)]}, a=2, b=1)
    needs(models, "a", 20.0, fast=10.0, slow=float("nan"))
    models.propose("b", main=4)
    models.run(2 * MINUTE_MS)
    assert models.effective_targets() == {"a": {"fast": 0, "slow": 0}, "b": {"main": 4}}


def test_new_limits_apply_and_a_removed_model_is_forgotten() -> None:
    models = contended()
    settings = models.controller.settings

    def apply(new: Settings, want: int) -> dict[str, int]:
        models.schedule(SettingsChanged(msgspec.Raw(msgspec.json.encode(new))))
        for one in [one for one in models.workers.values() if one.model not in {model.name for model in new.models}]:
            models.schedule(
                WorkerDeregistered(one.model, one.pool, one.worker)
            )  # until they leave, they occupy their GPUs
        models.run(1_000)
        for name in models.effective_targets():
            models.propose(name, main=want)  # as the settings are those of its planner too
        models.run(MINUTE_MS)
        return {name: pools["main"] for name, pools in models.effective_targets().items()}

    assert sum(apply(settings, 9).values()) == 10
    more = replace(settings, allocation=AllocationKnobs({"h100": 16}))
    assert sum(apply(more, 9).values()) == 16
    assert apply(replace(more, models=more.models[:1]), 20) == {"a": 16}
    assert apply(replace(more, models=more.models[:1], allocation=AllocationKnobs()), 20) == {"a": 20}
    assert sum(apply(settings, 9).values()) == 10


def test_problems_are_effects_and_solutions_are_events() -> None:
    models = contended()
    models.solves = answer
    models.propose("a", main=9)
    models.propose("b", main=9)
    models.run(MINUTE_MS)
    (problem,) = models.problems
    effect = SolveAllocation(1, problem, 2_000)
    assert msgspec.json.decode(msgspec.json.encode(effect), type=AnyEffect) == effect
