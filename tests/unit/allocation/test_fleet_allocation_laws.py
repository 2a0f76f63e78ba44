"""Guardrails under shortage of GPUs: no shrink without need, data or stabilisation."""

from typing import ClassVar

import msgspec
import pytest
from msgspec.structs import replace

from loadline.core.fleet.fleet import Fleet, FleetKnobs, Model
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.allocation import fleet_allocation
from loadline.core.planning.allocation.fleet_allocation import FleetAllocation
from loadline.core.planning.allocation.gpu_ledger import GpuLedger, gpu_ledger_of
from loadline.core.planning.allocation.supplies import AllocationKnobs, Supplies
from loadline.core.planning.guardrails.constraints import SupplyHeadroom
from loadline.core.planning.guardrails.knobs import GuardrailKnobs
from loadline.core.planning.planners.static import StaticKnobs
from loadline.core.rounds.scaling import context
from loadline.core.state.settings import Settings
from loadline.core.vocabulary.events import SettingsChanged, TrafficReported
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation
from loadline.core.vocabulary.samples import TrafficSample
from tests.support.holds import hold_of
from tests.support.multi_model_world import GpuLimits, MultiModelWorld
from tests.unit.allocation.test_fleet_allocation_answers import (
    ACCELERATORS,
    MINUTE_MS,
    DemandingPlanner,
    limit_codes,
    models_of,
    pool,
    two_pools,
)

GREEDY = {"solver": "greedy"}


class KeepingPlanner(DemandingPlanner):
    """Planner that keeps more workers than its demand needs."""

    keeps: int = 0

    def plan(self, model: Model, now: int) -> Recommendation:
        recommendation = super().plan(model, now)
        return replace(recommendation, targets=recommendation.targets | {next(iter(self.serves)): self.keeps})


class ShortPlanner(KeepingPlanner):
    """Planner that also wants more workers of the second pool than there are GPUs."""

    def plan(self, model: Model, now: int) -> Recommendation:
        recommendation = super().plan(model, now)
        return replace(recommendation, targets=recommendation.targets | {"slow": 9})


class IncompletePlanner(DemandingPlanner):
    """Planner that holds its pools for incomplete traffic."""

    def plan(self, model: Model, now: int) -> Recommendation:
        held = tuple(Reason(ReasonCode.TRAFFIC_INCOMPLETE, pool) for pool in model.pools)
        return replace(super().plan(model, now), targets={}, reasons=held)


class VetoingPlanner(DemandingPlanner):
    """Planner that prevents all shrinks."""

    def plan(self, model: Model, now: int) -> Recommendation:
        recommendation = super().plan(model, now)
        return replace(
            recommendation,
            targets={
                name: max(count, model.pools[name].effective_target(now))
                for name, count in recommendation.targets.items()
            },
        )


class UnchangedPlanner(DemandingPlanner):
    """Planner that survives a change of settings."""

    name: ClassVar[str] = "static"


def set_planner(models: MultiModelWorld, model: str, planner: DemandingPlanner) -> None:
    models.controller._planners[model] = planner
    models.controller.state.fleet.models[model].plan_at_ms = models.now


def apply_changed_settings(models: MultiModelWorld, settings: Settings) -> None:
    models.schedule(SettingsChanged(msgspec.Raw(msgspec.json.encode(settings))))


def changed(settings: Settings, **counts: int) -> Settings:
    """Return settings for the planners of this file."""
    models = tuple(
        replace(one, planner_knobs={"static": StaticKnobs({"main": counts[one.name]} if one.name in counts else {})})
        for one in settings.models
    )
    return replace(settings, models=models)


@pytest.mark.parametrize("capacity", [{"a100": 3}, {"a100": 3, "h100": 1_000}])
@pytest.mark.parametrize("serves", [{"fast": 10.0}, {"fast": 10.0, "slow": 5.0}])
def test_pools_without_shortage_are_not_limited(capacity: dict[str, int], serves: dict[str, float]) -> None:
    models = models_of(capacity, {"a": two_pools(5, 0), "b": [(pool("main", "a100"), 2)]}, knobs=GREEDY)
    set_planner(models, "a", KeepingPlanner(None, 30.0, serves, 5))
    models.propose("b", main=2)
    models.run(10_000)
    models.propose("b", main=9)
    models.run(MINUTE_MS)
    assert models.effective_targets() == {"a": {"fast": 5, "slow": 0}, "b": {"main": 3}}
    assert limit_codes(models, "a") == set(), "and available GPUs cause no reason"
    assert limit_codes(models, "b") == {"main capacity_limited"}


