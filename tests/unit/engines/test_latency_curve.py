"""Latency curves: an engine whose latency is ``base / (1 - rate / full)``, observed at few rates."""

import math

import pytest

from loadline.core.engines.latency_curve import LatencyCurve

BASE_MS = 6.0
FULL = 30.0
LIMIT_MS = 40.0
WITHIN = FULL * (1.0 - BASE_MS / LIMIT_MS)


def latency_ms(rate: float) -> float:
    return BASE_MS / (1.0 - rate / FULL)


def observed(*rates: float, base_min_ms: float = BASE_MS) -> LatencyCurve:
    curve = LatencyCurve()
    for rate in rates:
        curve.add(rate, latency_ms(rate), base_min_ms, now=0)
    return curve


def test_without_points_no_rate_reaches_the_limit() -> None:
    assert LatencyCurve().rate_within(LIMIT_MS) == math.inf
    assert LatencyCurve().saturated_rate(LIMIT_MS) == 0.0


def test_a_light_load_predicts_the_rate_within_the_limit() -> None:
    assert observed(5.0).rate_within(LIMIT_MS) == pytest.approx(WITHIN)
    assert observed(3.0, 10.0, base_min_ms=1.0).rate_within(LIMIT_MS) == pytest.approx(WITHIN)


def test_a_rate_between_two_points_is_interpolated() -> None:
    assert observed(20.0, 28.0).rate_within(LIMIT_MS) == pytest.approx(WITHIN, rel=0.01)


def test_an_unobserved_limit_is_not_extrapolated_if_not_requested() -> None:
    assert observed(5.0, 10.0).rate_within(LIMIT_MS, extrapolate=False) == math.inf


def test_a_latency_that_does_not_rise_has_no_limit() -> None:
    curve = LatencyCurve()
    for rate in (5.0, 20.0):
        curve.add(rate, BASE_MS, BASE_MS, now=0)
    assert curve.rate_within(LIMIT_MS) == math.inf
    assert curve.rate_within(LIMIT_MS, rate_max=90.0) == 90.0
    assert curve.rate_within(LIMIT_MS, rate_max=10.0) == 20.0, "this rate was observed"


def test_an_overload_alone_gives_less_than_its_rate() -> None:
    curve = LatencyCurve()
    curve.add(29.0, 400.0, 400.0, now=0)
    assert 0.6 * 29.0 < curve.rate_within(LIMIT_MS) < 29.0


def test_an_exceeded_limit_counts_at_once() -> None:
    """Eight points at a good latency do not hide one that is twice the limit."""
    curve = LatencyCurve()
    for _ in range(8):
        curve.add(20.0, 20.0, BASE_MS, now=0)
    before = curve.rate_within(LIMIT_MS)
    curve.add(20.5, 80.0, BASE_MS, now=0)
    assert curve.rate_within(LIMIT_MS) < min(before, 20.5)


@pytest.mark.parametrize(("spread", "late_ms", "counts"), [(2.0, 60.0, False), (2.0, 200.0, True), (1.1, 60.0, True)])
def test_a_late_point_that_may_be_chance_does_not_count_alone(*, spread: float, late_ms: float, counts: bool) -> None:
    """Points whose latencies alternate by a factor of 2 have some at 1.5 times the limit that say nothing."""
    curve = LatencyCurve()
    for number in range(30):
        curve.add(10.0, 30.0 * spread ** (number % 2 - 0.5), BASE_MS, now=number)
    curve.add(10.0, late_ms, BASE_MS, now=30)
    assert (curve.rate_within(LIMIT_MS, extrapolate=False) < math.inf) is counts
    assert curve.rate_within(LIMIT_MS) < 10.0 * FULL, "what is extrapolated keeps to the latest point"


def test_a_slower_engine_replaces_what_was_learned() -> None:
    curve = observed(20.0)
    for _ in range(30):
        curve.add(20.0, 2.0 * latency_ms(20.0), 2.0 * BASE_MS, now=0)
    assert curve.bins[max(curve.bins)].inverse == pytest.approx(0.5 / latency_ms(20.0), rel=0.05)


def test_points_are_forgotten_after_half_an_hour() -> None:
    curve = observed(28.0)
    curve.add(5.0, latency_ms(5.0), BASE_MS, now=1_800_001)
    assert [one.rate for one in curve.bins.values()] == [5.0]


def test_the_saturated_rate_is_that_of_the_line_but_near_the_observed_rates() -> None:
    assert observed(5.0, 25.0).saturated_rate(LIMIT_MS) == pytest.approx(FULL)
    assert observed(5.0).saturated_rate(LIMIT_MS) == pytest.approx(1.3 * 5.0)


def test_the_highest_good_rate_excludes_latencies_above_the_limit() -> None:
    assert observed(10.0, 20.0, 29.0).highest_rate_within(LIMIT_MS) == 20.0


def test_one_late_point_counts_little_against_many_good_ones_at_higher_rates() -> None:
    curve = observed(5.0, *[10.0] * 8, *[20.0] * 8)
    before = curve.rate_within(LIMIT_MS)
    curve.add(3.0, 120.0, BASE_MS, now=0)
    curve.add(20.0, latency_ms(20.0), BASE_MS, now=0)
    assert curve.rate_within(LIMIT_MS) == pytest.approx(before, rel=0.1)


def test_late_points_outweigh_as_good_a_one_at_a_higher_rate() -> None:
    """Eight windows at 10 requests/s are late, one at 20 is not: the mean of them is late."""
    curve = observed(2.0, 20.0)
    for _ in range(8):
        curve.add(10.0, 80.0, BASE_MS, now=0)
    assert curve.rate_within(LIMIT_MS) < 10.0


