"""Rates that workers serve by the profiles of their engines."""

import itertools

import pytest
from msgspec.structs import replace

from loadline.core.engines.lengths import constant_length
from loadline.core.engines.profile import EngineProfile, LinearKnobs, ObjectiveKnobs
from loadline.core.engines.regression import Line
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.fleet.traffic_totals import RunningMean, TrafficTotals
from loadline.core.planning.sizing.profile.counts import Demand, pool_sizer
from loadline.core.planning.sizing.profile.rates import ProfiledRates
from loadline.core.planning.sizing.request_lengths import Lengths
from loadline.core.vocabulary.samples import Bins
from tests.support.fleet_harness import FleetHarness

UNKNOWN = Lengths()
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


def rate(harness: FleetHarness, isl: float = 1_000.0, requests_per_s: float = 20.0) -> float:
    """Return the rate of a worker after requests of a length."""
    rates = ProfiledRates()
    rates.update(harness.model, lambda _: requests_per_s, {}, harness.now)
    harness.model.traffic.totals = totals(100, isl)
    rates.update(harness.model, lambda _: requests_per_s, {}, harness.now + 1_000)
    return rates.serves(harness.pool("p"), UNKNOWN)


def test_a_worker_serves_less_than_it_computes_because_prompts_wait() -> None:
    assert 4.0 < rate(world()) < 1_000.0 / 110.0


@pytest.mark.parametrize(("isl", "factor"), [(500.0, 1.0), (1_100.0, 1.0), (1_500.0, 1.0 / (0.9 * 1.5))])
def test_prompts_that_have_become_longer_beyond_chance_lower_the_rate_at_once(isl: float, factor: float) -> None:
    harness, rates = world(), ProfiledRates()
    pool = harness.pool("p")
    rates.update(harness.model, lambda _: 20.0, {}, harness.now)
    harness.model.traffic.totals = totals(100, 1_000.0)
    rates.update(harness.model, lambda _: 20.0, {}, harness.now + 1_000)
    recent = Lengths(isl_tokens=isl, osl_tokens=100.0, lasting_isl_tokens=1_000.0, lasting_osl_tokens=100.0)
    assert rates.serves(pool, recent) == pytest.approx(factor * rates.serves(pool, UNKNOWN))


def test_a_higher_attainment_lowers_the_rate() -> None:
    rates = []
    for attainment in (0.9, None, 0.95, 0.99):
        harness = world()
        harness.model.objectives = ObjectiveKnobs(ttft_ms=500, itl_ms=50, attainment=attainment)
        rates.append(rate(harness))
    assert rates[0] > rates[1] == rates[2] > rates[3]


def test_longer_prompts_lower_the_rate() -> None:
    assert rate(world(), 2_000.0) < 0.6 * rate(world())


def test_a_higher_demand_lets_each_worker_serve_more_and_the_present_count_does_not_matter() -> None:
    assert rate(world(), requests_per_s=80.0) > 1.3 * rate(world(), requests_per_s=2.0)
    assert rate(world(16)) == rate(world(1))


@pytest.mark.parametrize("requests_per_s", [0.5, 3.0, 9.0, 21.0, 44.0, 90.0, 200.0])
def test_a_demand_needs_the_count_that_the_profile_gives(requests_per_s: float) -> None:
    harness = world()
    demand = Demand(1.0, constant_length(1_000.0), constant_length(100.0), 0.95)
    count = pool_sizer(harness.pool("p"), harness.model.objectives, demand)(requests_per_s).replicas
    assert count - 1 < requests_per_s / rate(harness, requests_per_s=requests_per_s) <= count


def test_the_need_rises_steadily_with_the_demand() -> None:
    rates, harness = ProfiledRates(), world()
    rates.update(harness.model, lambda _: 1.0, {}, harness.now)
    harness.model.traffic.totals = totals(100, 1_000.0)
    needs = []
    for tenths in range(1, 400):
        rates.update(harness.model, lambda _, rate=tenths / 10.0: rate, {}, harness.now + 1_000)  # type: ignore[misc]
        needs.append(tenths / 10.0 / rates.serves(harness.pool("p"), UNKNOWN))
    steps = [after - before for before, after in itertools.pairwise(needs)]
    assert min(steps) >= 0.0
    assert max(steps) < 0.2


def test_nothing_is_known_without_a_profile_or_a_request() -> None:
    assert rate(world(profile=EngineProfile())) == 0.0
    rates, harness = ProfiledRates(), world()
    rates.update(harness.model, lambda _: 20.0, {}, harness.now)
    assert rates.serves(harness.pool("p"), UNKNOWN) == 0.0


