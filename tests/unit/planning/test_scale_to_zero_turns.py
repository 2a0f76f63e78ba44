"""Scale to zero and from zero over the turns of a controller."""

import pytest

from loadline.cli.status_output import format_statuses
from loadline.core.controller import Controller
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.guardrails.knobs import GuardrailKnobs
from loadline.core.queries.status import status
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.effects import AnyEffect
from loadline.core.vocabulary.events import BusConnectionChanged, RegistryRead
from tests.support.controller_world import ControllerWorld
from tests.support.idle_harness import traffic

AFTER_MS = 30_000
GUARD = GuardrailKnobs(stabilisation_ms=300_000, cooldown_up_ms=600_000, cooldown_down_ms=600_000, warm_up_ms=0)


class ScaleToZeroWorld(ControllerWorld):
    """Controller of a model with scale to zero and slow guardrails."""

    def __init__(self, planner: str, after_ms: int = AFTER_MS) -> None:
        super().__init__()
        pools = (PoolKnobs("prefill", "prefill", replicas_min=0), PoolKnobs("decode", "decode", replicas_min=0))
        model = ModelKnobs("m", pools, planner=planner, guardrails=GUARD, scale_to_zero_after_ms=after_ms)
        self.settings = Settings("agent-1", "all", (model,))
        self.controller = Controller(self.settings)
        self.handle(BusConnectionChanged(connected=True), RegistryRead([]))

    def run_reporting(self, seconds: int = 1, **counts: int) -> list[dict[str, int]]:
        """Report every second from frontend and workers; return the decisions."""
        seen: list[AnyEffect] = []
        self.running = counts.get("in_flight", 0)
        for _ in range(seconds):
            self.now += 1_000
            seen += self.handle(traffic(self.now // 1_000, "f", **counts))
            seen += self.report()
        return self.decisions(seen)


@pytest.mark.parametrize("planner", ["threshold", "throughput", "load", "sla", "hpa", "kpa"])
def test_a_model_scales_to_zero_in_one_step_and_from_zero_in_the_turn_of_a_request(planner: str) -> None:
    world = ScaleToZeroWorld(planner)
    world.register("prefill", "p1", "p2")
    world.register("decode", "d1", "d2")
    world.kv = 0.6
    world.run_reporting(10, in_flight=1)
    decided = world.run_reporting(AFTER_MS // 1_000 + 1)
    assert decided[-1] == {"prefill": 0, "decode": 0}
    world.workers.clear()
    assert world.run_reporting(60) == []
    counts = format_statuses([status(world.settings, world.controller.state, "0", world.now, world.now)])
    assert "scaled to zero: the first request that a frontend reports starts workers" in counts
    world.now += 1_000
    emitted = world.handle(traffic(world.now // 1_000, queued=1))
    assert world.decisions(emitted) == [{"prefill": 1, "decode": 1}]


def test_a_model_scales_to_zero_on_time_without_a_report() -> None:
    world = ScaleToZeroWorld("hpa")
    world.register("prefill", "p1")
    world.register("decode", "d1")
    world.run_reporting(AFTER_MS // 1_000)
    wake = world.controller.next_wake()
    assert wake is not None
    assert wake <= world.now + 1_000, "hpa evaluates every 15 s"


def test_a_new_model_without_scale_to_zero_starts_its_first_workers() -> None:
    world = ScaleToZeroWorld("threshold", after_ms=0)
    assert world.run_reporting(10)[:1] == [{"prefill": 1, "decode": 1}]
