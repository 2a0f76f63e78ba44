"""Levels of workers on short GPUs: models and roles are served by their part of what their loads need."""

import pytest
from msgspec import field
from msgspec.structs import replace

from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.fleet.fleet import FleetKnobs, Model
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.allocation.model_demand import ModelDemand
from loadline.core.planning.allocation.supplies import AllocationKnobs
from loadline.core.planning.allocation.worker_levels import HELD_LEVELS, LEVEL_RANKS, LEVELS, UNDIVIDED, ranked_workers
from loadline.core.planning.planners.static import StaticKnobs, StaticPlanner
from loadline.core.vocabulary.reasons import Recommendation, RoleDemand
from loadline.core.vocabulary.scalars import Role
from tests.support.multi_model_world import GpuLimits, MultiModelWorld

SECOND_MS = 1_000
ROLES: tuple[Role, ...] = ("prefill", "decode")


class LastingPlanner(StaticPlanner):
    """Planner of fixed counts, with the workers that the arrivals need."""

    lasting: dict[str, int] = field(default_factory=dict)
    demands: tuple[RoleDemand, ...] = ()

    def plan(self, model: Model, now: int) -> Recommendation:
        """Recommend the fixed counts."""
        return replace(super().plan(model, now), lasting=self.lasting, demands=self.demands)


class DisaggregatedWorld(MultiModelWorld):
    """Models of a prefill and a decode pool, which start with two counts, on so many GPUs."""

    def __init__(self, gpus: int, replicas_min: int = 1, **workers: tuple[int, int]) -> None:
        pools = {
            name: [
                (PoolKnobs(role, role, 1, replicas_min, 20, accelerator="h100"), count)
                for role, count in zip(ROLES, counts, strict=True)
            ]
            for name, counts in workers.items()
        }
        limits = GpuLimits(AllocationKnobs({"h100": gpus}, solver="greedy"), (AcceleratorKnobs("h100"),))
        super().__init__(pools, FleetKnobs(), limited=limits)
        for name in workers:
            self.controller._planners[name] = LastingPlanner(StaticKnobs({}))

    def need(self, model: str, lasting: tuple[int, int], wanted: tuple[int, int] | None = None) -> None:
        """Set what the arrivals of a model need, and the counts that its planner recommends, from now on."""
        planner = self.controller._planners[model]
        assert isinstance(planner, LastingPlanner)
        planner.lasting = dict(zip(ROLES, lasting, strict=True))
        self.propose(model, **dict(zip(ROLES, wanted or lasting, strict=True)))

    def serve(self, seconds: int = 60, **lasting: tuple[int, int]) -> None:
        """Set what the arrivals of models need, from now on; run for some seconds."""
        for model, counts in lasting.items():
            self.need(model, counts)
        self.run(seconds * SECOND_MS)

    def need_as_role(self, model: str, demand: float) -> None:
        """Let a model have a role demand of so many decode workers from now on, and a prefill worker."""
        planner = self.controller._planners[model]
        assert isinstance(planner, LastingPlanner)
        planner.demands = (RoleDemand("decode", demand, {"decode": 1.0}),)
        self.propose(model, prefill=1, decode=int(demand))

    def counts(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(pools.values()) for name, pools in self.effective_targets().items()}


def test_a_model_that_is_served_less_gets_workers_of_one_that_is_served_more() -> None:
    models = DisaggregatedWorld(12, a=(4, 4), b=(2, 2))
    models.serve(a=(4, 4), b=(4, 4))
    assert models.counts() == {"a": (3, 3), "b": (3, 3)}
    decided = len(models.decisions)
    models.run(300 * SECOND_MS)
    assert len(models.decisions) == decided, "models that are served alike exchange no workers"


def test_a_role_gets_no_more_than_the_other_can_use() -> None:
    models = DisaggregatedWorld(10, a=(4, 2), b=(2, 2))
    models.serve(a=(4, 4), b=(2, 2))
    assert models.counts() == {"a": (3, 3), "b": (2, 2)}


def test_gpus_for_one_more_pair_go_to_one_model() -> None:
    models = DisaggregatedWorld(10, a=(2, 2), b=(2, 2))
    models.serve(a=(4, 4), b=(4, 4))
    assert models.counts() in ({"a": (3, 3), "b": (2, 2)}, {"a": (2, 2), "b": (3, 3)}), "not a role of each"


def test_workers_for_a_backlog_come_after_those_for_arrivals() -> None:
    models = DisaggregatedWorld(12, a=(2, 2), b=(4, 4))
    models.need("a", (2, 2), (9, 9))
    models.serve(b=(4, 4))
    assert models.counts() == {"a": (2, 2), "b": (4, 4)}, "the backlog of a takes nothing from b"
    models.serve(b=(3, 3))
    assert models.counts() == {"a": (3, 3), "b": (3, 3)}, "free GPUs serve it"


