"""Workers that a load does not need, when GPUs are short: they go to other pools and models before others wait."""

import pytest
from msgspec import field
from msgspec.structs import replace

from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.fleet.fleet import FleetKnobs, Model
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.fleet.schedule_windows import ScheduleMinimum
from loadline.core.planning.allocation.supplies import AllocationKnobs
from loadline.core.planning.guardrails.knobs import HardLimits
from loadline.core.planning.planners.static import StaticKnobs, StaticPlanner
from loadline.core.queries.status import explain
from loadline.core.vocabulary.reasons import Recommendation, RoleDemand
from tests.support.guardrail_harness import A, B, GuardrailHarness
from tests.support.holds import hold_of
from tests.support.multi_model_world import GpuLimits, MultiModelWorld

MINUTE_MS = 60_000
H100 = (AcceleratorKnobs("h100"),)


class UnneededPlanner(StaticPlanner):
    """Planner of fixed counts, of which the load needs fewer."""

    needed: dict[str, int] = field(default_factory=dict)
    demands: tuple[RoleDemand, ...] = ()

    def plan(self, model: Model, now: int) -> Recommendation:
        """Recommend the fixed counts, with the unneeded workers."""
        found = super().plan(model, now)
        counts = {name: found.targets.get(name, pool.effective_target(now)) for name, pool in model.pools.items()}
        unneeded = {name: max(0, counts[name] - needed) for name, needed in self.needed.items()}
        return replace(found, unneeded=unneeded, demands=self.demands)


class UnneededWorld(MultiModelWorld):
    """Models of one pool each, or of two with two counts, on so many GPUs."""

    def __init__(self, gpus: int, *, as_budget: bool = False, **workers: int | tuple[int, int]) -> None:
        models = {name: (one,) if isinstance(one, int) else one for name, one in workers.items()}
        pools = {
            name: [
                (PoolKnobs(f"pool{at}", "aggregated", replicas_max=20, accelerator="h100"), count)
                for at, count in enumerate(counts)
            ]
            for name, counts in models.items()
        }
        fleet = FleetKnobs(gpu_budget_max=gpus) if as_budget else FleetKnobs()
        supply = {} if as_budget else {"h100": gpus}
        priorities = {name: 1 for name in models if name.startswith("first")}
        limits = GpuLimits(AllocationKnobs(supply, solver="greedy"), H100, priorities=priorities)
        super().__init__(pools, fleet, limited=limits)
        for name in models:
            self.controller._planners[name] = UnneededPlanner(StaticKnobs({}))

    def planner(self, model: str) -> UnneededPlanner:
        planner = self.controller._planners[model]
        assert isinstance(planner, UnneededPlanner)
        return planner

    def plan(self, model: str, needed: dict[str, int] | None = None, **replicas: int) -> None:
        """Set the counts of a model, and what its load needs of them, from now on; run for a minute."""
        self.planner(model).needed = needed or {}
        self.propose(model, **replicas)
        self.run(MINUTE_MS)

    def counts(self) -> dict[str, list[int]]:
        return {name: list(pools.values()) for name, pools in self.effective_targets().items()}

    def limits(self, model: str) -> list[str]:
        found = hold_of(self.controller.state, model).limits
        return [f"{one.code} {one.detail}".strip() for one in found]


def test_an_unneeded_worker_goes_to_a_model_that_needs_it() -> None:
    models = UnneededWorld(10, a=5, b=5)
    models.plan("a", {"pool0": 3})
    assert models.counts() == {"a": [5], "b": [5]}, "while no other model needs it, it stays"
    models.plan("b", pool0=6)
    assert models.counts() == {"a": [4], "b": [6]}, "the other unneeded worker stays"


def test_the_reason_names_the_model_that_takes_it() -> None:
    models = UnneededWorld(10, a=5, b=5)
    models.plan("a", {"pool0": 3}, pool0=5)
    models.plan("b", pool0=9)
    assert models.counts() == {"a": [3], "b": [7]}, "what a load needs stays"
    assert models.limits("a") == ["unneeded_gives_way"]
    [decision] = [decision for _, decision in models.decisions if decision.model == "a"]
    [explained] = explain(models.controller.state, decision.decision_id, "a")
    assert [reason.sentence() for reason in explained.limits] == [
        "pool0: 5 limited to 3: GPUs are short, and others need workers that this pool does not: b"
    ]