def test_a_pool_without_limit_grows_while_another_pool_of_the_model_is_short() -> None:
    models = models_of({"a100": 3}, {"a": two_pools(5, 3)}, knobs=GREEDY)
    planner = ShortPlanner(None, 30.0, {"fast": 10.0}, 5)
    set_planner(models, "a", planner)
    models.run(10_000)
    assert models.effective_targets() == {"a": {"fast": 5, "slow": 3}}
    planner.keeps = 9
    models.controller.state.fleet.models["a"].plan_at_ms = models.now
    models.run(MINUTE_MS)
    assert not models.controller.state.fleet.models["a"].failing
    assert models.effective_targets() == {"a": {"fast": 9, "slow": 3}}


class SpikingPlanner(ShortPlanner):
    """Planner that keeps four workers more for one evaluation."""

    spikes: int = 0

    def plan(self, model: Model, now: int) -> Recommendation:
        self.keeps = 9 if self.spikes else 5
        self.spikes = 0
        return super().plan(model, now)


def test_a_pool_without_limit_shrinks_again_while_another_pool_of_the_model_is_short() -> None:
    models = models_of({"a100": 3}, {"a": two_pools(5, 3)}, knobs=GREEDY)
    planner = SpikingPlanner(None, 30.0, {"fast": 10.0}, 5)
    set_planner(models, "a", planner)
    models.run(10_000)
    planner.spikes = 1
    found: list[int] = []
    models.after_turn = lambda: found.append(models.effective_targets()["a"]["fast"])
    for _ in range(12):
        models.controller.state.fleet.models["a"].plan_at_ms = models.now
        models.run(10_000)
    assert max(found) == 9
    assert models.effective_targets() == {"a": {"fast": 5, "slow": 3}}
    assert limit_codes(models, "a") == {"slow capacity_limited"}


def test_workers_kept_by_a_planner_are_not_taken_by_an_equal_priority() -> None:
    one = {"a": [(pool("main", "h100"), 4)], "b": [(pool("main", "h100"), 2)]}
    models = models_of({"h100": 6}, one, knobs=GREEDY)
    set_planner(models, "a", KeepingPlanner(None, 20.0, {"main": 10.0}, 4))
    models.propose("b", main=4)
    models.run(MINUTE_MS)
    assert models.effective_targets() == {"a": {"main": 4}, "b": {"main": 2}}


def test_a_model_with_incomplete_data_keeps_its_workers() -> None:
    one = {"a": [(pool("main", "h100"), 4)], "b": [(pool("main", "h100"), 1)]}
    models = models_of({"h100": 5}, one, knobs=GREEDY, b=1)
    set_planner(models, "a", IncompletePlanner(None, 20.0, {"main": 10.0}))
    models.propose("b", main=4)
    models.run(MINUTE_MS)
    assert models.effective_targets() == {"a": {"main": 4}, "b": {"main": 1}}


@pytest.mark.parametrize(("first", "after_s"), [(100, 30), (1, 5)])
def test_only_shrinks_for_a_higher_priority_skip_the_stabilisation(first: int, after_s: int) -> None:
    guard = GuardrailKnobs(
        step_up_max=100, step_down_max=100, stabilisation_ms=30_000, cooldown_down_ms=0, warm_up_ms=0
    )
    one = {"a": [(pool("main", "h100"), 2)], "z": [(pool("main", "h100"), 6)]}
    models = models_of({"h100": 8}, one, guard, GREEDY, a=first)
    set_planner(models, "z", DemandingPlanner(None, 60.0, {"main": 10.0}))
    set_planner(models, "a", DemandingPlanner(None, 20.0, {"main": 10.0}))
    models.run(40_000)
    set_planner(models, "a", DemandingPlanner(None, 60.0, {"main": 10.0}))
    models.run(after_s * 1_000 - 2_000 if first > 1 else 0)
    assert models.effective_targets()["z"] == {"main": 6}
    for _ in range(10):
        set_planner(models, "z", DemandingPlanner(None, 60.0, {"main": 10.0}))
        models.run(1_000)
    assert models.effective_targets()["z"] == {"main": 2}


