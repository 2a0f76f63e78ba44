"""Throughput planner: times of sizings, forecasts and missing data."""

from itertools import pairwise

import pytest
from msgspec.structs import replace

from loadline.core.engines.profile import EngineProfile, ObjectiveKnobs
from loadline.core.planning.sizing.knobs import ThroughputKnobs
from loadline.core.vocabulary.events import ForecastFailed, ForecastFitted
from loadline.core.vocabulary.forecasts import Forecast
from loadline.core.vocabulary.reasons import ReasonCode
from tests.support.throughput_harness import KNOBS, ThroughputHarness, codes


def test_the_first_sizing_follows_after_seconds_and_only_grows() -> None:
    harness = ThroughputHarness()
    assert codes(harness.plan()) == {ReasonCode.TRAFFIC_UNKNOWN}
    assert harness.report_traffic(470, 8).targets == {}
    assert harness.report_traffic(470, 2).targets == {"p": 5, "d": 5}
    quiet = ThroughputHarness(workers=4)
    assert quiet.report_traffic(90, 60).targets == {}, "the first seconds may not be representative"


def test_no_pool_grows_for_a_passed_peak_known_from_one_interval() -> None:
    harness = ThroughputHarness()
    assert harness.report_traffic(470, 100).targets == {"p": 5, "d": 5}, "a guardrail keeps two workers"
    assert harness.report_traffic(20, 20).targets == {}
    harness.report_traffic(20, 61)
    recommendation = harness.answer_forecast(470 * 180.0)
    assert (recommendation.targets, ReasonCode.PEAK_OVER in codes(recommendation)) == ({}, True)
    assert harness.report_traffic(300, 10).targets == {"p": 5, "d": 5}, "the single interval may not be a peak"
    harness.report_traffic(300, 170)
    harness.answer_forecast(470 * 180.0)
    assert harness.report_traffic(20, 20).targets == {"p": 5, "d": 5}, "two intervals suffice for a forecast"


def test_each_interval_requests_a_forecast_over_start_up_time_and_interval() -> None:
    harness = ThroughputHarness()
    harness.report_traffic(150, 179)
    assert harness.planner.forecast_request() is None
    harness.report_traffic(150, 2)
    forecast_queries = harness.planner.forecast_request()
    assert forecast_queries is not None
    assert harness.planner.forecast_request() is None, "one request per interval"
    requests, isl, osl = forecast_queries.queries
    assert requests.horizon == 2, "one minute of start-up and three until the next sizing"
    assert requests.series.values == (150 * 180,)
    assert (isl.series.values, osl.series.values) == ((500.0,), (100.0,))


def test_pools_are_sized_for_the_busiest_interval_ahead_within_the_step_limit() -> None:
    harness = ThroughputHarness(workers=5)
    harness.report_traffic(470, 181)
    assert harness.answer_forecast(470 * 180.0, 730 * 180.0).targets == {}
    assert harness.report_traffic(470, 119).targets == {}, "workers requested later are ready in time"
    assert harness.report_traffic(470, 2).targets == {"p": 8, "d": 8}, (
        "a minute of start-up, and another until workers of the next sizing are ready"
    )
    harness = ThroughputHarness(workers=2)
    harness.report_traffic(150, 181)
    recommendation = harness.answer_forecast(100 * 730 * 180.0)
    assert recommendation.targets == {"p": 5, "d": 5}, "an absurd forecast costs three workers, not hundreds"
    assert harness.planner.demand.outlook is not None


@pytest.mark.parametrize(("start_up_s", "every_s"), [(2, 10), (20, 20), (60, 60), (300, 180)])
def test_pools_are_sized_once_per_start_up_time(start_up_s: int, every_s: int) -> None:
    harness = ThroughputHarness(ThroughputKnobs(attainment=0.0, start_up_ms=start_up_s * 1_000), workers=5)
    harness.report_traffic(470, 181)
    harness.answer_forecast(*[470 * 180.0] * 4)
    looks = [harness.world.now]
    for _ in range(179):
        before = harness.planner.demand.size_at_ms
        harness.report_traffic(470)
        if harness.planner.demand.size_at_ms != before:
            looks.append(harness.world.now)
    assert {after - before for before, after in pairwise([*looks, looks[0] + 180_000])} == {every_s * 1_000}