@pytest.mark.parametrize("utilisation", [0.01, 0.3, 0.6, 0.9])
def test_a_queue_of_equal_requests_shows_what_its_worker_serves_without_a_pause(utilisation: float) -> None:
    """A worker that takes 40 ms for each request of 1,000 tokens, at any rate; at first one took 60 ms."""
    service_s, wait_s = 0.04, utilisation * 0.04 / (2.0 * (1.0 - utilisation))
    curve = LatencyCurve()
    curve.add(1.0, 60.0, 60.0, now=0)
    for _ in range(8):
        assert curve.service_rate(1_000.0, 900.0) < 1_000.0 / service_s
        curve.add(1_000.0 * utilisation / service_s, 1_000.0 * (service_s + wait_s), 60.0, now=0)
    assert curve.service_rate(1_000.0, 900.0) == pytest.approx(1_000.0 / service_s)


def test_a_late_bin_shows_no_service_rate() -> None:
    """Requests that wait where nobody reports it arrive at any rate."""
    curve = LatencyCurve()
    for _ in range(8):
        curve.add(30_000.0, 8_000.0, 50.0, now=0)
    assert curve.service_rate(1_000.0, 500.0) == pytest.approx(1_000.0 * 1_000.0 / curve.base_ms(500.0))


def test_many_late_points_after_the_good_ones_at_higher_rates_count_alone() -> None:
    """An engine that has become slower serves no more than what it was seen to serve lately."""
    curve = observed(*[10.0] * 8, *[15.0] * 8, *[20.0] * 8)
    for now in range(1, 30):
        curve.add(10.0, 80.0, BASE_MS, now)
    assert curve.rate_within(LIMIT_MS) < 10.0


def test_a_late_point_at_a_higher_rate_does_not_flatten_what_those_within_the_limit_say() -> None:
    """A full batch of 256 requests had 70 ms at 37 requests/s, and at 27 the latency is 46 ms."""
    curve = LatencyCurve()
    for rate, ms in ((15.0, 13.0), (22.0, 27.0), (37.0, 70.0)):
        curve.add(rate, ms, 7.6, now=0)
    assert curve.rate_within(44.0) > 30.0
    assert 24.0 < curve.rate_without_late(44.0) < 26.0
    assert curve.rate_without_late(10.0) == math.inf


def test_a_full_batch_does_not_lower_what_good_points_say_of_an_engine_with_a_flat_latency() -> None:
    """Its latency without load is 25 ms, and the full batch alone suggested 8 ms."""
    curve = LatencyCurve()
    for rate in (10.0, 11.0):
        curve.add(rate, 25.0 / (1.0 - rate / 60.0), 20.0, now=0)
    curve.add(37.0, 70.0, 7.8, now=0)
    assert curve.rate_without_late(42.0) == pytest.approx(60.0 * (1.0 - 25.0 / 42.0), rel=0.05)


def at_rates(latencies: dict[float, float], times: int = 8) -> LatencyCurve:
    curve = LatencyCurve()
    for _ in range(times):
        for rate, latency in latencies.items():
            curve.add(rate, latency, BASE_MS, now=0)
    return curve


@pytest.mark.parametrize(("objective_ms", "floor_ms"), [(3.0, BASE_MS), (5.4, BASE_MS), (5.6, 0.0), (8.0, 0.0)])
def test_an_objective_a_tenth_below_the_latency_without_load_is_known(objective_ms: float, floor_ms: float) -> None:
    curve = at_rates({rate: latency_ms(rate) for rate in (5.0, 21.0)})
    curve.learn_floor(objective_ms)
    assert curve.floor_ms == pytest.approx(floor_ms)


@pytest.mark.parametrize(
    "curve",
    [
        LatencyCurve(),
        at_rates({5.0: 7.0, 9.9: 9.0}),
        at_rates({5.0: 7.0, 21.0: 20.0}, times=7),
        at_rates({9.0: 8.6, 21.0: 20.0}),
        at_rates({9.0: 18.0, 21.0: 20.0}, times=1),
    ],
    ids=["no rates", "narrow", "few points", "all loaded", "one point each"],
)
def test_rates_that_do_not_tell_the_latency_without_load(curve: LatencyCurve) -> None:
    curve.learn_floor(3.0)
    assert curve.floor_ms == 0.0


@pytest.mark.parametrize(("rate", "latency", "now", "refuted"), [
    (2.0, 4.9, 0, True), (21.0, 20.0, 1_700_000, False), (21.0, 20.0, 1_900_000, True),
], ids=["within the objective", "the lowest rate is old", "the lowest rate is gone"])  # fmt: skip
def test_what_refutes_a_latency_without_load(rate: float, latency: float, now: int, *, refuted: bool) -> None:
    curve = at_rates({one: latency_ms(one) for one in (5.0, 21.0)})
    curve.learn_floor(5.0)
    curve.add(rate, latency, BASE_MS, now=now)
    curve.learn_floor(5.0)
    assert curve.floor_ms == pytest.approx(0.0 if refuted else BASE_MS)


@pytest.mark.parametrize(("high_ms", "refuted"), [(8.0, False), (60.0, True)])
def test_a_line_that_ends_well_below_the_objective_refutes_a_latency_without_load(
    high_ms: float, *, refuted: bool
) -> None:
    """With 6 ms at both rates it ends there, with 8 ms at the higher one at 5.5 ms, and with 60 ms at 4.7 ms."""
    curve = at_rates({5.0: 6.0, 21.0: 6.0})
    curve.learn_floor(5.4)
    for _ in range(100):
        curve.add(21.0, high_ms, BASE_MS, now=0)
    curve.learn_floor(5.4)
    assert curve.floor_ms == pytest.approx(0.0 if refuted else 6.0)
