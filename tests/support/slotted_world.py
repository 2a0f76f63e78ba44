"""Fleet whose workers are limited by their batch slots, or by the prompts that they compute."""

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.planning.planner import Planner
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

    def __init__(
        self, planner: Planner, *roles: Role, latencies: bool = True, slots: int | None = None, early: bool = False
    ) -> None:
        self.slots = slots
        self.world = FleetHarness([PoolKnobs(role, role, replicas_max=50) for role in roles], 2)
        for pool in self.world.model.pools.values():
            pool.decided = 2
            self._set_slots(pool)
        self.planner, self.latencies, self.early = planner, latencies, early
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
                pool.set_decided(count, self.world.now)
                self.world.add_workers(name, count - pool.ready)
                self._set_slots(pool)
                while pool.ready > count:
                    self.world.remove_newest(name)
        return {name: pool.decided or 0 for name, pool in self.world.model.pools.items()}

    def reasons(self, code: ReasonCode) -> list[str]:
        """Return the sentences of a reason of the last recommendation."""
        return [reason.sentence() for reason in self.last.reasons if reason.code is code]

    def _set_slots(self, pool: Pool) -> None:
        for worker in pool.workers.values():
            worker.record = replace(worker.record, max_batch_requests=self.slots)

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
        # With some engines, requests wait at decode workers too until their prompts are computed.
        waiting = queue.waiting + (self.queues["prefill"].waiting if self.early and pool.name == "decode" else 0.0)
        busy = min(1.0, queue.served / (queue.per_worker_s * pool.ready))
        running = 4 if pool.name == "prefill" else round(SLOTS * busy)
        one = WorkerSample(
            self.second, 0, kv_usage_ratio=0.25 * busy, kv_blocks_used=round(250 * busy), kv_blocks_total=1_000,
            waiting_requests=round(waiting / pool.ready), running_requests=running, itl_ms=ITL_MS,
        )  # fmt: skip
        decoding: dict[str, Any] = {"decode_batch_requests": running, "iteration_ms": ITL_MS}
        passes: dict[str, Any] = {"active_prefill_tokens": 8_192, "iteration_ms": 200.0}
        for worker in pool.workers:
            figures = passes if pool.name == "prefill" else decoding
            self.world.fleet.ingest(reported(worker, replace(one, **figures), pool=pool.name), self.world.now)