def test_an_absurd_forecast_changes_a_pool_by_one_step_limit_only() -> None:
    harness = ThroughputHarness(replace(KNOBS, start_up_ms=10_000))
    harness.report_traffic(150, 181)
    assert harness.answer_forecast(*[100 * 730 * 180.0] * 3).targets == {"p": 5, "d": 5}
    for pool in harness.world.model.pools.values():
        pool.set_decided(5, harness.world.now)
    assert harness.report_traffic(150, 100).targets == {}, "nine evaluations later"
    harness.report_traffic(700, 10)
    for pool in harness.world.model.pools.values():
        pool.set_decided(7, harness.world.now)
    assert harness.report_traffic(700, 30).targets == {}, "workers added by the surge are kept"


def test_at_most_one_forecast_request_is_pending() -> None:
    harness = ThroughputHarness(workers=5)
    harness.report_traffic(470, 181)
    first = harness.planner.forecast_request()
    assert first is not None
    harness.report_traffic(470, 360)
    assert harness.planner.forecast_request() is None, "two more intervals ended during the fit"
    harness.planner.ingest_forecast(ForecastFailed("m", first.request, "late"))
    harness.report_traffic(470, 180)
    second = harness.planner.forecast_request()
    assert second is not None
    assert (second.request, len(second.queries[0].series.values)) == (first.request + 1, 4)


def test_past_intervals_of_a_forecast_do_not_count() -> None:
    harness = ThroughputHarness(workers=5)
    harness.report_traffic(470, 181)
    first = harness.planner.forecast_request()
    assert first is not None
    harness.report_traffic(470, 190)
    means: list[Forecast | None] = [
        Forecast(tuple(means), tuple(means), "constant")
        for means in ((900 * 180.0, 600 * 180.0), (500.0, 400.0), (100.0, 90.0))
    ]
    harness.planner.ingest_forecast(ForecastFitted("m", first.request, means))
    harness.plan()
    assert harness.planner.demand.outlook is not None
    assert harness.planner.demand.outlook.requests_per_s == pytest.approx(600)
    assert harness.planner.demand.outlook.isl_tokens == 400


def test_demand_upper_sizes_for_the_upper_quantile() -> None:
    harness = ThroughputHarness(ThroughputKnobs(attainment=0.0, demand="upper"))
    harness.report_traffic(150, 181)
    assert harness.answer_forecast(150 * 180.0).targets == {"p": 3, "d": 3}


def test_a_surge_sizes_at_once_and_chance_does_not() -> None:
    harness = ThroughputHarness()
    harness.report_traffic(150, 181)
    harness.answer_forecast(150 * 180.0)
    assert harness.report_traffic(155, 30).targets == {}
    found = harness.report_traffic(400, 10)
    assert found.targets == {"p": 4, "d": 4}
    assert ReasonCode.TRAFFIC_SURGE in codes(found)


def test_cached_prefixes_need_no_prefill_workers_until_they_are_lost() -> None:
    harness = ThroughputHarness()
    harness.report_traffic(400, 181, kv_hit_rate=0.8)
    assert harness.answer_forecast(400 * 180.0).targets == {"p": 1, "d": 4}, (
        "a fifth of 400 prompts a second is left to compute"
    )
    assert harness.planner.demand.inputs["kv_hit_rate"] == pytest.approx(0.8)
    harness.report_traffic(400, 20, kv_hit_rate=0.795)
    assert harness.planner.sizer.sizes.sized["p"].replicas == 1, "within chance"
    found = harness.report_traffic(400, 10)
    assert found.targets == {"p": 4, "d": 4}
    assert ReasonCode.TRAFFIC_SURGE in codes(found)


def test_a_burst_of_uncached_prompts_raises_the_load_of_an_interval() -> None:
    harness = ThroughputHarness()
    harness.report_traffic(100, 100, kv_hit_rate=0.9)
    harness.report_traffic(100, 30, kv_hit_rate=0.6)
    harness.report_traffic(100, 51, kv_hit_rate=0.9)
    forecast_queries = harness.planner.forecast_request()
    assert forecast_queries is not None
    work, mean = 40.0, (150 * 10 + 30 * 40) / 180
    assert forecast_queries.queries[0].series.values[-1] == pytest.approx(100 * 180 * work / mean, rel=0.02)