def test_an_unneeded_worker_returns_when_gpus_are_free_again() -> None:
    models = UnneededWorld(10, a=5, b=5)
    models.plan("a", {"pool0": 3}, pool0=5)
    models.plan("b", pool0=6)
    models.plan("b", pool0=5)
    assert models.counts() == {"a": [5], "b": [5]}


def test_an_unneeded_worker_of_a_higher_priority_stays() -> None:
    models = UnneededWorld(10, first=5, b=5)
    models.plan("first", {"pool0": 3})
    models.plan("b", pool0=6)
    assert models.counts() == {"first": [5], "b": [5]}


def test_unneeded_workers_of_two_models_are_not_exchanged() -> None:
    models = UnneededWorld(10, a=5, b=5)
    models.plan("a", {"pool0": 3})
    models.plan("b", {"pool0": 3})
    assert not models.decisions


def test_an_unneeded_worker_goes_to_another_pool_of_its_model() -> None:
    models = UnneededWorld(10, a=(5, 3), b=2)
    models.plan("a", {"pool0": 4}, pool1=5)
    assert models.counts() == {"a": [4, 4], "b": [2]}


def test_an_unneeded_worker_that_is_needed_again_stays() -> None:
    models = UnneededWorld(10, a=5, b=5)
    models.plan("a", {"pool0": 3})
    models.plan("a")
    models.plan("b", pool0=6)
    assert models.counts() == {"a": [5], "b": [5]}


@pytest.mark.parametrize(("wanted", "counts"), [(6, {"a": [4], "b": [6]}), (9, {"a": [3], "b": [7]})])
def test_as_many_unneeded_workers_of_a_role_demand_leave_as_others_get(
    wanted: int, counts: dict[str, list[int]]
) -> None:
    models = UnneededWorld(10, a=5, b=5)
    models.planner("a").demands = (RoleDemand("aggregated", 3.0, {"pool0": 1.0}),)
    models.plan("a", {"pool0": 3})
    models.plan("b", pool0=wanted)
    assert models.counts() == counts
    assert models.limits("a") == [], "the planner recommends no more by now"


def test_a_budget_over_all_models_moves_unneeded_workers() -> None:
    models = UnneededWorld(10, as_budget=True, a=5, b=5)
    models.plan("a", {"pool0": 3})
    assert models.counts() == {"a": [5], "b": [5]}
    models.plan("b", pool0=6)
    assert models.counts() == {"a": [4], "b": [6]}
    models.plan("b", pool0=9)
    assert models.counts() == {"a": [3], "b": [7]}, "what a load needs stays"


def test_a_budget_over_all_models_forgets_an_offer_that_is_needed_again() -> None:
    models = UnneededWorld(10, as_budget=True, a=5, b=5)
    models.plan("a", {"pool0": 3})
    models.plan("a")
    models.plan("b", pool0=6)
    assert models.counts() == {"a": [5], "b": [5]}


def test_a_budget_of_a_model_moves_unneeded_workers_between_its_pools() -> None:
    harness = GuardrailHarness(A, B).budget(14)
    proposal = harness.apply_with_unneeded({"a": 3}, b=6)
    assert proposal.targets == {"a": 2, "b": 5}
    assert [f"{one.pool}:{one.code}" for one in proposal.limits] == ["b:gpu_budget_max", "a:gpu_budget_max"]


def test_a_budget_of_a_model_keeps_unneeded_workers_while_it_suffices() -> None:
    assert GuardrailHarness(A, B).budget(16).apply_with_unneeded({"a": 3}, b=6).targets == {"a": 4, "b": 6}


