"""Lulls of a load that are too short for an exchange of workers."""

import random
from collections.abc import Callable
from math import sin, tau

import pytest

from loadline.core.fleet.traffic_totals import TrafficTotals
from loadline.core.planning.demand.arrival_rate import ArrivalRate
from loadline.core.planning.demand.load_lulls import LoadLulls
from tests.support.fleet_harness import START

SECOND_MS = 1_000
START_UP_MS, UNNEEDED_MS = 40_000, 15_000


class Load:
    """Arrivals of a second each, and their lulls."""

    def __init__(self) -> None:
        self.arrivals, self.lulls, self.now = ArrivalRate(), LoadLulls(), START

    def run(self, seconds: int, rate: Callable[[int], float]) -> LoadLulls:
        for second in range(seconds):
            self.now += SECOND_MS
            self.arrivals.add(TrafficTotals(observed_ms=SECOND_MS, arrivals=round(rate(second))), 0, 20.0, self.now)
            self.lulls.update(self.arrivals, START_UP_MS, UNNEEDED_MS, self.now)
        return self.lulls


def wave(period_s: int) -> Callable[[int], float]:
    return lambda second: 26.0 + 14.0 * sin(tau * second / period_s)


@pytest.mark.parametrize(("period_s", "at_least_s", "at_most_s"), [(120, 50, 75), (180, 80, 110), (240, 110, 145)])
def test_lulls_shorter_than_three_exchanges_are_short(period_s: int, at_least_s: int, at_most_s: int) -> None:
    short_ms = Load().run(3 * period_s, wave(period_s)).short_ms
    assert at_least_s * SECOND_MS < short_ms < at_most_s * SECOND_MS, "half a period"


def test_long_lulls_are_not_short() -> None:
    assert Load().run(1_800, wave(600)).short_ms == 0


def test_a_long_lull_ends_what_short_ones_have_taught() -> None:
    load = Load()
    load.run(540, wave(180))
    assert load.lulls.short_ms > 0
    assert load.run(200, lambda _: 12.0).short_ms == 0


def test_waves_around_a_lower_mean_are_seen() -> None:
    load = Load()
    load.run(60, lambda _: 80.0)
    load.run(200, lambda _: 20.0)
    assert load.run(540, lambda second: wave(180)(second) / 2.0).short_ms > 0


def test_chance_and_steps_are_no_lulls() -> None:
    load = Load()
    assert load.run(600, lambda second: 30.0 + 6.0 * (second * 7 % 5 - 2)).short_ms == 0
    assert load.run(600, lambda _: 60.0).short_ms == 0
    assert load.run(600, lambda _: 10.0).short_ms == 0


def test_few_requests_and_none_have_no_lulls() -> None:
    load, rng = Load(), random.Random(1)
    assert load.run(3_600, lambda _: float(rng.random() < 0.3)).short_ms == 0
    load.run(120, lambda _: 0.0)
    assert load.run(120, lambda _: 30.0).short_ms == 0, "a load that begins"


def test_a_dip_of_seconds_is_no_lull() -> None:
    load = Load()
    load.run(60, lambda _: 30.0)
    load.run(12, lambda _: 3.0)
    assert load.run(120, lambda _: 30.0).short_ms == 0


def test_a_wave_that_is_observed_from_its_middle_has_no_short_lull() -> None:
    load = Load()
    assert load.run(480, lambda second: wave(480)(second + 240)).short_ms == 0
