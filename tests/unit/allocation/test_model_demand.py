"""Extreme numbers from planners, the store or the configuration do not stop the allocation."""

import pytest

from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.fleet.fleet import FleetKnobs, Model
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.allocation.supplies import AllocationKnobs
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation, RoleDemand
from loadline.core.vocabulary.scalars import WORKERS_MAX
from tests.support.multi_model_world import GpuLimits, MultiModelWorld
from tests.unit.allocation.test_fleet_allocation_answers import DemandingPlanner, needs

SECOND_MS = 1_000


class MaximumPlanner(DemandingPlanner):
    """Planner that recommends maximum replicas at any demand."""

    def plan(self, model: Model, now: int) -> Recommendation:
        del now
        targets = {pool.name: pool.knobs.replicas_max for pool in model.pools.values()}
        need = RoleDemand("aggregated", self.demand, self.serves)
        return Recommendation(
            "most", targets, (Reason(ReasonCode.FIXED_COUNT, numbers={"replicas": 0.0}),), {}, (need,)
        )


def two_models(most: int = 100) -> MultiModelWorld:
    """Return two models on ten GPUs of two types."""
    types = (AcceleratorKnobs("h100", cost_per_hour=2.0), AcceleratorKnobs("a100"))
    pools = {
        name: [
            (PoolKnobs("fast", "aggregated", 1, 0, most, accelerator="h100"), 2),
            (PoolKnobs("slow", "aggregated", 1, 0, most, accelerator="a100"), 1),
        ]
        for name in ("a", "b")
    }
    knobs = AllocationKnobs({"h100": 6, "a100": 4}, solver="greedy")
    return MultiModelWorld(pools, FleetKnobs(), limited=GpuLimits(knobs, types))


@pytest.mark.parametrize(
    ("demand", "fast", "slow"),
    [
        (1e300, 1e-300, 1e-300),
        (1e300, 1.0, 1.0),
        (1.0, 5e-324, 1.0),
        (0.0, 5e-324, 5e-324),
        (20.0, 1e-9, 1.0),
        (1e308, 1e-9, 1e308),
        (1e-320, 1e308, 1.0),
        (1e305, 1e300, 1e302),
    ],
)
def test_extreme_role_demands_are_limited(demand: float, fast: float, slow: float) -> None:
    models = two_models()
    for name in ("a", "b"):
        models.controller._planners[name] = MaximumPlanner(None, demand, {"fast": fast, "slow": slow})
        models.controller.state.fleet.models[name].plan_at_ms = models.now
    models.run(5 * SECOND_MS)
    assert not any(model.failing for model in models.controller.state.fleet.models.values())
    taken = models.effective_targets()
    assert taken["a"]["fast"] + taken["b"]["fast"] <= 6
    assert taken["a"]["slow"] + taken["b"]["slow"] <= 4


def test_a_pool_of_negligible_capacity_is_excluded() -> None:
    models = two_models()
    needs(models, "a", 4.0, fast=1e-9, slow=1.0)
    models.run(20 * SECOND_MS)
    assert models.effective_targets()["a"]["slow"] >= 3


def test_a_stored_count_is_limited() -> None:
    models = two_models()
    models.controller.state.fleet.models["a"].pools["fast"].set_decided(2 * WORKERS_MAX, models.now)
    models.silent.add("a")  # so it keeps its workers
    needs(models, "b", 20.0, fast=2.0, slow=1.0)
    models.run(10 * SECOND_MS)
    assert models.effective_targets()["b"]["slow"] <= 4


def test_maximum_replicas_are_limited() -> None:
    models = two_models(most=2 * WORKERS_MAX)
    needs(models, "a", 20.0, fast=2.0, slow=1.0)
    needs(models, "b", 20.0, fast=2.0, slow=1.0)
    models.run(10 * SECOND_MS)
    assert sum(pools["fast"] for pools in models.effective_targets().values()) == 6
