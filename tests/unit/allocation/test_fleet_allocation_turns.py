"""Greedy and exact allocations do not alternate."""

from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.fleet.fleet import FleetKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.allocation.supplies import AllocationKnobs
from loadline.core.vocabulary.allocations import Allocation, AllocationProblem
from loadline.solver import solve
from tests.support.multi_model_world import STEPS, GpuLimits, MultiModelWorld
from tests.unit.allocation.test_fleet_allocation_status import KeepingPlanner

ACCELERATORS = (AcceleratorKnobs("h100", cost_per_hour=2.0), AcceleratorKnobs("l40s"))


def chat(*, answer: bool) -> list[dict[str, int]]:
    """Return the counts of each decision after the demand exceeds three big workers."""
    pools = [
        (PoolKnobs("big", "aggregated", 4, 0, 4, accelerator="h100"), 3),
        (PoolKnobs("small", "aggregated", 1, 0, 8, accelerator="l40s"), 0),
    ]
    code = [(PoolKnobs("main", "aggregated", 1, 1, 10, accelerator="l40s"), 9)]
    knobs, quotas = AllocationKnobs({"h100": 16, "l40s": 12}), {"team-a": {"h100": 16, "default": 4}}
    rules = GpuLimits(knobs, ACCELERATORS, quotas, {"chat": 1}, {"chat": "team-a"})
    models = MultiModelWorld({"chat": pools, "code": code}, FleetKnobs(), limited=rules, guardrails=STEPS)

    def solves(problem: AllocationProblem) -> Allocation | None:
        return solve(problem, 60.0) if answer else None

    models.solves = solves
    models.propose("code", main=9)
    models.controller._planners["chat"] = KeepingPlanner(None, 62.0, {"small": 5})
    models.controller.state.fleet.models["chat"].plan_at_ms = models.now
    models.run(60_000)
    assert len(models.problems) <= 3, "a grant causes no new problem"
    return [{target.pool: target.replicas for target in one.targets} for _, one in models.decisions]


def test_no_pool_grows_for_a_mix_that_may_be_replaced() -> None:
    assert chat(answer=True) == [{"big": 3, "small": 1}]


def test_without_a_better_mix_the_pool_grows() -> None:
    assert chat(answer=False) == [{"big": 4, "small": 0}]
