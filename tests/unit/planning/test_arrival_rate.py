"""Forecasts of the arrivals: level, changes beyond chance, and rises that have lasted."""

import random
from collections.abc import Callable, Iterable

import pytest

from loadline.core.fleet.traffic_totals import TrafficTotals
from loadline.core.planning.demand.arrival_rate import ArrivalRate

LEAD_MS = 30_000
COST_OF_MISS = 20.0


def fed(counts: Iterable[int]) -> tuple[ArrivalRate, int]:
    rate, now = ArrivalRate(), 0
    for count in counts:
        now += 1_000
        rate.add(TrafficTotals(observed_ms=1_000, arrivals=count), LEAD_MS, COST_OF_MISS, now)
    return rate, now


def forecast(counts: Iterable[int], samples: int = 15) -> float:
    rate, now = fed(counts)
    return rate.forecast(LEAD_MS, samples, now)


def poisson(mean: Callable[[int], float], seconds: int, seed: int) -> list[int]:
    source = random.Random(seed)
    found = []
    for second in range(seconds):
        count, time_s = 0, source.expovariate(mean(second))
        while time_s < 1.0:
            count, time_s = count + 1, time_s + source.expovariate(mean(second))
        found.append(count)
    return found


def test_the_observed_rate_needs_half_of_the_time() -> None:
    rate, _ = fed([10] * 20 + [30] * 20)
    assert rate.observed(10_000, 20_000) == 10.0
    assert rate.observed(10_000, 30_000) == 20.0
    assert rate.observed(30_000, 50_000) == 30.0
    assert rate.observed(31_000, 51_000) is None


def test_without_traffic_nothing_is_expected() -> None:
    assert ArrivalRate().forecast(LEAD_MS, 15, 0) == 0.0
    assert forecast([0] * 60) == 0.0


def test_unobserved_time_is_no_idle_time() -> None:
    rate, now = fed([50] * 30)
    rate.add(TrafficTotals(), LEAD_MS, COST_OF_MISS, now + 60_000)
    assert rate.forecast(LEAD_MS, 15, now + 60_000) == pytest.approx(50.0, abs=2.0)


@pytest.mark.parametrize("seed", range(5))
def test_steady_traffic_is_expected_to_stay(seed: int) -> None:
    assert forecast(poisson(lambda _: 100.0, 300, seed)) == pytest.approx(100.0, abs=10.0)


@pytest.mark.parametrize("seed", range(5))
def test_a_step_is_believed_after_one_second_and_not_extrapolated(seed: int) -> None:
    counts = poisson(lambda second: 10.0 if second < 120 else 150.0, 240, seed)
    assert forecast(counts[:121]) > 110.0
    late = [forecast(counts[:end]) for end in range(122, 240)]
    assert sum(one < 180.0 for one in late) > 0.95 * len(late)
    assert max(late) < 230.0


@pytest.mark.parametrize("seed", range(5))
def test_a_fall_is_believed_within_two_seconds(seed: int) -> None:
    counts = poisson(lambda second: 150.0 if second < 120 else 10.0, 122, seed)
    assert forecast(counts) < 30.0


@pytest.mark.parametrize("seed", range(5))
def test_a_lasting_rise_is_extrapolated_by_the_lead_time(seed: int) -> None:
    counts = poisson(lambda second: 20.0 + 0.5 * second, 240, seed)
    assert forecast(counts) == pytest.approx(20.0 + 0.5 * 270, rel=0.12)


@pytest.mark.parametrize("seed", range(5))
def test_a_clear_rise_is_extrapolated_after_a_lead_time_and_a_half(seed: int) -> None:
    """Arrivals rise by 4/s in a second from 100/s at 120 s on: the lead time before that shows no rise."""
    counts = poisson(lambda second: 100.0 + 4.0 * max(0, second - 120), 168, seed)
    late = [forecast(counts[:end]) for end in range(166, 169)]
    assert max(late) == pytest.approx(100.0 + 4.0 * (48 + 30), rel=0.15)


@pytest.mark.parametrize("ratio", [1.5, 2.0, 4.0])
def test_a_step_is_rarely_taken_for_a_rise(ratio: float) -> None:
    forecasts = []
    for seed in range(20):
        counts = poisson(lambda second: 50.0 if second < 120 else 50.0 * ratio, 170, seed)
        forecasts += [forecast(counts[:end]) for end in range(135, 170)]
    assert sum(one > 1.3 * 50.0 * ratio for one in forecasts) < 0.02 * len(forecasts)