def test_workers_that_replace_another_pool_are_not_requested_twice() -> None:
    pools = {"a": two_pools(4, 0), "b": [(pool("main", "h100"), 0)]}
    models = models_of({"h100": 4, "a100": 20}, pools, knobs=GREEDY, a=2, b=1)
    set_planner(models, "a", VetoingPlanner(None, 40.0, {"fast": 10.0, "slow": 5.0}))
    models.propose("b", main=4)
    most: list[int] = []
    models.after_turn = lambda: most.append(models.effective_targets()["a"]["slow"])
    for _ in range(60):
        set_planner(models, "a", VetoingPlanner(None, 40.0, {"fast": 10.0, "slow": 5.0}))
        models.run(1_000)
    assert models.effective_targets() == {"a": {"fast": 0, "slow": 8}, "b": {"main": 4}}
    assert max(most) == 8


def replacing() -> MultiModelWorld:
    """Return a model that loses its fast workers to a higher priority while their replacements start."""
    pools = {"a": two_pools(4, 0), "b": [(pool("main", "h100"), 0)]}
    models = models_of({"h100": 4, "a100": 20}, pools, knobs=GREEDY, a=2, b=1)
    models.start_ms = 300_000
    set_planner(models, "a", UnchangedPlanner(None, 40.0, {"fast": 10.0, "slow": 5.0}))
    models.propose("b", main=4)
    models.run(5_000)
    assert "fast replacement_not_ready" in limit_codes(models, "a")
    return models


def test_workers_kept_for_a_replacement_respect_maximum_replicas() -> None:
    models = replacing()
    settings = changed(models.controller.settings, b=4)
    a, b = settings.models
    fast, slow = a.pools
    apply_changed_settings(
        models, replace(settings, models=(replace(a, pools=(replace(fast, replicas_max=2), slow)), b))
    )
    models.run(MINUTE_MS)
    assert models.effective_targets()["a"]["fast"] == 2


def test_workers_kept_for_a_replacement_respect_the_budget() -> None:
    models = replacing()
    settings = changed(models.controller.settings, b=4)
    apply_changed_settings(models, replace(settings, fleet=replace(settings.fleet, gpu_budget_max=3)))
    models.run(MINUTE_MS)
    assert models.occupied() <= 3
    assert models.effective_targets()["b"]["main"] == 1, "nor does it take the worker of another model"


def test_changed_priorities_apply_at_once() -> None:
    one = {name: [(pool("main", "h100"), workers)] for name, workers in (("a", 2), ("b", 8))}
    models = models_of({"h100": 10}, one, knobs=GREEDY, a=2, b=1)
    models.propose("a", main=8)
    models.propose("b", main=8)
    models.run(MINUTE_MS)
    assert models.effective_targets() == {"a": {"main": 2}, "b": {"main": 8}}
    settings = changed(models.controller.settings, a=8, b=8)
    a, b = settings.models
    apply_changed_settings(models, replace(settings, models=(replace(a, priority=1), replace(b, priority=2))))
    models.run(MINUTE_MS)
    assert models.effective_targets() == {"a": {"main": 8}, "b": {"main": 2}}


def test_a_changed_policy_applies_at_once() -> None:
    one = {name: [(pool("main", "h100"), 1)] for name in ("a", "b")}
    models = models_of({"h100": 10}, one, knobs=GREEDY | {"policy": "none"})
    for name in one:
        models.propose(name, main=12)
    models.run(MINUTE_MS)
    assert models.effective_targets() == {"a": {"main": 1}, "b": {"main": 1}}
    settings = changed(models.controller.settings, a=12, b=12)
    apply_changed_settings(models, replace(settings, allocation=replace(settings.allocation, policy="round_robin")))
    models.run(MINUTE_MS)
    assert models.effective_targets() == {"a": {"main": 5}, "b": {"main": 5}}


@pytest.mark.parametrize("needs", [False, True])
def test_a_model_without_workers_gets_one_from_equal_priorities(needs: bool) -> None:  # noqa: FBT001 - a case
    one = {name: [(pool("main", "h100"), workers)] for name, workers in (("a", 8), ("b", 0))}
    models = models_of({"h100": 8}, one, knobs=GREEDY)
    models.propose("a", main=9)
    if needs:
        set_planner(models, "b", DemandingPlanner(None, 30.0, {"main": 10.0}))
    else:
        models.propose("b", main=3)
    models.run(MINUTE_MS)
    decided = len(models.decisions)
    assert models.effective_targets() == {"a": {"main": 7}, "b": {"main": 1}}
    models.run(5 * MINUTE_MS)
    assert models.effective_targets() == {"a": {"main": 7}, "b": {"main": 1}}
    assert len(models.decisions) == decided, "and stays at that count"