def test_no_requests_scale_down_and_no_reports_hold() -> None:
    harness = ThroughputHarness(workers=4)
    harness.report_traffic(0, 181)
    assert harness.answer_forecast(0.0).targets == {"p": 1, "d": 1}
    harness.world.now += 6_000
    recommendation = harness.plan()
    assert (recommendation.targets, codes(recommendation)) == ({}, {ReasonCode.TRAFFIC_UNKNOWN})


def test_an_interval_observed_for_less_than_half_is_unknown() -> None:
    harness = ThroughputHarness()
    harness.report_traffic(150, 60)
    harness.world.now += 121_000
    harness.plan()
    forecast_queries = harness.planner.forecast_request()
    assert forecast_queries is not None
    assert forecast_queries.queries[0].series.values == (None,)


def test_a_silent_frontend_prevents_a_shrink() -> None:
    harness = ThroughputHarness(workers=4)
    harness.report_traffic(50, 150, "a")
    harness.report_traffic(50, 31, "b")
    recommendation = harness.answer_forecast(50 * 180.0)
    assert recommendation.targets == {}
    assert ReasonCode.TRAFFIC_INCOMPLETE in codes(recommendation)


def test_a_shrink_waits_for_a_start_up_time() -> None:
    harness = ThroughputHarness(workers=2)
    for pool in harness.world.model.pools.values():
        pool.set_decided(4, harness.world.now)
    harness.report_traffic(50, 100)
    for name in ("p", "d"):
        harness.world.add_workers(name, 2)
    harness.report_traffic(50, 81)
    assert harness.planner.demand.start_up_ms == 100_000
    for pool in harness.world.model.pools.values():
        pool.scaled_up_at_ms = harness.world.now - 50_000
    recommendation = harness.answer_forecast(50 * 180.0)
    assert (recommendation.targets, ReasonCode.NEW_WORKER_GRACE in codes(recommendation)) == ({}, True)
    assert harness.report_traffic(50, 50).targets == {"p": 1, "d": 1}


def test_without_a_forecast_the_last_interval_counts() -> None:
    harness = ThroughputHarness(workers=2)
    harness.report_traffic(150, 181)
    forecast_queries = harness.planner.forecast_request()
    assert forecast_queries is not None
    harness.planner.ingest_forecast(ForecastFailed("m", forecast_queries.request, "no fitter"))
    recommendation = harness.plan()
    assert ReasonCode.FORECAST_FALLBACK in codes(recommendation)
    assert harness.planner.demand.outlook is not None
    assert harness.planner.demand.outlook.requests_per_s == pytest.approx(150)


def test_outdated_answers_change_nothing() -> None:
    harness = ThroughputHarness()
    harness.report_traffic(150, 181)
    forecast_queries = harness.planner.forecast_request()
    assert forecast_queries is not None
    before = harness.planner.demand.outlook
    harness.planner.ingest_forecast(ForecastFitted("m", forecast_queries.request - 1, [None, None, None]))
    harness.planner.ingest_forecast(ForecastFailed("m", forecast_queries.request + 1))
    harness.plan()
    assert harness.planner.demand.outlook == before
    harness.planner.ingest_forecast(ForecastFitted("m", forecast_queries.request, []))
    harness.plan()
    assert harness.planner.demand.outlook is not None, "an invalid forecast is replaced by the last interval"


def test_a_pool_without_a_profile_is_held_and_others_are_sized() -> None:
    harness = ThroughputHarness()
    harness.world.pool("p").engine = EngineProfile(problem="p.npz: not a profile. Profile again")
    recommendation = harness.report_traffic(470, 11)
    assert recommendation.targets == {"d": 5}
    assert "p: the engine profile cannot be used: p.npz: not a profile. Profile again" in [
        reason.sentence() for reason in recommendation.reasons
    ]


def test_an_unreachable_objective_is_reported_and_pools_grow() -> None:
    harness = ThroughputHarness()
    harness.world.model.objectives = ObjectiveKnobs(ttft_ms=9.0, itl_ms=50.0)
    found = harness.report_traffic(470, 10)
    assert found.targets == {"p": 5, "d": 5}
    assert ReasonCode.SLA_INFEASIBLE in codes(found)
