"""Forecasts next to what came, alone and in the planners that forecast."""

import pytest

from loadline.core.planning.demand.forecast_record import ExpectedArrivals, ForecastRecord
from loadline.core.vocabulary.status import ForecastStatus
from tests.support.throughput_harness import ThroughputHarness
from tests.unit.planning.test_auto_planner import START_UP_S, AutoWorld

INTERVAL_S = 180


def status_of(record: ForecastRecord) -> ForecastStatus:
    found = record.status()
    assert found is not None
    return found


def test_errors_do_not_cancel() -> None:
    record = ForecastRecord()
    assert record.status() is None
    for start, forecast, came in ((0, 4.0, 6.0), (10_000, 8.0, 6.0)):
        expected = ExpectedArrivals(start, start + 10_000, forecast)
        record.expect(expected, 5_000)
        assert list(record.ended(start + 9_999)) == []
        assert list(record.ended(start + 10_000)) == [expected]
        record.compare(expected, came)
    assert status_of(record) == ForecastStatus(8.0, 5_000, 8.0, 6.0, observed_requests=120.0, error_requests=40.0)


def test_the_earliest_of_several_forecasts_for_the_same_time_counts() -> None:
    record = ForecastRecord()
    for at_ms, rate in ((0, 1.0), (4_000, 2.0), (10_000, 3.0)):
        record.expect(ExpectedArrivals(at_ms, at_ms + 10_000, rate), 5_000)
    assert [one.requests_per_s for one in record.ended(30_000)] == [1.0, 3.0]
    assert status_of(record).requests_per_s == 3.0, "the newest one is shown"


def test_the_forecast_of_the_interval_in_which_a_new_worker_is_ready_is_compared() -> None:
    harness = ThroughputHarness()
    harness.report_traffic(100, INTERVAL_S + 1)
    harness.answer_forecast(*(INTERVAL_S * rate for rate in (110.0, 120.0, 130.0)))
    first = status_of(harness.planner.demand.record)
    assert (first.requests_per_s, first.lead_ms, first.observed_requests_per_s) == (110.0, 60_000, None)
    harness.report_traffic(100, INTERVAL_S)
    seen = status_of(harness.planner.demand.record)
    assert seen.due_requests_per_s == 110.0
    assert seen.observed_requests_per_s == pytest.approx(100.0)
    assert seen.error_requests / seen.observed_requests == pytest.approx(0.1)


def test_an_interval_without_reports_is_not_compared() -> None:
    harness = ThroughputHarness()
    harness.report_traffic(100, INTERVAL_S + 1)
    harness.answer_forecast(*(INTERVAL_S * rate for rate in (110.0, 120.0, 130.0)))
    harness.world.now += 2 * INTERVAL_S * 1_000
    harness.report_traffic(100, 2)
    assert status_of(harness.planner.demand.record).observed_requests_per_s is None
    assert harness.planner.demand.record.expected == []


def test_auto_compares_its_forecasts_one_start_up_later() -> None:
    world = AutoWorld(4)
    world.run(20.0, 14)
    assert status_of(world.planner.record).lead_ms == START_UP_S * 1_000
    world.run(20.0, 16)
    assert status_of(world.planner.record).due_requests_per_s is None
    world.run(20.0, 300)
    steady = status_of(world.planner.record)
    assert steady.due_requests_per_s == pytest.approx(20.0, rel=0.2)
    assert steady.error_requests / steady.observed_requests < 0.1
    world.run(60.0, 60)
    stepped = status_of(world.planner.record)
    error, came = (
        stepped.error_requests - steady.error_requests,
        stepped.observed_requests - steady.observed_requests,
    )
    assert error / came > 0.2, "nobody forecasts a step"


def test_auto_without_frontends_forecasts_nothing() -> None:
    world = AutoWorld(4)
    world.run(20.0, 60, frontend=False)
    assert world.planner.record.status() is None
