"""What auto learns of prefill workers while requests wait for decode workers, which makes their TTFT late too."""

import pytest

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.planners.auto import AutoPlanner, AutoPlannerKnobs
from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.samples import TrafficSample, WorkerSample
from tests.support.fleet_harness import FleetHarness, reported

OSL = 500
ITL_MS = 20.0


class TwoPools:
    """A prefill and a decode pool of two workers each, with 20 requests of 1,000 tokens in a second."""

    def __init__(self, osl_tokens: float = OSL) -> None:
        self.osl_tokens = osl_tokens
        pools = [PoolKnobs("p", "prefill", replicas_max=32), PoolKnobs("d", "decode", replicas_max=32)]
        self.fleet, self.planner = FleetHarness(pools, 2), AutoPlanner(AutoPlannerKnobs(start_up_ms=30_000))
        self.fleet.model.objectives = ObjectiveKnobs(ttft_ms=500, itl_ms=50)
        self.sequence = 0

    def run(self, seconds: int, *, ttft_ms: float, waiting: int) -> None:
        """Let seconds pass in which requests complete with a mean TTFT, and some wait at each decode worker."""
        fleet = self.fleet
        for _ in range(seconds):
            fleet.now += 1_000
            self.sequence += 1
            for name in ("p", "d"):
                queue = waiting if name == "d" else 0
                one = WorkerSample(
                    self.sequence, 0, kv_usage_ratio=0.3, waiting_requests=queue, running_requests=40 if queue else 20
                )
                for worker in fleet.pool(name).workers:
                    fleet.fleet.ingest(reported(worker, one, pool=name), fleet.now)
            sample = TrafficSample(
                self.sequence,
                1_000,
                20,
                20,
                isl_tokens=1_000.0,
                osl_tokens=self.osl_tokens,
                ttft_ms=ttft_ms,
                itl_ms=ITL_MS,
            )
            fleet.model.traffic.ingest(TrafficReported("m", "f", 1, sample), fleet.now)
            self.planner.plan(fleet.refresh(), fleet.now)

    @property
    def serves(self) -> float:
        """Requests/s that a prefill worker is taken to serve."""
        return self.planner._serves(self.fleet.model, self.fleet.pool("p"))


@pytest.mark.parametrize("after_s", [0, 9])
def test_a_wait_for_decode_workers_does_not_slow_down_prefill_workers(after_s: int) -> None:
    """The TTFT of the last that waited is reported when they complete, 10 s after the wait has ended."""
    world = TwoPools()
    world.run(120, ttft_ms=60.0, waiting=0)
    before = world.serves
    world.run(30, ttft_ms=9_000.0, waiting=40)
    world.run(after_s, ttft_ms=9_000.0, waiting=0)
    world.run(60, ttft_ms=60.0, waiting=0)
    assert world.serves == pytest.approx(before, rel=0.05)


def test_late_requests_that_waited_for_no_decode_worker_count() -> None:
    world = TwoPools()
    world.run(120, ttft_ms=60.0, waiting=0)
    before = world.serves
    world.run(30, ttft_ms=9_000.0, waiting=0)
    assert world.serves < 0.7 * before


def test_a_wait_for_the_next_iteration_of_decode_workers_hides_nothing() -> None:
    """Of outputs of 10 tokens, 2 always wait for 40 that take 200 ms: for 10 ms, by Little's law."""
    world = TwoPools(osl_tokens=10.0)
    world.run(120, ttft_ms=60.0, waiting=2)
    assert world.serves > 0.0
    before = world.serves
    world.run(30, ttft_ms=9_000.0, waiting=2)
    assert world.serves < 0.7 * before
