"""Running totals of traffic, whose differences are intervals."""

from typing import Any

import msgspec
import pytest

from loadline.core.fleet.traffic import Traffic
from loadline.core.fleet.traffic_totals import NO_BINS, TrafficTotals
from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.samples import Bins, Histogram, TrafficSample

T0 = 1_700_000_000_000
BOUNDS = (10.0, 100.0)


def report(sequence: int, frontend: str = "f", **fields: object) -> TrafficReported:
    values: dict[str, object] = {"interval_ms": 1_000, "arrivals": 0} | fields
    return TrafficReported("m", frontend, 1, TrafficSample(sequence=sequence, **values))  # type: ignore[arg-type]


def make_traffic() -> Traffic:
    return Traffic(window_ms=60_000, frontends_max=8, stale_after_ms=5_000)


def test_an_interval_is_the_difference_of_two_totals() -> None:
    traffic = make_traffic()
    traffic.ingest(report(1, arrivals=4, isl_tokens=100.0), T0)
    mark = traffic.totals
    traffic.ingest(report(2, arrivals=6, isl_tokens=50.0, completed=2, osl_tokens=30.0, ttft_ms=8.0), T0 + 1_000)
    traffic.ingest(report(3, arrivals=2, isl_tokens=90.0, completed=4, osl_tokens=60.0), T0 + 2_000)
    interval = traffic.totals.since(mark)
    assert (interval.observed_ms, interval.arrivals, interval.requests_per_s) == (2_000, 8, 4.0)
    assert (interval.isl_tokens.value, interval.osl_tokens.value, interval.ttft_ms.value) == (60.0, 50.0, 8.0)
    assert interval.itl_ms.value is None


def test_the_hit_rate_is_weighted_by_prompt_tokens() -> None:
    traffic = make_traffic()
    traffic.ingest(report(1, arrivals=1, isl_tokens=9_000.0, kv_hit_rate=0.1), T0)
    mark = traffic.totals
    traffic.ingest(report(2, arrivals=1, isl_tokens=3_000.0, kv_hit_rate=0.9), T0 + 1_000)
    traffic.ingest(report(3, arrivals=3, isl_tokens=1_000.0, kv_hit_rate=0.6), T0 + 2_000)
    assert traffic.totals.kv_hit_rate == pytest.approx((900 + 2_700 + 1_800) / 15_000)
    assert traffic.totals.since(mark).kv_hit_rate == pytest.approx((2_700 + 1_800) / 6_000)
    assert traffic.recent_arrivals(2_000, T0 + 2_000).kv_hit_rate == pytest.approx((2_700 + 1_800) / 6_000)
    traffic.ingest(report(1, "other", arrivals=6, isl_tokens=1_000.0), T0 + 2_000)
    assert traffic.totals.since(mark).kv_hit_rate == pytest.approx((2_700 + 1_800) / 12_000)
    assert TrafficTotals().kv_hit_rate == traffic.recent_arrivals(1_000, T0 + 90_000).kv_hit_rate == 0.0


def test_idle_time_is_observed_and_silence_is_not() -> None:
    traffic = make_traffic()
    for second in range(4):
        traffic.ingest(report(second + 1), T0 + second * 1_000)
    assert (traffic.totals.observed_ms, traffic.totals.arrivals) == (4_000, 0)
    traffic.ingest(report(9), T0 + 20_000)
    assert traffic.totals.observed_ms == 5_000, "traffic during the silence is unknown"


def test_histograms_are_added_and_subtracted() -> None:
    traffic = make_traffic()
    traffic.ingest(report(1, arrivals=3, isl_histogram=Histogram(BOUNDS, (1, 2, 0))), T0)
    mark = traffic.totals
    traffic.ingest(report(2, arrivals=3, isl_histogram=Histogram(BOUNDS, (0, 1, 2))), T0)
    assert traffic.totals.isl_bins == Bins(BOUNDS, (1, 3, 2))
    assert traffic.totals.since(mark).isl_bins == Bins(BOUNDS, (0, 1, 2))
    traffic.ingest(report(3, arrivals=1, isl_histogram=Histogram((5.0,), (1, 0))), T0)
    assert traffic.totals.since(mark).isl_bins == NO_BINS, "histograms with other bounds cannot be subtracted"
    traffic.ingest(report(4, arrivals=1, isl_histogram=Histogram((5.0,), (1,))), T0)
    assert traffic.totals.isl_bins == Bins((5.0,), (1, 0)), "an invalid histogram is ignored"


def test_a_snapshot_holds_more_requests_than_a_report_may() -> None:
    """An hour-long report has at most 3.6e9 requests; 1,000 a second are more after six weeks."""
    most = Histogram(BOUNDS, (3_600_000_000, 0, 0))
    sample = TrafficSample(1, 3_600_000, 3_600_000_000, 3_600_000_000, isl_histogram=most, osl_histogram=most)
    totals = TrafficTotals().with_report(sample, 3_600_000).with_report(sample, 3_600_000)
    assert msgspec.json.decode(msgspec.json.encode(totals), type=TrafficTotals) == totals
    assert totals.isl_bins.counts[0] == 7_200_000_000


def test_a_silent_frontend_makes_traffic_incomplete_for_a_window() -> None:
    traffic = make_traffic()
    for second in range(70):
        traffic.ingest(report(second + 1, "a"), T0 + second * 1_000)
        if second == 0:
            traffic.ingest(report(1, "b"), T0)
        age_s = second
        assert traffic.is_reporting(T0 + second * 1_000)
        assert traffic.is_complete(T0 + second * 1_000) == (age_s <= 5 or age_s > 60)
    assert not traffic.is_reporting(T0 + 69_000 + 5_001)


def test_recent_arrivals_are_counted_in_whole_buckets() -> None:
    traffic = make_traffic()
    for second in range(20):
        traffic.ingest(report(second + 1, arrivals=second, isl_tokens=10.0), T0 + second * 1_000)
    recent = traffic.recent_arrivals(10_000, T0 + 19_000)
    assert (recent.arrivals, recent.observed_ms, recent.isl_tokens) == (sum(range(10, 20)), 10_000, 10.0)
    assert traffic.recent_arrivals(10_000, T0 + 60_000).requests_per_s == 0.0


def test_an_absurd_report_affects_only_its_interval() -> None:
    traffic = make_traffic()
    absurd: dict[str, Any] = {
        "arrivals": 2**53,
        "isl_tokens": 1e7,
        "kv_hit_rate": 0.9,
        "completed": 2**53,
        "osl_tokens": 1e7,
    }
    for sequence in range(1, 2_000):
        traffic.ingest(report(sequence, itl_ms=1e12, **absurd), T0)
    mark = traffic.totals
    traffic.ingest(report(2_000, arrivals=3, isl_tokens=812.125, completed=7, osl_tokens=164.5, itl_ms=18.5), T0)
    interval = traffic.totals.since(mark)
    assert (interval.arrivals, interval.isl_tokens.value, interval.kv_hit_rate) == (3, 812.125, 0.0)
    assert (interval.completed, interval.osl_tokens.value, interval.itl_ms.value) == (7, 164.5, 18.5)
    assert msgspec.json.decode(msgspec.json.encode(traffic), type=Traffic) == traffic, "it can be encoded"


def test_empty_totals_have_no_rate() -> None:
    assert TrafficTotals().since(TrafficTotals()) == TrafficTotals()
    assert TrafficTotals().requests_per_s == 0.0
