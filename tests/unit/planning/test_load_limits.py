"""Load planner under ramps, for prefill, and with new workers."""

import pytest

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.planners.load import LoadPlanner
from loadline.core.planning.sizing.load.stepper import LoadKnobs
from loadline.core.vocabulary.reasons import ReasonCode, Recommendation
from loadline.core.vocabulary.samples import WorkerSample
from tests.support.fleet_harness import FleetHarness, reported
from tests.unit.planning.test_load_planner import LoadPlannerHarness, codes


class PrefillHarness:
    """Prefill pool whose workers compute prompts of 1,000 tokens in 100 ms each."""

    def __init__(self, workers: int) -> None:
        self.world = FleetHarness([PoolKnobs("p", "prefill", replicas_max=20)], workers)
        self.pool = self.world.pool("p")
        self.pool.decided = workers
        self.planner = LoadPlanner(LoadKnobs())
        self.queue = 0

    def run(
        self, computing: list[int], seconds: int = 300, *, queue_tokens: int = 0, first_tokens: int = 1_000
    ) -> Recommendation:
        """Run with these busy seconds in ten and this growth of the queue in tokens/s, per worker."""
        for second in range(seconds):
            self.world.now += 1_000
            self.world.sequence += 1
            self.queue += queue_tokens
            prompts = [first_tokens, *([1_000] * (len(computing) - 1))]
            for worker, busy, prompt in zip(self.pool.workers, computing, prompts, strict=True):
                tokens = self.queue + (prompt if second % 10 < busy else 0)
                # The TTFT is reported occasionally, after other prompts.
                ttft_ms = 0.1 * (tokens + 1_000) + (second % 7) / 100
                sample = WorkerSample(
                    self.world.sequence, 0, active_prefill_tokens=tokens, ttft_ms=ttft_ms, isl_tokens=1_000.0
                )
                self.world.fleet.ingest(reported(worker, sample, pool="p"), self.world.now)
            recommendation = self.planner.plan(self.world.refresh(), self.world.now)
        return recommendation


def test_prefill_shrinks_by_busy_workers_instead_of_queues() -> None:
    busy = PrefillHarness(4).run([7, 7, 7, 7])
    assert (busy.targets, codes(busy)) == ({}, [ReasonCode.CONSOLIDATION_REFUSED]), (
        "3.5 busy workers at 80 % utilisation need more than three"
    )
    assert PrefillHarness(4).run([3, 3, 3, 3]).targets == {"p": 3}


def test_one_worker_with_a_long_prompt_does_not_prevent_a_shrink() -> None:
    assert PrefillHarness(6).run([10, 1, 1, 1, 1, 1], first_tokens=12_000).targets == {"p": 5}


def test_prefill_grows_by_the_growth_of_the_queues() -> None:
    harness = PrefillHarness(4)
    harness.run([9, 9, 9, 9])
    assert PrefillHarness(4).run([9, 9, 9, 9], seconds=330).targets == {}
    # Each worker receives 10,000 tokens/s more than it computes. By the means over 5 s and over a minute that is work
    # for 1.2 workers, in addition to 3.8 busy ones.
    assert harness.run([10, 10, 10, 10], seconds=30, queue_tokens=10_000).targets == {"p": 6}


def test_a_pool_grows_as_its_load_needs_up_to_twice_its_size() -> None:
    harness = LoadPlannerHarness()
    harness.learn()
    assert harness.run(1_490, 1_500, 1_510, seconds=600).targets == {"d": 6}, "4,500 blocks at 800 per worker"
    assert harness.run(4_900, 5_000, 5_100, seconds=600).targets == {"d": 6}


def test_a_rising_load_scales_up_before_it_exceeds_the_limit() -> None:
    ramp, flat = LoadPlannerHarness(), LoadPlannerHarness()
    for harness in (ramp, flat):
        harness.learn()
        harness.run(300, 310, 320, seconds=60)
    for step in range(46):
        recommendation = ramp.run(*(300 + 10 * step + number for number in range(3)), seconds=1)
    assert recommendation.targets == {"d": 4}, "750 blocks, which grow by 10 per second"
    assert flat.run(750, 751, 752, seconds=600).targets == {}


def test_latencies_of_new_workers_are_excluded() -> None:
    harness = LoadPlannerHarness()
    harness.learn()
    harness.world.add_workers("d", 1)
    before = harness.planner
    for _ in range(25):
        harness.world.now += 1_000
        harness.world.sequence += 1
        *old, new = harness.pool.workers
        for number, worker in enumerate(old):
            used = 400 + 10 * number
            sample = WorkerSample(
                harness.world.sequence, 0, kv_blocks_used=used, running_requests=1, itl_ms=10 + used / 20
            )
            harness.world.fleet.ingest(reported(worker, sample, pool="d"), harness.world.now)
        slow = WorkerSample(harness.world.sequence, 0, kv_blocks_used=50, running_requests=1, itl_ms=400.0)
        harness.world.fleet.ingest(reported(new, slow, pool="d"), harness.world.now)
        harness.planner.plan(harness.world.refresh(), harness.world.now)
    assert isinstance(before, LoadPlanner)
    assert max(before.stepper.loads["d"].decode.latencies_ms) < 100.0
    assert before.stepper.loads["d"].decode.load_at(50.0) == pytest.approx(800.0)


def test_either_load_grows_an_aggregated_pool_and_only_both_shrink_it() -> None:
    world = FleetHarness([PoolKnobs("a", "aggregated", replicas_max=20)], 3)
    planner = LoadPlanner(LoadKnobs())

    def run(prompt_tokens: int, blocks: int) -> Recommendation:
        for second in range(600):
            world.now += 1_000
            world.sequence += 1
            for number, worker in enumerate(world.pool("a").workers):
                tokens = prompt_tokens + 10 * ((second + number) % 10) if prompt_tokens else 0
                sample = WorkerSample(
                    world.sequence,
                    0,
                    active_prefill_tokens=tokens,
                    ttft_ms=0.1 * (tokens + 1_000) + (second / 1e6 if tokens else 0.0),
                    isl_tokens=1_000.0,
                    kv_blocks_used=blocks + number,
                    running_requests=1,
                    itl_ms=10.0 + (blocks + number) / 20,
                )
                world.fleet.ingest(reported(worker, sample, pool="a"), world.now)
            recommendation = planner.plan(world.refresh(), world.now)
        return recommendation

    world.pool("a").decided = 3
    assert run(500, 900).targets == {"a": 4}
    assert run(500, 100).targets == {}, "all workers are always busy"
    assert run(0, 100).targets == {"a": 2}
