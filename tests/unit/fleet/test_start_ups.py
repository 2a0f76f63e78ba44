"""Startup times of pools, and the expected time of pending workers."""

from msgspec.structs import replace

from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.vocabulary.reasons import ReasonCode
from tests.support.fleet_harness import FleetHarness
from tests.support.throughput_harness import KNOBS, ThroughputHarness, codes

DEFAULT_MS = 60_000
DEADLINE_MS = 600_000


class Growing:
    """A pool of four workers that scales up."""

    def __init__(self) -> None:
        self.world = FleetHarness([PoolKnobs("d", "decode", start_deadline_ms=DEADLINE_MS, replicas_max=50)], 4)
        self.pool: Pool = self.world.pool("d")
        self.pool.reset_decided(4, self.world.now)

    def scale_to(self, replicas: int) -> None:
        self.world.now += 1_000
        self.pool.set_decided(replicas, self.world.now)

    def add_workers(self, count: int, after_ms: int) -> None:
        self.world.now += after_ms
        self.world.add_workers("d", count)


def test_the_startup_time_is_the_longest_of_the_last_eight() -> None:
    growing = Growing()
    assert growing.pool.start_up_ms(DEFAULT_MS) == DEFAULT_MS
    for number, took_ms in enumerate((40_000, 90_000, 20_000, *[30_000] * 6)):
        growing.scale_to(5 + number)
        growing.add_workers(1, took_ms)
        expected_ms = 40_000 if number == 0 else 90_000
        assert growing.pool.start_up_ms(DEFAULT_MS) == expected_ms
    growing.scale_to(20)
    growing.add_workers(6, 30_000)
    assert growing.pool.start_up_ms(DEFAULT_MS) == 90_000, "one worker is still missing"
    growing.add_workers(1, 1_000)
    assert growing.pool.start_up_ms(DEFAULT_MS) == 31_000, "only the last eight count"


def test_a_startup_time_is_at_most_the_deadline() -> None:
    growing = Growing()
    growing.scale_to(6)
    growing.add_workers(1, 60_000)
    growing.add_workers(1, 6 * 3_600_000)
    assert growing.pool.start_up_ms(DEFAULT_MS) == DEADLINE_MS


def test_a_cancelled_scale_up_measures_no_startup_time() -> None:
    growing = Growing()
    growing.scale_to(10)
    growing.scale_to(4)
    assert growing.pool.start_ups_ms == [], "cancelled by a lower target"
    growing.scale_to(10)
    growing.world.now += 5_000
    growing.pool.reset_decided(4, growing.world.now)
    assert growing.pool.start_ups_ms == [], "cancelled by a reset"
    growing.scale_to(10)
    growing.scale_to(6)
    growing.add_workers(2, 3_000)
    assert growing.pool.start_ups_ms == [], "unknown which request the two workers answer"


def test_pending_workers_are_expected_after_the_startup_time() -> None:
    growing = Growing()
    growing.scale_to(5)
    assert growing.pool.status(growing.world.now).expected_ready_at_ms is None, "no startup time has been measured"
    growing.add_workers(1, 70_000)
    assert growing.pool.status(growing.world.now).expected_ready_at_ms is None, "none is pending"
    growing.scale_to(7)
    requested_ms = growing.world.now
    growing.add_workers(1, 20_000)
    assert growing.pool.status(growing.world.now).expected_ready_at_ms == requested_ms + 70_000
    late_ms = requested_ms + DEADLINE_MS + 1
    assert growing.pool.status(late_ms).expected_ready_at_ms is None, "it is overdue"


def test_each_pool_scales_down_by_its_startup_time_and_plans_use_the_longest() -> None:
    harness = ThroughputHarness(replace(KNOBS, start_up_ms=30_000), workers=4)
    slow, quick = harness.world.pool("p"), harness.world.pool("d")
    slow.start_ups_ms, quick.start_ups_ms = [100_000], [10_000]
    harness.report_traffic(50, 181)
    assert harness.planner.demand.start_up_ms == 100_000
    slow.scaled_up_at_ms = quick.scaled_up_at_ms = harness.world.now - 50_000
    recommendation = harness.answer_forecast(50 * 180.0)
    held = [reason.pool for reason in recommendation.reasons if reason.code is ReasonCode.NEW_WORKER_GRACE]
    assert (recommendation.targets, held) == ({"d": 1}, ["p"])
    assert codes(harness.report_traffic(50, 51)) == {ReasonCode.THROUGHPUT_TARGET}
