"""What a pool learns of how long workers take to come, and what it expects of those that are pending."""

from msgspec.structs import replace

from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.vocabulary.reasons import ReasonCode
from tests.support.fleet_harness import FleetHarness
from tests.support.throughput_harness import KNOBS, ThroughputHarness, codes

DEFAULT_MS = 60_000
DEADLINE_MS = 600_000


class Growing:
    """A pool of four workers that grows."""

    def __init__(self) -> None:
        self.world = FleetHarness([PoolKnobs("d", "decode", start_deadline_ms=DEADLINE_MS, replicas_max=50)], 4)
        self.pool: Pool = self.world.pool("d")
        self.pool.reset_desired(4, self.world.now)

    def ask(self, replicas: int) -> None:
        self.world.now += 1_000
        self.pool.set_desired(replicas, self.world.now)

    def come(self, count: int, after_ms: int) -> None:
        self.world.now += after_ms
        self.world.add_workers("d", count)


def test_the_longest_of_the_last_eight_start_ups_counts() -> None:
    growing = Growing()
    assert growing.pool.start_up_ms(DEFAULT_MS) == DEFAULT_MS
    for number, took_ms in enumerate((40_000, 90_000, 20_000, *[30_000] * 6)):
        growing.ask(5 + number)
        growing.come(1, took_ms)
        expected_ms = 40_000 if number == 0 else 90_000
        assert growing.pool.start_up_ms(DEFAULT_MS) == expected_ms
    growing.ask(20)
    growing.come(6, 30_000)
    assert growing.pool.start_up_ms(DEFAULT_MS) == 90_000, "not all have come"
    growing.come(1, 1_000)
    assert growing.pool.start_up_ms(DEFAULT_MS) == 31_000, "the ninth before is forgotten"


def test_a_worker_that_comes_hours_late_teaches_no_more_than_the_deadline() -> None:
    growing = Growing()
    growing.ask(6)
    growing.come(1, 60_000)
    growing.come(1, 6 * 3_600_000)
    assert growing.pool.start_up_ms(DEFAULT_MS) == DEADLINE_MS


def test_a_growth_that_is_given_up_teaches_nothing() -> None:
    growing = Growing()
    growing.ask(10)
    growing.ask(4)
    assert growing.pool.start_ups_ms == [], "taken back at once"
    growing.ask(10)
    growing.world.now += 5_000
    growing.pool.reset_desired(4, growing.world.now)
    assert growing.pool.start_ups_ms == [], "came to nothing"
    growing.ask(10)
    growing.ask(6)
    growing.come(2, 3_000)
    assert growing.pool.start_ups_ms == [], "whether these two were asked for then or before is not known"


def test_pending_workers_are_expected_when_others_have_taken_so_long() -> None:
    growing = Growing()
    growing.ask(5)
    assert growing.pool.status(growing.world.now).expected_ready_at_ms is None, "none has ever come"
    growing.come(1, 70_000)
    assert growing.pool.status(growing.world.now).expected_ready_at_ms is None, "none is pending"
    growing.ask(7)
    asked_ms = growing.world.now
    growing.come(1, 20_000)
    assert growing.pool.status(growing.world.now).expected_ready_at_ms == asked_ms + 70_000
    late_ms = asked_ms + DEADLINE_MS + 1
    assert growing.pool.status(late_ms).expected_ready_at_ms is None, "it is missing"


def test_each_pool_shrinks_by_its_own_start_up_and_the_slowest_is_planned_for() -> None:
    harness = ThroughputHarness(replace(KNOBS, start_up_ms=30_000), workers=4)
    slow, quick = harness.world.pool("p"), harness.world.pool("d")
    slow.start_ups_ms, quick.start_ups_ms = [100_000], [10_000]
    harness.report_traffic(50, 181)
    assert harness.planner.demand.start_up_ms == 100_000
    slow.scaled_up_at_ms = quick.scaled_up_at_ms = harness.world.now - 50_000
    recommendation = harness.answer_forecast(50 * 180.0)
    held = [reason.pool for reason in recommendation.reasons if reason.code is ReasonCode.ADJUSTMENT_INTERVAL]
    assert (recommendation.targets, held) == ({"d": 1}, ["p"])
    assert codes(harness.report_traffic(50, 51)) == {ReasonCode.THROUGHPUT_TARGET}
