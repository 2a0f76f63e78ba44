"""Planner auto with a decode pool whose requests take a minute, so that its batches are stocks."""

from statistics import fmean

import pytest

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.samples import TrafficSample, WorkerSample
from tests.support.fleet_harness import FleetHarness, reported
from tests.unit.planning.test_auto_planner import AutoWorld

OSL = 2_000
BATCH_MAX = 200
SILENT_MS = 5_000


class LongOutputs(AutoWorld):
    """Decode workers with an ITL of 15 ms and half a millisecond for each request of the batch, for one of 50 ms."""

    def __init__(self, workers: int, *, reports_running: bool = True) -> None:
        super().__init__(workers)
        self.fleet = FleetHarness([PoolKnobs("engine", "decode", replicas_max=32)], workers)
        self.fleet.model.objectives = ObjectiveKnobs(ttft_ms=500, itl_ms=50)
        self.pool = self.fleet.pool("engine")
        self.pool.decided = workers
        self.reports_running, self.silent = reports_running, set[str]()
        self.present, self.itl_ms = 0.0, list[float]()

    def _second(self, requests_per_s: float, *, frontend: bool) -> None:  # noqa: ARG002 - frontends always report
        world, arrivals = self.fleet, self._begin_second(requests_per_s)
        self.present += arrivals
        ready = max(1, self.pool.ready)
        batch = min(BATCH_MAX, self.present / ready)
        self.itl_ms.append(15.0 + 0.5 * batch)
        completed = min(self.present, batch * ready * 1_000.0 / (OSL * self.itl_ms[-1]))
        self.present -= completed
        for worker in set(self.pool.workers) - self.silent:
            one = WorkerSample(
                self.sequence, 0, kv_usage_ratio=0.004 * batch, waiting_requests=round(self.present / ready - batch),
                running_requests=round(batch) if self.reports_running else None,
            )  # fmt: skip
            world.fleet.ingest(reported(worker, one, pool="engine"), world.now)
        traffic = TrafficSample(
            self.sequence, 1_000, arrivals, round(completed), isl_tokens=1_000.0, osl_tokens=float(OSL), ttft_ms=60.0,
            itl_ms=self.reported_itl_ms(),
        )  # fmt: skip
        world.model.traffic.ingest(TrafficReported("m", "f", 1, traffic), world.now)
        self.pool.expire_silent(world.now, SILENT_MS)
        self._end_second()

    def reported_itl_ms(self) -> float:
        """Return the ITL of the requests that complete now."""
        return self.itl_ms[-1]

    def late_s(self, since: int) -> int:
        """Return the seconds with a late ITL since a second."""
        return sum(one > 50.0 for one in self.itl_ms[since:])


class LifetimeItl(LongOutputs):
    """The same where the ITL of a request is the mean over its life, as engines have it."""

    def reported_itl_ms(self) -> float:
        """Return the mean ITL since the requests that complete now began."""
        seconds = max(1, round(OSL * self.itl_ms[-1] / 1_000.0))
        return fmean(self.itl_ms[-seconds:])


def test_the_itl_of_a_load_that_falls_is_not_that_of_the_load_left() -> None:
    """Otherwise 80 requests seem to have an ITL of 40 ms, so that more would seem to make no difference."""
    world = LifetimeItl(6)
    world.run(6.0, 400)
    before = world.planner._serves(world.fleet.model, world.pool)
    for tenths in range(60, 10, -1):
        world.run(0.1 * tenths, 4)
    assert world.planner._serves(world.fleet.model, world.pool) == pytest.approx(before, rel=0.15)


@pytest.mark.parametrize(("workers", "before_per_s", "after_per_s"), [(1, 0.2, 6.0), (2, 0.5, 16.0), (4, 2.0, 10.0)])
def test_an_overload_ends_once_workers_are_ready_and_does_not_return(
    workers: int, before_per_s: float, after_per_s: float
) -> None:
    """The ITL of the overload must not make the present requests seem to take minutes more."""
    world = LongOutputs(workers)
    world.run(before_per_s, 400)
    world.run(after_per_s, 600)
    assert world.late_s(400) <= 90
    assert world.late_s(500) == 0


@pytest.mark.parametrize("reports_running", [True, False])
def test_a_steady_load_keeps_its_workers_whether_or_not_engines_report_running_requests(
    reports_running: bool,  # noqa: FBT001
) -> None:
    world = LongOutputs(14, reports_running=reports_running)
    world.run(8.0, 900)
    assert world.late_s(0) == 0
    assert max(world.itl_ms[300:]) > 20.0, "the load matters"


def test_silent_workers_may_have_requests() -> None:
    world = LongOutputs(14)
    world.run(8.0, 400)
    count = world.target
    world.silent = set(sorted(world.pool.workers)[:2])
    world.run(8.0, 300)
    assert world.target >= count
    assert world.late_s(400) == 0


def test_a_burst_of_some_seconds_adds_fewer_workers_than_its_rate_would() -> None:
    world = LongOutputs(4)
    world.run(1.0, 400)
    quiet = world.target
    world.run(12.0, 3)
    world.run(1.0, 200)
    assert quiet <= 4
    assert max(world.counts[400:]) <= 8, "12 requests/s need 20"
    assert world.late_s(400) == 0