@pytest.mark.parametrize(("before_per_s", "ratio"), [(50.0, 1.5), (50.0, 2.0), (20.0, 2.0), (5.0, 4.0)])
def test_chance_after_a_step_is_rarely_taken_for_its_continuation(before_per_s: float, ratio: float) -> None:
    """Two windows share the step, and the second half of the last one is higher than the first by chance."""
    forecasts = []
    for seed in range(20):
        counts = poisson(lambda second: before_per_s * (1.0 if second < 120 else ratio), 190, seed)
        forecasts += [forecast(counts[:end], samples=60) for end in range(150, 190)]
    assert sum(one > 1.15 * before_per_s * ratio for one in forecasts) < 0.02 * len(forecasts)


def test_a_spread_that_was_seen_before_is_no_change() -> None:
    """Bursts of four times the mean each fifth second: none of them is a new level."""
    rate, _ = fed([20, 20, 20, 20, 120] * 30)
    assert rate.unchanged > 60


@pytest.mark.parametrize(("per_s", "samples", "error"), [(5.0, 15, 0.115), (5.0, 60, 0.058), (500.0, 15, 0.0115)])
def test_the_error_is_that_of_a_poisson_process(per_s: float, samples: int, error: float) -> None:
    rate, _ = fed(poisson(lambda _second: per_s, 120, 1))
    assert rate.error(samples) == pytest.approx(error, rel=0.3)


def test_without_arrivals_there_is_no_error() -> None:
    assert ArrivalRate().error(15) == 0.0
    assert fed([0] * 60)[0].error(15) == 0.0


def test_the_history_is_bounded() -> None:
    rate, _ = fed([10] * 1_000)
    assert len(rate.at_ms) == len(rate.arrivals) == len(rate.observed_ms) == 400


@pytest.mark.parametrize("samples", [15, 60])
def test_of_a_burst_of_few_requests_only_what_is_no_chance_counts(samples: int) -> None:
    """Ten requests in a second after one per second are no rate of ten."""
    burst = forecast([1] * 120 + [10], samples)
    assert forecast([1] * 120, samples) < burst < 5.0
    assert forecast([1] * 120 + [10] * 8, samples) > 7.0
    assert forecast([10] * 120 + [100], samples) > 85.0


def growths(counts: list[int], lead_ms: int = LEAD_MS) -> list[float]:
    """Return the likely growth after each second from the 60th on."""
    rate, found = ArrivalRate(), []
    for second, count in enumerate(counts, 1):
        rate.add(TrafficTotals(observed_ms=1_000, arrivals=count), LEAD_MS, COST_OF_MISS, 1_000 * second)
        found.append(rate.likely_growth(lead_ms, 60, 1_000 * second))
    return found[60:]


def test_a_ramp_after_a_fall_likely_goes_on_before_a_forecast_extrapolates_it() -> None:
    """Of 24/s, 4/s remain, which rise by 4/s a minute: to 12/s after two, and to 18/s after a start-up of 90 s more.

    In one of eight cases chance is a change of the rate, from which on the windows begin anew.
    """
    seen = []
    for seed in range(8):
        counts = poisson(lambda second: 24.0 if second < 300 else 4.0 + (second - 300) / 15.0, 420, seed)
        rate, now = fed(counts)
        assert rate.forecast(90_000, 60, now) == pytest.approx(10.0, abs=1.0), "the mean of the last minute"
        seen.append(10.0 * max(growths(counts, 90_000)[-20:]))
    assert [one for one in seen if one > 10.0] == pytest.approx([18.0] * 7, rel=0.25)


@pytest.mark.parametrize("per_s", [2.0, 100.0])
def test_steady_arrivals_rarely_seem_to_rise(per_s: float) -> None:
    found = [growth for seed in range(10) for growth in growths(poisson(lambda _: per_s, 300, seed))]
    assert sum(growth > 1.0 for growth in found) < 0.01 * len(found)


def test_a_fall_is_no_growth_and_a_minute_is_needed_to_see_one() -> None:
    assert set(growths([200] * 60 + [60] * 60)) == {1.0}
    ramp = growths([200] * 60 + [60 + second // 2 for second in range(60)])
    assert ramp[38] == 1.0
    assert ramp[59] > 1.3
