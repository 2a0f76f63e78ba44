"""Rises that have ended soon: the next one counts once it lasts longer, or if bursts are worth keeping workers."""

from collections.abc import Iterable

import pytest

from loadline.core.fleet.traffic_totals import TrafficTotals
from loadline.core.planning.demand.arrival_rate import ArrivalRate
from tests.unit.planning.test_arrival_rate import poisson

LEAD_MS = 60_000
COST_OF_MISS = 20.0
BASE, HIGH = 50, 200


class Traffic:
    """Arrivals of each second, and the forecast for when a worker requested now is ready."""

    def __init__(self, cost_of_miss: float = COST_OF_MISS) -> None:
        self.rate, self.now, self.cost_of_miss = ArrivalRate(), 0, cost_of_miss

    def add(self, counts: Iterable[int]) -> list[float]:
        """Add seconds, and return the forecast after each of them."""
        found = []
        for count in counts:
            self.now += 1_000
            self.rate.add(TrafficTotals(observed_ms=1_000, arrivals=count), LEAD_MS, self.cost_of_miss, self.now)
            found.append(self.rate.forecast(LEAD_MS, 15, self.now))
        return found

    def burst(self, seconds: int = 4, pause: int = 200) -> list[float]:
        """Let a burst begin after a pause, and return the forecasts of its seconds."""
        self.add([BASE] * pause)
        return self.add([HIGH] * seconds)


def test_the_first_bursts_count_at_once() -> None:
    traffic = Traffic()
    for _ in range(4):
        assert max(traffic.burst()) > 0.9 * HIGH


def test_a_burst_as_many_before_it_does_not_count() -> None:
    traffic = Traffic()
    for _ in range(8):
        traffic.burst()
    assert max(traffic.burst()) < 2.0 * BASE
    assert traffic.rate.rise is not None


def test_a_rise_that_outlasts_all_bursts_counts_with_all_its_seconds() -> None:
    """Bursts of 4 s are known to have ended after 8 s, and a change counts by half for one more second."""
    traffic = Traffic()
    for _ in range(8):
        traffic.burst()
    found = traffic.burst(seconds=12)
    assert max(found[:6]) < 3.0 * BASE
    assert min(found[10:]) > 0.95 * HIGH
    assert traffic.rate.rise is None


def test_lasting_rises_among_bursts_make_the_next_one_count() -> None:
    """Of nine rises three have lasted for two minutes."""
    traffic = Traffic()
    for _ in range(3):
        traffic.burst()
        traffic.burst()
        traffic.burst(seconds=120)
    assert max(traffic.burst()) > 0.9 * HIGH


@pytest.mark.parametrize(("pause", "expected"), [(25, 0.9 * HIGH), (80, 0.0)])
def test_frequent_bursts_count(pause: int, expected: float) -> None:
    """4 s of 29 are more than a tenth of the time, and 4 s of 84 are less."""
    traffic = Traffic()
    for _ in range(10):
        traffic.burst(pause=pause)
    assert max(traffic.burst(pause=pause)) > expected
    assert (traffic.rate.rise is None) is bool(expected)


def test_bursts_count_where_a_late_request_costs_more() -> None:
    traffic = Traffic(cost_of_miss=100.0)
    for _ in range(10):
        traffic.burst()
    assert max(traffic.burst()) > 0.9 * HIGH


def test_a_fall_counts_at_once() -> None:
    traffic = Traffic()
    for _ in range(10):
        traffic.burst()
    traffic.add([BASE] * 60)
    assert traffic.add([BASE // 5] * 8)[-1] < 0.5 * BASE


def test_a_bounded_number_of_rises_is_remembered() -> None:
    traffic = Traffic()
    for _ in range(60):
        traffic.burst(pause=60)
    assert len(traffic.rate.bursts.ended) == 32
    assert len(traffic.rate.bursts.rises) <= 1


def test_a_burst_is_taken_to_have_lasted_until_half_of_the_mean_was_after_it() -> None:
    traffic = Traffic()
    traffic.burst(seconds=4)
    traffic.burst(seconds=20)
    traffic.add([BASE] * 20)
    assert [one.duration_ms for one in traffic.rate.bursts.ended] == pytest.approx([4_000, 20_000], abs=1_000)


def test_a_rise_that_has_lasted_for_minutes_is_no_burst() -> None:
    traffic = Traffic()
    traffic.burst(seconds=420)
    assert [one.age_ms for one in traffic.rate.bursts.ended] == [400_000]
    assert not traffic.rate.bursts.rises


@pytest.mark.parametrize("seed", range(10))
def test_a_lasting_rise_of_few_arrivals_does_not_end_by_chance(seed: int) -> None:
    traffic = Traffic()
    traffic.add(poisson(lambda _: 2.0, 200, seed))
    traffic.add(poisson(lambda _: 10.0, 300, seed))
    assert any(rise.began_ms <= 220_000 for rise in traffic.rate.bursts.rises)


def test_a_pending_rise_changes_neither_the_forecast_nor_the_spread() -> None:
    traffic, counts = Traffic(), poisson(lambda _: float(BASE), 4_000, 1)
    for number in range(12):
        traffic.add(counts[300 * number : 300 * number + 200])
        found = traffic.add([HIGH] * 4)
        after = traffic.add(counts[300 * number + 200 : 300 * number + 220])
    assert max(found) < 1.3 * BASE
    assert max(after) < 1.5 * BASE
    assert traffic.rate._spread(0) < 1.5


def test_a_step_waits_for_15_seconds_at_most() -> None:
    """Bursts of 50 s end within a start-up, too."""
    traffic = Traffic()
    for _ in range(12):
        traffic.burst(seconds=50, pause=900)
    found = traffic.burst(seconds=20, pause=900)
    assert max(found[:10]) < 1.3 * BASE
    assert min(found[16:]) > 0.95 * HIGH


def test_a_step_of_another_size_does_not_wait() -> None:
    traffic = Traffic()
    for _ in range(10):
        traffic.burst()
    traffic.add([BASE] * 200)
    assert max(traffic.add([4 * HIGH] * 2)) > 0.9 * 4 * HIGH
