"""Scale to zero and from zero under shortage of GPUs."""

import pytest

from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.fleet.fleet import FleetKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.allocation.supplies import AllocationKnobs
from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.samples import TrafficSample
from tests.support.multi_model_world import GpuLimits, MultiModelWorld

AFTER_MS = 30_000
SECOND_MS = 1_000
GPUS = 4
BY_TYPE = GpuLimits(
    AllocationKnobs({"h100": GPUS}, solver="greedy"), (AcceleratorKnobs("h100"),), priorities={"night": 1, "day": 50}
)
DAY_FIRST = GpuLimits(BY_TYPE.allocation, BY_TYPE.accelerators, priorities={"night": 50, "day": 1})
BUDGET = FleetKnobs(gpu_budget_max=GPUS)


def pool(replicas_min: int) -> PoolKnobs:
    return PoolKnobs("main", "aggregated", replicas_min=replicas_min, accelerator="h100")


class LimitedScaleToZero(MultiModelWorld):
    """Controller of a model at zero and one that has all GPUs."""

    def __init__(self, fleet: FleetKnobs, limited: GpuLimits) -> None:
        self.sequence = 0
        super().__init__(
            {"night": [(pool(0), 0)], "day": [(pool(1), GPUS)]},
            fleet,
            limited=limited,
            scale_to_zero_after_ms=AFTER_MS,
        )

    def run_reporting(self, seconds: int, **counts: int) -> None:
        """Report every second from the frontend of the model at zero."""
        for _ in range(seconds):
            self.sequence += 1
            sample = TrafficSample(self.sequence, SECOND_MS, 0, **counts)  # type: ignore[arg-type]
            self._schedule_at(self.now, TrafficReported("night", "f", 1, sample))
            self.run(SECOND_MS)

    def counts(self) -> dict[str, int]:
        return {name: pools["main"] for name, pools in self.effective_targets().items()}


def test_a_higher_priority_scales_from_zero_although_others_have_all_gpus() -> None:
    models = LimitedScaleToZero(FleetKnobs(), BY_TYPE)
    models.run_reporting(5)
    assert models.counts() == {"night": 0, "day": GPUS}
    models.run_reporting(20, queued=1)
    assert models.counts() == {"night": 1, "day": GPUS - 1}
    models.propose("day", main=GPUS)
    models.running = 0
    models.run_reporting(2 * AFTER_MS // SECOND_MS)
    assert models.counts() == {"night": 0, "day": GPUS}, "the model gets its unused GPUs back"


@pytest.mark.parametrize(("fleet", "limited"), [(BUDGET, GpuLimits()), (FleetKnobs(), BY_TYPE)], ids=["budget", "type"])
def test_scale_from_zero_gets_the_first_free_gpus(fleet: FleetKnobs, limited: GpuLimits) -> None:
    models = LimitedScaleToZero(fleet, limited)
    workers_by_turn: list[int] = []
    models.after_turn = lambda: workers_by_turn.append(len(models.workers))
    models.run_reporting(10, queued=1)
    models.propose("day", main=GPUS - 1)
    models.run_reporting(20, queued=1)
    assert models.counts() == {"night": 1, "day": GPUS - 1}
    assert max(workers_by_turn) <= GPUS


@pytest.mark.parametrize(
    ("fleet", "limited", "remedy"),
    [
        (FleetKnobs(), DAY_FIRST, "h100: add GPUs and raise allocation.capacity, or reduce other models"),
        (
            BUDGET,
            GpuLimits(),
            "fleet.gpu_budget_max is 4: raise fleet.gpu_budget_max, or wait for other models to scale down",
        ),
    ],
)
def test_a_failed_scale_from_zero_is_reported_as_shortage(fleet: FleetKnobs, limited: GpuLimits, remedy: str) -> None:
    models = LimitedScaleToZero(fleet, limited)
    seen: set[tuple[bool, str]] = set()

    def check() -> None:
        found = models.controller.state.fleet.models["night"].conditions
        seen.update((one.status, one.reason) for one in found if one.name == "OptimizationReady")

    models.propose("day", main=GPUS)
    models.run_reporting(10, queued=9)
    models.after_turn = check
    models.run_reporting(60, queued=9)
    assert models.counts() == {"night": 0, "day": GPUS}
    assert seen == {(False, "ResourceConstrained")}
    ready = models.controller.state.fleet.models["night"].conditions[1]
    assert ready.message.endswith(remedy)


def test_a_decision_below_the_demand_has_a_reason_at_once() -> None:
    models = LimitedScaleToZero(FleetKnobs(), BY_TYPE)
    seen: list[str] = []
    models.propose("day", main=1)
    models.run(20 * SECOND_MS)
    models.propose("day", main=GPUS + 2)
    models.after_turn = lambda: seen.append(models.controller.state.fleet.models["day"].conditions[1].reason)
    models.run(5 * SECOND_MS)
    assert models.counts()["day"] == GPUS
    assert set(seen) == {"ResourceConstrained"}, "the reason does not change while the count changes step by step"
