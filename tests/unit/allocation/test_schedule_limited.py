"""Scheduled minimums under shortage of GPUs."""

import pytest

from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.fleet.fleet import FleetKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.fleet.schedule_windows import ScheduleKnobs
from loadline.core.planning.allocation.gpu_ledger import gpu_ledger_of
from loadline.core.planning.allocation.supplies import AllocationKnobs
from loadline.core.state.agent_state import limited_supplies
from loadline.core.vocabulary.reasons import ReasonCode
from tests.support.config_texts import config_warnings, model
from tests.support.holds import hold_of
from tests.support.multi_model_world import GpuLimits, MultiModelWorld

MINUTE_MS = 60_000
GPUS = 10
SHORT = GpuLimits(AllocationKnobs({"h100": GPUS}, solver="greedy"), (AcceleratorKnobs("h100"),))
ALWAYS = ScheduleKnobs("0 0 * * *", "59 23 * * *", 8)


@pytest.mark.parametrize(("least", "counts"), [(1, {"day": 8, "night": 2}), (5, {"day": 5, "night": 5})])
def test_a_scheduled_minimum_waits_for_gpus_within_the_capacity(least: int, counts: dict[str, int]) -> None:
    day = PoolKnobs("main", "aggregated", 1, 1, 20, accelerator="h100", schedules=(ALWAYS,))
    night = PoolKnobs("main", "aggregated", 1, least, 20, accelerator="h100")
    models = MultiModelWorld({"day": [(day, 1)], "night": [(night, 6)]}, FleetKnobs(), limited=SHORT)
    occupied: list[int] = []

    def check() -> None:
        state = models.controller.state
        used = gpu_ledger_of(
            state.fleet, state.ledger.pending(), limited_supplies(models.controller.settings, state.fleet), models.now
        )
        assert used is not None
        occupied.append(GPUS - used.free("h100"))

    models.after_turn = check
    models.propose("night", main=6)
    models.run(3 * MINUTE_MS)
    assert {name: pools["main"] for name, pools in models.effective_targets().items()} == counts
    assert max(occupied) <= GPUS
    waits = ReasonCode.GPUS_OCCUPIED in {one.code for one in hold_of(models.controller.state, "day").limits}
    assert waits is (least == 5), "the wait has a reason"


BASE = """
[[accelerators]]
name = "h100"
"""
DAY = 'name = "p"\nrole = "aggregated"\naccelerator = "h100"\nreplicas_max = 20\n'
SCHEDULES = 'schedules = [{start = "0 8 * * *", end = "0 18 * * *", replicas_min = 8}]'
BOTH = model('namespace = "team"', DAY + SCHEDULES) + model('namespace = "team"', DAY + "replicas_min = 5").replace(
    '"m"', '"other"'
)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("[allocation.capacity]\nh100 = {}", "allocation.capacity.h100"),
        ('[[namespaces]]\nname = "team"\ngpu_quota = {{ h100 = {} }}', "namespaces[0].gpu_quota.h100"),
        ("[fleet]\ngpu_budget_max = {}", "fleet.gpu_budget_max"),
    ],
)
def test_scheduled_minimums_above_a_limit_are_warned_of(text: str, place: str) -> None:
    team = "" if "namespaces" in text else '[[namespaces]]\nname = "team"\n'
    base = BOTH + BASE + team
    (warning,) = config_warnings(text.format(12), base=base)
    assert warning.startswith(f"{place}: 12 GPUs are fewer than the 13")
    assert "schedules of models[0].pools[0] overlap" in warning
    assert warning.endswith("Raise it, or lower a replicas_min.")
    assert config_warnings(text.format(13), base=base) == []
