"""Status of limited supplies: waiting GPUs, and the limit that applies."""

from msgspec import field

from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.fleet.fleet import FleetKnobs, Model
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.allocation.supplies import AllocationKnobs
from loadline.core.planning.planner import Planner
from loadline.core.queries.status import status
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation, RoleDemand
from tests.support.fleet_harness import START
from tests.support.holds import hold_of
from tests.support.multi_model_world import STEPS, GpuLimits, MultiModelWorld

ACCELERATORS = (AcceleratorKnobs("h100", cost_per_hour=2.0), AcceleratorKnobs("l40s"))


class KeepingPlanner(Planner):
    """Planner that keeps more workers than its demand needs for a while."""

    demand: float = 0.0
    counts: dict[str, int] = field(default_factory=dict)

    def plan(self, model: Model, now: int) -> Recommendation:
        del model, now
        need = RoleDemand("aggregated", self.demand, {"big": 20.0, "small": 4.0})
        reason = Reason(ReasonCode.FIXED_COUNT, numbers={"replicas": 0.0})
        return Recommendation("keeping", self.counts, (reason,), {}, (need,))

    def next_wake(self) -> int:
        return 2**50


def chat_and_code(demand: float, big: int) -> MultiModelWorld:
    """Return model chat of higher priority, with a number of big workers and five small ones under a quota of four."""
    chat = [
        (PoolKnobs("big", "aggregated", 4, 0, 4, accelerator="h100"), 3),
        (PoolKnobs("small", "aggregated", 1, 0, 8, accelerator="l40s"), 0),
    ]
    code = [(PoolKnobs("main", "aggregated", 1, 1, 12, accelerator="l40s"), 9)]
    rules = GpuLimits(
        AllocationKnobs({"h100": 16, "l40s": 12}, solver="greedy"),
        ACCELERATORS,
        {"team-a": {"h100": 16, "default": 4}},
        {"chat": 1},
        {"chat": "team-a"},
    )
    models = MultiModelWorld({"chat": chat, "code": code}, FleetKnobs(), limited=rules, guardrails=STEPS)
    models.propose("code", main=12)
    models.controller._planners["chat"] = KeepingPlanner(None, demand, {"big": big, "small": 5})
    models.controller.state.fleet.models["chat"].plan_at_ms = models.now
    models.run(30_000)
    return models


def waiting(models: MultiModelWorld, model: str) -> dict[str, int]:
    found = status(models.controller.settings, models.controller.state, "1", START, models.now).supplies
    return {one.supply: one.waiting[model] for one in found if model in one.waiting}


def limit_codes(models: MultiModelWorld) -> set[str]:
    return {f"{one.pool} {one.code} {one.detail}" for one in hold_of(models.controller.state, "chat").limits}


def test_served_demands_are_not_listed_as_waiting() -> None:
    models = chat_and_code(60.0, 3)
    assert models.effective_targets()["chat"] == {"big": 3, "small": 0}
    assert limit_codes(models) == {"small served_by_another_pool big"}
    assert waiting(models, "chat") == {}


def test_a_demand_above_the_quota_gives_the_quota_as_reason() -> None:
    models = chat_and_code(200.0, 4)
    assert models.effective_targets()["chat"] == {"big": 4, "small": 4}
    assert "small quota_limited team-a/l40s" in limit_codes(models)
    assert waiting(models, "chat") == {"l40s": 1, "team-a/l40s": 1}
