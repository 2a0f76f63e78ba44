"""Rates that workers serve by the profiles of their engines."""

import pytest

from loadline.core.engines.profile import EngineProfile, LinearKnobs, ObjectiveKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.fleet.traffic_totals import RunningMean, TrafficTotals
from loadline.core.planning.sizing.profiled_rates import ProfiledRates
from tests.support.fleet_harness import FleetHarness

LINEAR = LinearKnobs(5.0, 0.02, 10.0, 0.1, 1e6)
"""A prompt of 1,000 tokens takes 110 ms."""


def totals(requests: int, isl: float) -> TrafficTotals:
    return TrafficTotals(isl_tokens=mean(isl, requests), osl_tokens=mean(100.0, requests))


def mean(value: float, count: int) -> RunningMean:
    return RunningMean(round(value * 1_000) * count, count)


def world(workers: int = 4, profile: EngineProfile | None = None) -> FleetHarness:
    harness = FleetHarness([PoolKnobs("p", "prefill", replicas_max=32)], workers)
    harness.model.objectives = ObjectiveKnobs(ttft_ms=500, itl_ms=50)
    harness.pool("p").engine = profile or EngineProfile(linear=LINEAR)
    return harness


def rate(harness: FleetHarness, isl: float = 1_000.0) -> float:
    """Return the rate after requests of a length."""
    rates = ProfiledRates()
    rates.update(harness.model, harness.now)
    harness.model.traffic.totals = totals(100, isl)
    rates.update(harness.model, harness.now + 1_000)
    return rates.serves(harness.pool("p"))


def test_a_worker_serves_less_than_it_computes_because_prompts_wait() -> None:
    assert 4.0 < rate(world()) < 1_000.0 / 110.0


def test_longer_prompts_lower_the_rate() -> None:
    assert rate(world(), 2_000.0) < 0.6 * rate(world())


def test_many_workers_serve_more_each_than_one() -> None:
    assert rate(world(16)) > rate(world(1))


def test_nothing_is_known_without_a_profile_or_a_request() -> None:
    assert rate(world(profile=EngineProfile())) == 0.0
    rates, harness = ProfiledRates(), world()
    rates.update(harness.model, harness.now)
    assert rates.serves(harness.pool("p")) == 0.0


def test_lengths_of_the_last_minutes_count() -> None:
    rates, harness = ProfiledRates(), world()
    rates.update(harness.model, harness.now)
    for step in range(1, 30):
        isl = 1_000.0 if step < 12 else 4_000.0
        before = harness.model.traffic.totals
        harness.model.traffic.totals = TrafficTotals(
            isl_tokens=RunningMean(before.isl_tokens.thousandths + round(isl) * 100_000, 100 * step),
            osl_tokens=RunningMean(before.osl_tokens.thousandths + 10_000_000, 100 * step),
        )
        rates.update(harness.model, harness.now + step * 30_000)
    assert rates.serves(harness.pool("p")) == pytest.approx(rate(world(), 4_000.0), rel=0.01)