def test_a_model_whose_planner_tells_no_needs_keeps_its_workers_from_growth_beyond_half() -> None:
    models = DisaggregatedWorld(12, a=(3, 3), b=(3, 3))
    models.serve(a=(6, 6))
    assert models.counts() == {"a": (3, 3), "b": (3, 3)}


@pytest.mark.parametrize("needs", [(2, 3), (4, 5), (4, 3)])
def test_a_need_that_changes_by_a_worker_moves_none(needs: tuple[int, int]) -> None:
    models = DisaggregatedWorld(12, a=(3, 3), b=(3, 3))
    counts: set[tuple[int, ...]] = set()
    for need in needs * 3:
        models.serve(20, a=(need, need), b=(3, 3))
        counts.add(models.counts()["b"])
    assert counts == {(3, 3)}


def test_a_model_keeps_the_last_worker_of_a_role() -> None:
    models = DisaggregatedWorld(4, 0, a=(1, 1), b=(1, 1))
    models.propose("a", prefill=1, decode=1)
    models.serve(b=(16, 16))
    assert models.counts() == {"a": (1, 1), "b": (1, 1)}


def test_a_role_demand_keeps_its_last_worker() -> None:
    models = DisaggregatedWorld(6, 0, a=(1, 3), b=(1, 1))
    models.need_as_role("a", 3.0)
    models.serve(b=(16, 16))
    assert models.counts() == {"a": (1, 1), "b": (2, 2)}


def test_models_do_not_take_turns_with_their_only_workers() -> None:
    models = DisaggregatedWorld(4, 0, a=(1, 1), b=(1, 1), c=(0, 0))
    for need in (1, 2, 1, 2):
        models.serve(15, a=(need, need), b=(need, need), c=(need, need))
    assert models.counts() == {"a": (1, 1), "b": (1, 1), "c": (0, 0)}
    assert not models.decisions


def test_a_model_without_workers_gets_second_ones_of_another() -> None:
    models = DisaggregatedWorld(6, 0, a=(2, 2), b=(1, 1), c=(0, 0))
    models.serve(a=(2, 2), b=(2, 2), c=(2, 2))
    assert models.counts() == {"a": (1, 1), "b": (1, 1), "c": (1, 1)}


def test_a_model_without_a_role_takes_no_last_worker_of_one_that_serves() -> None:
    models = DisaggregatedWorld(4, 0, a=(1, 0), b=(1, 1), c=(0, 1))
    for need in (1, 2, 1, 2):
        models.serve(15, a=(need, need), b=(need, need), c=(need, need))
    counts = models.counts()
    assert counts.pop("b") == (1, 1)
    assert sorted(counts.values()) == [(0, 0), (1, 1)], "one of the others has both roles"


def test_lasting_needs_of_a_role_demand_are_no_other_problem() -> None:
    need = RoleDemand("decode", 2.0, {"decode": 1.0})
    first = ModelDemand({"prefill": 1, "decode": 2}, {}, (need,), {}, {"prefill": 1, "decode": 2})
    assert first.is_equivalent(replace(first, lasting={"prefill": 1, "decode": 3}))
    assert not first.is_equivalent(replace(first, lasting={"prefill": 2, "decode": 2}))


def test_levels_divide_the_need() -> None:
    held = 2 * HELD_LEVELS
    assert list(ranked_workers(0, 4, 3, 4)) == [(0, 1), (4, 1), (8, 1), (13 + held, 1)]
    assert list(ranked_workers(1, 4, 3, 4)) == [(4, 1), (8, 1), (13 + held, 1)]
    assert list(ranked_workers(0, 800, 0, 800)) == [(2 * level + 1 + held, 100) for level in range(LEVELS)]
    backlog = [(16 + held, 1), (17 + held, 1)]
    assert list(ranked_workers(0, 5, 4, 3)) == [(0, 1), (4, 1), (10, 1), *backlog]
    assert list(ranked_workers(0, 2, 2, 0)) == [(16 + held, 2)]
    assert list(ranked_workers(1, 5, 3, None)) == [(UNDIVIDED, 2), (LEVEL_RANKS - 1, 2)]
    assert list(ranked_workers(1, 1, 1, 1)) == []


def test_all_workers_beyond_the_first_have_one_rank() -> None:
    for first in range(3):
        for count in range(first, 30):
            for current in (0, 3, 12, 40):
                for need in (None, 0, 1, 7, 20, 50):
                    ranked = list(ranked_workers(first, count, current, need))
                    assert sum(workers for _, workers in ranked) == count - first
                    assert all(0 <= rank < LEVEL_RANKS for rank, _ in ranked)
                    additional = sum(workers for rank, workers in ranked if rank % 2)
                    assert additional == max(0, count - max(first, current))