def test_a_model_scales_from_zero_although_equals_have_all_gpus() -> None:
    limited = GpuLimits(AllocationKnobs({"h100": 8}, solver="greedy"), ACCELERATORS)
    pools: dict[str, list[tuple[PoolKnobs, int]]] = {
        "a": [(pool("main", "h100"), 8)],
        "b": [(pool("main", "h100"), 0)],
    }
    models = MultiModelWorld(pools, FleetKnobs(), limited=limited, scale_to_zero_after_ms=600_000)
    models.propose("a", main=8)
    models.propose("b")
    for sequence in range(1, 31):
        models.schedule(TrafficReported("b", "f", 1, TrafficSample(sequence, 1_000, 5, 0)))
        models.run(1_000)
    assert models.effective_targets() == {"a": {"main": 7}, "b": {"main": 1}}


def test_the_gpu_ledger_is_computed_once_per_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    computed_at: list[int] = []
    waited: list[str] = []

    def counted(fleet: Fleet, pending: dict[str, dict[str, int]], supplies: Supplies, now: int) -> GpuLedger | None:
        computed_at.append(now)
        return gpu_ledger_of(fleet, pending, supplies, now)

    def check() -> None:
        assert len(computed_at) <= 1
        computed_at.clear()
        waited.extend(models.controller.state.allocation.waiting)

    monkeypatch.setattr(context, "gpu_ledger_of", counted)
    models = models_of({"h100": 4}, {name: [(pool("main", "h100"), 2)] for name in "ab"}, knobs=GREEDY, a=1)
    models.propose("b", main=2)
    models.propose("a", main=5)
    computed_at.clear()
    models.after_turn = check
    models.run(20_000)
    assert "a" in waited


def test_an_exception_after_planning_holds_its_model_only(monkeypatch: pytest.MonkeyPatch) -> None:
    models = models_of({"h100": 10}, {name: [(pool("main", "h100"), 1)] for name in "ab"}, knobs=GREEDY)
    sound = FleetAllocation.headroom

    def room(self: FleetAllocation, fleet: Fleet, name: str, ledger: GpuLedger, now: int) -> SupplyHeadroom:
        if name == "a":
            raise ZeroDivisionError("no room")
        return sound(self, fleet, name, ledger, now)

    with monkeypatch.context() as broken:
        broken.setattr(FleetAllocation, "headroom", room)
        for name in "ab":
            models.propose(name, main=3)
        models.run(MINUTE_MS)
    state = models.controller.state
    assert models.effective_targets() == {"a": {"main": 1}, "b": {"main": 3}}
    assert [one.code for one in hold_of(state, "a").recommendations[0].reasons] == [ReasonCode.PLANNER_FAILED]
    assert state.counters["alarm_planner_failed"] == 1
    models.run(MINUTE_MS)
    assert models.effective_targets() == {"a": {"main": 3}, "b": {"main": 3}}
    assert not any(model.failing for model in state.fleet.models.values())


def test_an_exception_of_the_allocation_holds_the_models_with_limited_supplies(monkeypatch: pytest.MonkeyPatch) -> None:
    pools = {"a": [(pool("main", "h100"), 1)], "b": [(pool("main", "h100"), 1)], "c": [(pool("main", "a100"), 1)]}
    models = models_of({"h100": 4}, pools, knobs=GREEDY)

    def broken(*_args: object) -> None:
        raise ZeroDivisionError("no greed")

    with monkeypatch.context() as patched:
        patched.setattr(fleet_allocation, "greedy", broken)
        for name in "abc":
            models.propose(name, main=3)
        models.run(MINUTE_MS)
    state = models.controller.state
    assert models.effective_targets()["c"] == {"main": 3}, "it takes no limited supply"
    assert sum(models.effective_targets()[name]["main"] for name in "ab") <= 4
    assert 1 <= state.counters["alarm_planner_failed"] <= 4, "one alarm for each model, not for each turn"
    models.run(2 * MINUTE_MS)
    assert sum(models.effective_targets()[name]["main"] for name in "ab") == 4
    assert not any(model.failing for model in state.fleet.models.values())
