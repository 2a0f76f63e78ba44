"""Schedules over the turns of a controller: changes at both ends of a window."""

from itertools import islice

import msgspec
from msgspec.structs import replace

from loadline.cli.status_output import format_statuses
from loadline.core.controller import Controller
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.fleet.schedule_windows import NO_SCHEDULE_MINIMUM, ScheduleKnobs
from loadline.core.planning.guardrails.knobs import GuardrailKnobs
from loadline.core.planning.planners.static import StaticKnobs
from loadline.core.queries.status import status
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.effects import AnyEffect
from loadline.core.vocabulary.events import BusConnectionChanged, RegistryRead, SettingsChanged
from tests.support.controller_world import ControllerWorld
from tests.support.idle_harness import traffic

# Tests begin at 22:13:20.
WINDOW = ScheduleKnobs("20 22 * * *", "30 22 * * *", 5)
BEFORE_S, WITHIN_S = 400, 600
SLOW = GuardrailKnobs(step_up_max=1, cooldown_up_ms=3_600_000, stabilisation_ms=0, cooldown_down_ms=0, warm_up_ms=0)


class ScheduleWorld(ControllerWorld):
    """Controller of two pools, one with a scheduled minimum from 22:20 to 22:30."""

    def __init__(self, window: ScheduleKnobs = WINDOW, replicas_min: int = 0, **knobs: object) -> None:
        super().__init__()
        pools = (
            PoolKnobs("prefill", "prefill", replicas_min=replicas_min),
            PoolKnobs("decode", "decode", replicas_min=replicas_min, schedules=(window,)),
        )
        self.settings = Settings("agent-1", "all", (ModelKnobs("m", pools, guardrails=SLOW, **knobs),))  # type: ignore[arg-type]
        self.controller = Controller(self.settings)
        self.running = 0
        self.handle(BusConnectionChanged(connected=True), RegistryRead([]))

    def run_idle(self, seconds: int) -> list[dict[str, int]]:
        """Report no traffic every second; return the decisions."""
        seen: list[AnyEffect] = []
        for _ in range(seconds):
            self.now += 1_000
            seen += self.handle(traffic(self.now // 1_000))
            seen += self.report()
        return self.decisions(seen)

    def wake(self) -> list[dict[str, int]]:
        """Advance to the next wake of the controller, without reports."""
        wake = self.controller.next_wake()
        assert wake is not None
        self.now = max(wake, self.now)
        return self.decisions(self.handle())


FIXED = StaticKnobs({"prefill": 1, "decode": 1})


def test_a_window_begins_and_ends_on_time_without_reports() -> None:
    world = ScheduleWorld(replicas_min=1, planner="static", planner_knobs={"static": FIXED})
    world.register("prefill", "p1")
    world.register("decode", "d1")
    decided: list[tuple[int, dict[str, int]]] = []
    start = world.now
    while world.now < start + (BEFORE_S + 1) * 1_000:
        decided += [(world.now - start, one) for one in world.wake()]
    assert decided == [(BEFORE_S * 1_000, {"prefill": 1, "decode": 5})], "in one step, without other guardrails"
    world.register("decode", "d2", "d3", "d4", "d5")
    assert world.run_idle(WITHIN_S - 5) == []
    assert world.run_idle(10)[:1] == [{"prefill": 1, "decode": 4}], "the recommended count again, within the step limit"


def test_a_window_prevents_scale_to_zero_and_scales_from_zero() -> None:
    world = ScheduleWorld(scale_to_zero_after_ms=60_000)
    assert world.run_idle(BEFORE_S) == [{"prefill": 1, "decode": 5}], "the other role cannot serve alone"
    world.register("prefill", "p1")
    world.register("decode", "d1", "d2", "d3", "d4", "d5")
    assert world.run_idle(WITHIN_S - 1) == []
    assert world.run_idle(2) == [{"prefill": 0, "decode": 0}]


def test_a_gpu_budget_overrides_a_schedule() -> None:
    world = ScheduleWorld(replicas_min=1, planner="static", planner_knobs={"static": FIXED}, gpu_budget_max=4)
    world.register("prefill", "p1")
    world.register("decode", "d1")
    assert world.run_idle(BEFORE_S + 1) == [{"prefill": 1, "decode": 3}]


def test_the_reason_has_the_scheduled_minimum_and_its_end() -> None:
    world = ScheduleWorld(replicas_min=1, planner="static", planner_knobs={"static": FIXED})
    world.register("prefill", "p1")
    world.register("decode", "d1")
    assert "schedule" not in format_statuses(
        [status(world.settings, world.controller.state, "0", world.now, world.now)]
    )
    world.run_idle(BEFORE_S + 1)
    text = format_statuses([status(world.settings, world.controller.state, "0", world.now, world.now)])
    assert "schedule: decode at least 5 until 2023-11-14T22:30:00+00:00" in text
    [decided] = islice(world.controller.state.explanations.of_model("m"), 1)
    assert "decode: 1 raised to 5: the minimum of a schedule that ends in 10 min" in [
        r.sentence() for r in decided.limits
    ]


def test_a_controller_restored_within_a_window_applies_it() -> None:
    world = ScheduleWorld(replicas_min=1, planner="static", planner_knobs={"static": FIXED})
    world.register("prefill", "p1")
    world.register("decode", "d1")
    world.run_idle(BEFORE_S + 1)
    restored = Controller(world.settings)
    restored.restore(world.controller.snapshot())
    assert restored.next_wake() == world.controller.next_wake()
    world.now += 700_000
    assert restored.handle([], world.now) == world.controller.handle([], world.now)
    assert restored.snapshot() == world.controller.snapshot()


def test_a_removed_schedule_has_no_minimum() -> None:
    world = ScheduleWorld(replicas_min=1, planner="static", planner_knobs={"static": FIXED})
    world.register("prefill", "p1")
    world.register("decode", "d1")
    world.run_idle(BEFORE_S + 1)
    world.register("decode", "d2", "d3", "d4", "d5")
    (model,) = world.settings.models
    without = replace(model, pools=tuple(replace(pool, schedules=()) for pool in model.pools))
    world.settings = replace(world.settings, models=(without,))
    world.handle(SettingsChanged(msgspec.Raw(msgspec.json.encode(world.settings))))
    assert world.controller.state.fleet.models["m"].pools["decode"].schedule_minimum == NO_SCHEDULE_MINIMUM
    assert world.run_idle(10)[:1] == [{"prefill": 1, "decode": 4}]
    world.settings = replace(world.settings, models=(model,))
    again = world.handle(SettingsChanged(msgspec.Raw(msgspec.json.encode(world.settings))))
    assert world.decisions(again) == [{"prefill": 1, "decode": 5}], "and at once when it is configured again"