def test_a_shrink_that_is_being_committed_does_not_count_twice() -> None:
    models = UnneededWorld(10, a=5, b=5)
    models.commit_ms = 10_000
    models.plan("a", {"pool0": 3})
    models.propose("b", pool0=6)
    models.run(5_000)
    assert models.counts() == {"a": [5], "b": [5]}, "the decision for 4 is being committed"
    demand = models.controller.state.allocation.demands["a"]
    assert demand.counts == {"pool0": 4}
    assert demand.unneeded == {"pool0": 1}


def test_the_minimum_of_the_budget_of_a_model_keeps_unneeded_workers() -> None:
    models = UnneededWorld(15, a=5, b=5, c=5)
    hard = models.controller.state.fleet.models["b"].guardrails
    hard.apply_settings(hard.knobs, HardLimits(0.8, 5, None))
    models.plan("a", {"pool0": 3})
    models.plan("b", {"pool0": 3})
    models.plan("c", pool0=7)
    assert models.counts() == {"a": [3], "b": [5], "c": [7]}


def test_an_offered_worker_that_is_needed_again_before_the_claim_stays() -> None:
    models = UnneededWorld(10, as_budget=True, a=5, b=5)
    models.plan("a", {"pool0": 3})
    models.run(500)
    models.planner("a").needed = {}
    models.plan("b", pool0=6)
    assert models.counts() == {"a": [5], "b": [5]}


@pytest.mark.parametrize("as_budget", [False, True], ids=["capacity", "budget"])
def test_pools_that_grow_beyond_their_needs_do_not_take_workers_in_turns(as_budget: bool) -> None:  # noqa: FBT001
    models = UnneededWorld(9, as_budget=as_budget, a=4, b=5)
    models.plan("b", {"pool0": 3}, pool0=5)
    models.propose("a", pool0=5)
    models.planner("a").needed = {"pool0": 3}
    models.run(MINUTE_MS)
    assert len(models.decisions) <= 2


def test_a_budget_of_a_model_keeps_the_minimum_of_a_schedule() -> None:
    harness = GuardrailHarness(A, B).budget(12)
    harness.pool("a").schedule_minimum = ScheduleMinimum(4, harness.now + MINUTE_MS)
    assert harness.apply_with_unneeded({"a": 3}, b=6).targets == {"a": 4, "b": 4}


def test_a_budget_of_a_model_keeps_unneeded_workers_without_data() -> None:
    harness = GuardrailHarness(A, B, quorate=False).budget(14)
    assert harness.apply_with_unneeded({"a": 3}, b=6).targets == {"a": 4, "b": 5}


def test_unneeded_workers_shrink_by_steps_under_a_budget() -> None:
    harness = GuardrailHarness(A, PoolKnobs("c", "decode"), step_down_max=1).budget(8)
    assert harness.apply_with_unneeded({"a": 3}, c=6).targets["a"] == 3


def test_no_worker_leaves_for_a_wide_one_that_does_not_fit_then() -> None:
    wide = PoolKnobs("b", "decode", gpus_per_worker=8)
    harness = GuardrailHarness(A, wide).budget(36)
    assert harness.apply_with_unneeded({"a": 3}, b=5).targets == {"a": 4, "b": 4}


def test_as_many_workers_leave_as_the_growth_takes() -> None:
    wide, narrow = PoolKnobs("b", "decode", gpus_per_worker=8), PoolKnobs("c", "decode")
    harness = GuardrailHarness(A, wide, narrow).budget(40)
    assert harness.apply_with_unneeded({"a": 3}, b=5, c=5).targets["a"] == 3


def test_unneeded_workers_wait_for_the_stabilisation_under_a_budget() -> None:
    harness = GuardrailHarness(A, B, stabilisation_ms=MINUTE_MS).budget(14)
    assert harness.apply_with_unneeded({}, b=4).targets == {"a": 4, "b": 4}
    harness.now += 1_000
    assert harness.apply_with_unneeded({"a": 3}, b=6).targets["a"] == 4
    harness.now += MINUTE_MS
    harness.report("a")
    harness.report("b")
    assert harness.apply_with_unneeded({"a": 3}, b=6).targets["a"] == 2
