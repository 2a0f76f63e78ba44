"""Throughput planner: lengths, surges and unfinished requests."""

import pytest
from msgspec.structs import replace

from loadline.core.vocabulary.reasons import ReasonCode
from loadline.core.vocabulary.samples import Histogram
from tests.support.throughput_harness import ThroughputHarness, codes


def test_varying_prompt_lengths_are_no_surge_within_chance() -> None:
    # 160 prompts in 10 s, 40 % longer than usual: 2.2 standard deviations by counts alone, 1.1 with varying lengths.
    bins = Histogram((500.0, 10_000.0), (15, 1, 0))
    for histogram, surge in ((bins, False), (None, True)):
        harness = ThroughputHarness()
        harness.report_traffic(16, 181, isl_tokens=500.0, isl_histogram=histogram)
        harness.answer_forecast(16 * 180.0)
        found = harness.report_traffic(16, 10, isl_tokens=700.0, isl_histogram=histogram)
        assert harness.planner.demand.outlook is not None
        assert (found.inputs["requests_per_s"] > 16.0) is surge


def test_long_prompts_are_more_prefill_work_and_one_decode_request() -> None:
    harness = ThroughputHarness(workers=1)
    harness.report_traffic(150, 120)
    harness.report_traffic(150, 61, isl_tokens=2_000.0)
    recommendation = harness.answer_forecast(297 * 180.0)
    assert recommendation.targets == {"p": 3, "d": 2}, (
        "150 prompts of 2,000 tokens a second count as 297 of the mean length"
    )


def test_unfinished_requests_lengthen_outputs() -> None:
    harness = ThroughputHarness()
    harness.report_traffic(470, 10, completed=235, osl_tokens=100.0, in_flight=2_350)
    assert harness.planner.demand.outlook is not None
    assert harness.planner.demand.outlook.osl_tokens == pytest.approx(200.0)
    found = harness.report_traffic(470, 20, completed=400, osl_tokens=300.0, in_flight=3_750)
    assert found.targets["d"] == 17, "more of the long requests have finished later"
    assert harness.report_traffic(470, 151, in_flight=3_750).targets["d"] == 17
    request = harness.planner.forecast_request()
    assert request is not None
    (osl,) = request.queries[2].series.values
    ended = 10 * 235 + 20 * 400 + 150 * 470
    assert osl == pytest.approx((235_000 + 2_400_000 + 7_050_000) / ended * (180 * 470) / ended, rel=0.01)


def test_the_estimate_for_unfinished_requests_is_limited() -> None:
    harness = ThroughputHarness()
    harness.report_traffic(470, 10, completed=10, osl_tokens=100.0, queued=1_600, in_flight=3_000)
    assert harness.planner.demand.outlook is not None
    assert harness.planner.demand.outlook.osl_tokens == pytest.approx(200.0)


def test_cancelled_requests_do_not_lengthen_outputs() -> None:
    harness = ThroughputHarness()
    for _ in range(181):
        harness.report_traffic(100, completed=60, in_flight=90)
    request = harness.planner.forecast_request()
    assert request is not None
    (osl,) = request.queries[2].series.values
    assert osl == pytest.approx(100.0, rel=0.01), "40 % never finish, but only 90 are outstanding"


@pytest.mark.parametrize("workers", [0, 1])
def test_without_known_lengths_no_pool_is_sized(workers: int) -> None:
    harness = ThroughputHarness(workers=workers)
    for pool in harness.world.model.pools.values():
        pool.knobs = replace(pool.knobs, replicas_min=workers)
    found = harness.report_traffic(20, 400, completed=0, osl_tokens=None)
    assert found.targets == {}, "a role without workers is scaled from zero with any planner"
    assert codes(found) == {ReasonCode.TRAFFIC_UNKNOWN}


def test_a_surge_of_long_prompts_grows_prefill_only() -> None:
    harness = ThroughputHarness(workers=2)
    harness.report_traffic(150, 181)
    harness.answer_forecast(150 * 180.0)
    assert harness.report_traffic(150, 12, isl_tokens=1_500.0).targets == {"p": 5}
    assert harness.report_traffic(300, 12, isl_tokens=1_500.0).targets["d"] == 3, "more requests are a surge for both"


@pytest.mark.parametrize(("burst", "peak"), [(102, 1.016), (110, 1.055), (1_000, 1.018)])
def test_chance_above_the_mean_is_variation_and_a_burst_varies_by_itself(burst: int, peak: float) -> None:
    # By chance 3,300 requests in 30 s are at most 3 / sqrt(3,300) = 5 % above their mean, and 30,000 are 1.7 %.
    harness = ThroughputHarness()
    harness.report_traffic(100, 120)
    harness.report_traffic(burst, 30)
    harness.report_traffic(100, 31)
    harness.answer_forecast(burst * 180.0)
    assert harness.planner.demand.outlook is not None
    assert harness.planner.demand.outlook.decode_peak == pytest.approx(peak, abs=0.001)


@pytest.mark.parametrize(("window_ms", "requests_per_s"), [(60_000, 100.0), (600_000, (181 * 150 + 60 * 100) / 241)])
def test_the_rate_of_the_traffic_window_is_expected_to_continue(window_ms: int, requests_per_s: float) -> None:
    harness = ThroughputHarness()
    harness.world.model.traffic.window_ms = window_ms
    harness.report_traffic(150, 181)
    harness.report_traffic(100, 60)
    harness.answer_forecast(100 * 180.0)
    assert harness.planner.demand.outlook is not None
    assert harness.planner.demand.outlook.requests_per_s == pytest.approx(requests_per_s, rel=0.01)


@pytest.mark.parametrize("forecast", [{"isl": 0.01}, {"osl": 0.01}, {"isl": 0.0, "osl": 0.0}])
def test_a_trend_of_lengths_below_half_of_the_observed_ones_is_not_followed(forecast: dict[str, float]) -> None:
    """Of 4 workers one was left, and an ISL of 0.01 tokens let usual prompts count as 50,000 requests each."""
    harness = ThroughputHarness(workers=4)
    harness.report_traffic(400, 181)
    found = harness.answer_forecast(400 * 180.0, **forecast)
    assert ReasonCode.FORECAST_TOO_SHORT in codes(found)
    assert set(found.targets.values()) == {3}, "half of the work of 4 workers, and one step"
    assert all(max(harness.report_traffic(400).targets.values(), default=4) <= 4 for _ in range(60))
    harness.report_traffic(400, 121)
    assert ReasonCode.FORECAST_TOO_SHORT not in codes(harness.answer_forecast(400 * 180.0)), "the next is plausible"


def test_only_lengths_of_the_last_day_bound_a_forecast() -> None:
    intervals = ThroughputHarness().planner.demand.intervals
    day = 86_400_000 // intervals.interval_ms
    intervals.isl_tokens = [2.0, *[None, 300.0] * (day // 2)]
    intervals.osl_tokens = [2.0, *[300.0] * (day - 1)]
    assert intervals.plausible_minimums() == (150.0, 1.0)
    intervals.isl_tokens, intervals.osl_tokens = [None, 0.0, float("nan")], []
    assert intervals.plausible_minimums() == (0.0, 0.0)
