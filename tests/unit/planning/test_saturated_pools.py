"""Planners without an engine profile, on a fleet that is overloaded from the first second."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from loadline.core.fleet.fleet import Model
from loadline.core.fleet.pool import Pool
from loadline.core.planning.planner import Planner
from loadline.core.planning.planners.auto import AutoPlanner, AutoPlannerKnobs
from loadline.core.planning.planners.hybrid import HybridKnobs, HybridPlanner
from loadline.core.planning.planners.queueing import QueueingPlanner
from loadline.core.planning.planners.saturation import SaturationKnobs
from loadline.core.planning.planners.sla import SlaKnobs, SlaPlanner
from loadline.core.planning.sizing.knobs import QueueingKnobs
from loadline.core.vocabulary.reasons import ReasonCode, Recommendation
from loadline.core.vocabulary.samples import WorkerSample
from tests.support.fleet_harness import reported
from tests.support.slotted_world import DECODES_PER_S, PREFILLS_PER_S, SLOTS, Queue, SlottedWorld

PLANNERS: dict[str, Callable[[], Planner]] = {
    "queueing": lambda: QueueingPlanner(QueueingKnobs()),
    "sla": lambda: SlaPlanner(SlaKnobs()),
}


@pytest.mark.parametrize("latencies", [True, False], ids=["latencies", "completions"])
@pytest.mark.parametrize("name", PLANNERS)
def test_an_overload_from_the_first_second_is_served_though_the_engine_is_unknown(
    name: str, *, latencies: bool
) -> None:
    world = SlottedWorld(PLANNERS[name](), "aggregated", latencies=latencies)
    count = world.run(64, 20)["aggregated"]
    assert count >= 64 / DECODES_PER_S, "what the arrivals need"
    assert world.run(64, 300)["aggregated"] <= 3 * count
    assert world.queues["aggregated"].waiting == 0.0


def test_the_reason_names_what_the_saturated_workers_serve_and_the_backlog() -> None:
    world = SlottedWorld(QueueingPlanner(QueueingKnobs()), "aggregated")
    while "aggregated" not in world.last.targets:
        world.run(64, 1)
        assert world.second < 15
    [sentence] = world.reasons(ReasonCode.SATURATED_TARGET)
    assert sentence.startswith("aggregated: the pool is full (2 workers) and serves 32.00 of")
    assert "backlog" in sentence
    assert world.reasons(ReasonCode.ENGINE_LEARNING)


@pytest.mark.parametrize("name", ["queueing", "sla"])
def test_each_role_grows_by_its_own_saturation(name: str) -> None:
    world = SlottedWorld(PLANNERS[name](), "prefill", "decode", slots=SLOTS)
    counts = world.run(60, 600)
    assert counts["prefill"] >= 60 / PREFILLS_PER_S
    assert counts["decode"] >= 60 / DECODES_PER_S
    assert world.queues["prefill"].waiting == world.queues["decode"].waiting == 0.0


@pytest.mark.parametrize("name", ["queueing", "sla"])
def test_a_fleet_that_serves_its_requests_is_held_while_the_engine_is_unknown(name: str) -> None:
    world = SlottedWorld(PLANNERS[name](), "aggregated")
    assert world.run(30, 120) == {"aggregated": 2}


@pytest.mark.parametrize("name", ["queueing", "sla"])
def test_a_queue_at_one_of_two_workers_is_no_saturated_pool(name: str) -> None:
    world = SlottedWorld(PLANNERS[name](), "aggregated")
    world.queues["aggregated"].per_worker_s = 1_000.0
    original = world._report

    def report_one(pool: Pool, queue: Queue) -> None:
        original(pool, queue)
        one = WorkerSample(world.second + 10_000, 0, kv_usage_ratio=0.2, waiting_requests=50, running_requests=SLOTS)
        world.world.fleet.ingest(reported(next(iter(pool.workers)), one, pool=pool.name), world.world.now)

    world._report = report_one  # type: ignore[method-assign]
    world.run(30, 60)
    assert not world.reasons(ReasonCode.SATURATED_TARGET)


class FixedPrefill(AutoPlanner):
    """Planner that leaves the prefill pool as it is, such as where no GPU is free for it."""

    def plan(self, model: Model, now: int) -> Recommendation:
        found = super().plan(model, now)
        return replace(found, targets={name: count for name, count in found.targets.items() if name != "prefill"})


@pytest.mark.parametrize("slots", [SLOTS, None], ids=["slots", "no slots"])
@pytest.mark.parametrize(("requests_per_s", "most"), [(30, 3), (60, 5)])
def test_requests_that_wait_for_prefill_do_not_saturate_the_decode_pool(
    slots: int | None, requests_per_s: int, most: int
) -> None:
    """Two prefill workers serve 20 requests per second. The others wait at decode workers whose batches have room."""
    world = SlottedWorld(FixedPrefill(AutoPlannerKnobs()), "prefill", "decode", slots=slots, early=True)
    for _ in range(60):
        assert world.run(requests_per_s, 1)["decode"] <= most
        assert not world.reasons(ReasonCode.BACKLOG_TARGET)[1:], "one backlog, that of the prefill pool"


def test_hybrid_takes_the_growth_that_queueing_recommends_without_a_size() -> None:
    blind = SaturationKnobs(queue_length_threshold=1_000.0)
    world = SlottedWorld(HybridPlanner(HybridKnobs(saturation=blind)), "decode")
    while not world.reasons(ReasonCode.SATURATED_TARGET):
        world.run(64, 1)
        assert world.second < 15
    assert world.reasons(ReasonCode.QUEUEING_LEADS)
    assert world.last.targets["decode"] >= 64 / DECODES_PER_S
