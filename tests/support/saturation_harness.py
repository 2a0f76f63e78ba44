"""Pools of workers with a saturation planner."""

import math
import random
from collections.abc import Iterator, Sequence

from msgspec import Struct

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.planners.saturation import SaturationKnobs, SaturationPlanner
from loadline.core.vocabulary.reasons import Recommendation
from loadline.core.vocabulary.samples import WorkerSample
from tests.support.fleet_harness import FleetHarness, reported

POOL = PoolKnobs("a", "aggregated", replicas_max=100, start_deadline_ms=60_000)
RUNNING = 30
STEP_MS = 1_000


class ReportedLoad(Struct, frozen=True):
    """Load that a worker reports."""

    kv: float | None = 0.0
    waiting: int | None = 0
    running: int = RUNNING


class SaturationHarness(FleetHarness):
    """Pools of workers with a planner; time advances by a second per evaluation."""

    def __init__(self, *pools: PoolKnobs, workers: int = 2, **knobs: object) -> None:
        super().__init__(pools or (POOL,), workers)
        self.planner = SaturationPlanner(SaturationKnobs(**knobs))  # type: ignore[arg-type]
        for pool in self.model.pools.values():
            pool.set_decided(workers, self.now)

    def report_each(self, pool: str, *workers: ReportedLoad | None) -> None:
        """Report the given load of each worker; None: no report."""
        self.sequence += 1
        for name, load in zip(self.pool(pool).workers, workers, strict=True):
            if load is not None:
                sample = WorkerSample(
                    self.sequence,
                    0,
                    kv_usage_ratio=load.kv,
                    waiting_requests=load.waiting,
                    running_requests=load.running,
                )
                self.fleet.ingest(reported(name, sample, pool=pool), self.now)

    def plan(self) -> Recommendation:
        """Return the planner's current recommendation."""
        return self.planner.plan(self.refresh(), self.now)

    def run_loads(self, seconds: int, **workers: Sequence[ReportedLoad | None]) -> Recommendation:
        """Repeat the loads of each pool's workers for some seconds; return the last recommendation."""
        recommendation = Recommendation("", {}, (), {})
        for _ in range(seconds):
            self.now += STEP_MS
            for pool, load in workers.items():
                self.report_each(pool, *load)
            recommendation = self.plan()
        return recommendation

    def apply_targets(self, recommendation: Recommendation) -> int:
        """Apply the targets at once; return the number of changed pools."""
        for name, count in recommendation.targets.items():
            pool = self.pool(name)
            pool.set_decided(count, self.now)
            while pool.ready > count:
                self.remove_newest(name)
            self.add_workers(name, count - pool.ready)
        return len(recommendation.targets)


def noisy(mean: float, deviation: float, steps: int, *, memory_s: float = 60.0, seed: int = 0) -> Iterator[float]:
    """Yield a load as an AR(1) process with relative standard deviation ``deviation`` and correlation time
    ``memory_s``.
    """
    rng, correlation, offset = random.Random(seed), math.exp(-STEP_MS / 1_000 / memory_s), 0.0
    for _ in range(steps):
        yield mean * (1.0 + offset)
        offset = correlation * offset + deviation * math.sqrt(1.0 - correlation * correlation) * rng.gauss(0.0, 1.0)