def test_lengths_of_the_last_minutes_count() -> None:
    rates, harness = ProfiledRates(), world()
    rates.update(harness.model, lambda _: 20.0, {}, harness.now)
    for step in range(1, 30):
        isl = 1_000.0 if step < 12 else 4_000.0
        before = harness.model.traffic.totals
        harness.model.traffic.totals = TrafficTotals(
            isl_tokens=RunningMean(before.isl_tokens.thousandths + round(isl) * 100_000, 100 * step),
            osl_tokens=RunningMean(before.osl_tokens.thousandths + 10_000_000, 100 * step),
        )
        rates.update(harness.model, lambda _: 20.0, {}, harness.now + step * 30_000)
    assert rates.serves(harness.pool("p"), UNKNOWN) == pytest.approx(rate(world(), 4_000.0), rel=0.01)


@pytest.mark.parametrize(("per_interval", "isl"), [(100, 3_100.0), (300, 4_000.0)], ids=["few", "many"])
def test_lengths_of_more_minutes_count_while_there_are_few_requests(per_interval: int, isl: float) -> None:
    rates, harness = ProfiledRates(), world()
    rates.update(harness.model, lambda _: 20.0, {}, harness.now)
    for step in range(1, 30):
        tokens = 1_000 if step < 23 else 4_000
        before = harness.model.traffic.totals
        harness.model.traffic.totals = TrafficTotals(
            isl_tokens=RunningMean(before.isl_tokens.thousandths + tokens * per_interval * 1_000, per_interval * step),
            osl_tokens=RunningMean(before.osl_tokens.thousandths + per_interval * 100_000, per_interval * step),
        )
        rates.update(harness.model, lambda _: 20.0, {}, harness.now + step * 30_000)
    assert rates.serves(harness.pool("p"), UNKNOWN) == pytest.approx(rate(world(), isl), rel=0.01)


def test_known_prompt_times_count_like_a_profile_of_the_same_times_but_are_none() -> None:
    profile, line = EngineProfile(linear=LinearKnobs(5.0, 0.02, 0.0, 0.1, 1e6)), Line(0.1, 0.0)
    profiled, timed, harness = ProfiledRates(), ProfiledRates(), world()
    pool = harness.pool("p")
    for step in range(2):
        lengths = Bins((900.0, 1_100.0), (0, 100 * step, 0))
        harness.model.traffic.totals = replace(totals(100 * step, 1_000.0), isl_bins=lengths)
        pool.engine = profile
        profiled.update(harness.model, lambda _: 20.0, {}, harness.now + step)
        pool.engine = EngineProfile()
        timed.update(harness.model, lambda _: 20.0, {"p": line}, harness.now + step)
    assert timed.serves_by_line(pool) > 4.0
    assert timed.serves_by_line(pool) == pytest.approx(profiled.serves(pool, UNKNOWN))
    assert timed.serves(pool, UNKNOWN) == profiled.serves_by_line(pool) == 0.0


def test_prompts_of_one_length_need_fewer_workers_than_a_mean_of_unknown_lengths() -> None:
    """They do not wait for longer ones."""
    rates = []
    for bins in (Bins((900.0, 1_100.0), (0, 100, 0)), Bins((), ())):
        timed, harness = ProfiledRates(), world()
        timed.update(harness.model, lambda _: 20.0, {"p": Line(0.1, 0.0)}, harness.now)
        harness.model.traffic.totals = replace(totals(100, 1_000.0), isl_bins=bins)
        timed.update(harness.model, lambda _: 20.0, {"p": Line(0.1, 0.0)}, harness.now + 1)
        rates.append(timed.serves_by_line(harness.pool("p")))
    assert rates[0] > 1.1 * rates[1] > 0.0


def test_prompt_times_that_are_not_known_any_more_give_no_rate() -> None:
    rates, harness = ProfiledRates(), world()
    pool = harness.pool("p")
    pool.engine = EngineProfile()
    for step in range(2):
        harness.model.traffic.totals = totals(100 * step, 1_000.0)
        rates.update(harness.model, lambda _: 20.0, {"p": Line(0.1, 0.0)}, harness.now + step)
    rates.update(harness.model, lambda _: 20.0, {}, harness.now + 1_000)
    assert rates.serves_by_line(pool) == rates.serves(pool, UNKNOWN) == 0.0
