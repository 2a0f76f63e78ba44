"""Rises that have ended soon: the next one counts once it lasts longer, or if bursts are worth keeping workers."""

from collections.abc import Iterable

import pytest

from loadline.core.fleet.traffic_totals import TrafficTotals
from loadline.core.planning.demand.arrival_rate import ArrivalRate
from loadline.core.planning.demand.bursts import EndedRise

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


@pytest.mark.parametrize(("age_ms", "duration_ms"), [(4_000, 2_000), (8_000, 4_000), (10_000, 5_000), (25_000, 20_000)])
def test_a_burst_is_known_to_have_ended_after_half_of_a_mean(age_ms: int, duration_ms: int) -> None:
    assert EndedRise(0, age_ms).duration_ms == duration_ms
