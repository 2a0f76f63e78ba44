"""Planners without an engine profile, on a fleet that is overloaded from the first second."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.planning.planner import Planner
from loadline.core.planning.planners.hybrid import HybridKnobs, HybridPlanner
from loadline.core.planning.planners.queueing import QueueingPlanner
from loadline.core.planning.planners.saturation import SaturationKnobs
from loadline.core.planning.planners.sla import SlaKnobs, SlaPlanner
from loadline.core.planning.sizing.knobs import QueueingKnobs
from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.reasons import ReasonCode, Recommendation
from loadline.core.vocabulary.samples import TrafficSample, WorkerSample
from loadline.core.vocabulary.scalars import Role
from tests.support.fleet_harness import FleetHarness, reported

SLOTS, ITL_MS, OSL = 32, 20.0, 100
DECODES_PER_S = SLOTS * 1_000.0 / (ITL_MS * OSL)
"""Requests per second of a worker whose batch is full: 16."""
PREFILLS_PER_S = 10.0


class Queue(Struct):
    """Requests that wait for the workers of a pool."""

    per_worker_s: float
    waiting: float = 0.0
    served: float = 0.0

    def serve(self, arrivals: float, workers: int) -> None:
        """Serve a second."""
        self.served = min(self.waiting + arrivals, self.per_worker_s * workers)
        self.waiting += arrivals - self.served


class SlottedWorld:
    """Pools of two workers, full by their batch slots at a KV usage of a quarter; targets are applied at once."""

    def __init__(self, planner: Planner, *roles: Role, latencies: bool = True) -> None:
        self.world = FleetHarness([PoolKnobs(role, role, replicas_max=50) for role in roles], 2)
        for pool in self.world.model.pools.values():
            pool.desired = 2
        self.planner, self.latencies = planner, latencies
        self.queues = {
            name: Queue(PREFILLS_PER_S if name == "prefill" else DECODES_PER_S) for name in self.world.model.pools
        }
        self.second = 0
        self.last = Recommendation("", {}, (), {})

    def run(self, requests_per_s: int, seconds: int) -> dict[str, int]:
        """Advance some seconds; return the targets of the pools."""
        for _ in range(seconds):
            self._serve(requests_per_s)
            self.last = self.planner.plan(self.world.refresh(), self.world.now)
            for name, count in self.last.targets.items():
                pool = self.world.pool(name)
                pool.set_desired(count, self.world.now)
                self.world.add_workers(name, count - pool.ready)
        return {name: pool.desired or 0 for name, pool in self.world.model.pools.items()}

    def reasons(self, code: ReasonCode) -> list[str]:
        """Return the sentences of a reason of the last recommendation."""
        return [reason.sentence() for reason in self.last.reasons if reason.code is code]

    def _serve(self, requests_per_s: int) -> None:
        world = self.world
        world.now += 1_000
        self.second += 1
        arrivals = float(requests_per_s)
        for name, queue in self.queues.items():
            pool = world.pool(name)
            queue.serve(arrivals, pool.ready)
            arrivals = queue.served
            self._report(pool, queue)
        completed = round(arrivals)
        latencies: dict[str, Any] = {"itl_ms": ITL_MS, "ttft_ms": 100.0} if self.latencies else {}
        traffic = TrafficSample(
            self.second, 1_000, requests_per_s, completed, isl_tokens=500.0, osl_tokens=OSL, **latencies
        )  # fmt: skip
        world.model.traffic.ingest(TrafficReported("m", "f", 1, traffic), world.now)

    def _report(self, pool: Pool, queue: Queue) -> None:
        busy = min(1.0, queue.served / (queue.per_worker_s * pool.ready))
        running = 4 if pool.name == "prefill" else round(SLOTS * busy)
        one = WorkerSample(
            self.second, 0, kv_usage_ratio=0.25 * busy, kv_blocks_used=round(250 * busy), kv_blocks_total=1_000,
            waiting_requests=round(queue.waiting / pool.ready), running_requests=running, itl_ms=ITL_MS,
        )  # fmt: skip
        decoding: dict[str, Any] = {"decode_batch_requests": running, "iteration_ms": ITL_MS}
        passes: dict[str, Any] = {"active_prefill_tokens": 8_192, "iteration_ms": 200.0}
        for worker in pool.workers:
            figures = passes if pool.name == "prefill" else decoding
            self.world.fleet.ingest(reported(worker, replace(one, **figures), pool=pool.name), self.world.now)


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
    assert sentence.startswith("aggregated: all 2 workers are full and serve 32.00 of")
    assert "backlog" in sentence
    assert world.reasons(ReasonCode.ENGINE_LEARNING)


@pytest.mark.parametrize("name", ["queueing", "sla"])
def test_each_role_grows_by_its_own_saturation(name: str) -> None:
    world = SlottedWorld(PLANNERS[name](), "prefill", "decode")
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


def test_hybrid_takes_the_growth_that_queueing_recommends_without_a_size() -> None:
    blind = SaturationKnobs(queue_length_threshold=1_000.0)
    world = SlottedWorld(HybridPlanner(HybridKnobs(saturation=blind)), "decode")
    while not world.reasons(ReasonCode.SATURATED_TARGET):
        world.run(64, 1)
        assert world.second < 15
    assert world.reasons(ReasonCode.QUEUEING_LEADS)
    assert world.last.targets["decode"] >= 64 / DECODES_PER_S
