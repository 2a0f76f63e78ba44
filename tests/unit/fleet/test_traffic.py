"""Traffic reports of frontends over a rolling window."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from loadline.core.fleet.traffic import Traffic
from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.rejections import Rejection
from loadline.core.vocabulary.samples import Histogram, TrafficSample
from loadline.core.vocabulary.status import TrafficStatus

T0 = 1_700_000_000_000
NOTHING = TrafficStatus(None, None, None, None, None, 0)


def make_traffic(frontends_max: int = 8) -> Traffic:
    return Traffic(window_ms=60_000, frontends_max=frontends_max, stale_after_ms=5_000)


def report(sequence: int = 1, frontend: str = "f", incarnation: int = 1, **fields: float) -> TrafficReported:
    values = {"interval_ms": 1_000, "arrivals": 0} | fields
    return TrafficReported("m", frontend, incarnation, TrafficSample(sequence=sequence, **values))  # type: ignore[arg-type]


def test_traffic_without_reports_is_unknown() -> None:
    assert make_traffic().status(T0) == NOTHING


def test_an_idle_frontend_reports_a_rate_of_zero() -> None:
    traffic = make_traffic()
    assert traffic.ingest(report(), T0) is None
    assert traffic.status(T0) == TrafficStatus(0.0, None, None, None, None, 0, frontends=1)


def test_rate_and_means_are_weighted_by_requests() -> None:
    traffic = make_traffic()
    traffic.ingest(report(1, arrivals=10, isl_tokens=100.0, completed=4, osl_tokens=50.0, ttft_ms=200.0, itl_ms=20), T0)
    traffic.ingest(report(2, arrivals=30, isl_tokens=300.0, completed=12, osl_tokens=90.0, queued=3), T0 + 10_000)
    status = traffic.status(T0 + 10_000)
    assert status == TrafficStatus(4.0, 250.0, 80.0, 200.0, 20.0, 3, frontends=1, totals=traffic.totals.status())


def test_attainment_is_weighted_by_requests_and_unknown_without_a_judgement() -> None:
    traffic = make_traffic()
    traffic.ingest(report(1, completed=10, ttft_met=5), T0)
    traffic.ingest(report(2, completed=30, ttft_met=30, interval_ms=3_000), T0 + 3_000)
    traffic.ingest(report(3, completed=60), T0 + 4_000)
    status = traffic.status(T0 + 4_000)
    assert status.ttft_attainment == pytest.approx(35 / 40)
    assert status.itl_attainment is None
    assert status.both_attainment is None
    assert traffic.status(T0 + 61_000).ttft_attainment is None, "the window is over"


def test_requests_within_both_objectives_are_counted_apart() -> None:
    traffic = make_traffic()
    traffic.ingest(report(1, completed=10, ttft_met=8, itl_met=7, both_met=5), T0)
    traffic.ingest(report(2, completed=30, ttft_met=30, itl_met=30, both_met=30), T0 + 1_000)
    assert traffic.status(T0 + 1_000).both_attainment == pytest.approx(35 / 40)


def test_a_report_that_counts_in_part_keeps_its_attainment() -> None:
    traffic = make_traffic()
    traffic.ingest(report(1, completed=600, ttft_met=300, both_met=240, interval_ms=600_000), T0)
    totals = traffic.totals.status().ttft_attainment
    assert (totals.count, totals.sum) == (60, 30)
    assert traffic.totals.status().both_attainment.sum == 24
    traffic.ingest(report(2, arrivals=90_000, completed=90_000, ttft_met=81_000, itl_met=0), T0 + 1_000)
    more = traffic.totals.status()
    assert (more.ttft_attainment.count - 60) * 0.9 == pytest.approx(more.ttft_attainment.sum - 30)
    assert more.itl_attainment.sum == 0 < more.itl_attainment.count < 90_000


def test_lengths_without_requests_are_ignored() -> None:
    traffic = make_traffic()
    traffic.ingest(report(1, arrivals=0, isl_tokens=5.0, completed=0, osl_tokens=7.0, ttft_ms=1.0), T0)
    assert traffic.status(T0) == TrafficStatus(0.0, None, None, None, None, 0, frontends=1)


def test_old_buckets_leave_the_window() -> None:
    traffic = make_traffic()
    traffic.ingest(report(1, arrivals=100), T0)
    traffic.ingest(report(2, arrivals=6), T0 + 61_000)
    assert traffic.status(T0 + 61_000).requests_per_s == 0.1
    assert len(traffic.buckets) == 1


def test_traffic_of_a_silent_frontend_is_unknown() -> None:
    traffic = make_traffic()
    traffic.ingest(report(1, arrivals=5, queued=2), T0)
    assert traffic.status(T0 + 5_000).queued == 2
    assert traffic.status(T0 + 5_001) == replace(NOTHING, totals=traffic.totals.status())


def test_repetitions_and_earlier_incarnations_are_refused() -> None:
    traffic = make_traffic()
    assert traffic.ingest(report(5, arrivals=1, incarnation=2), T0) is None
    assert traffic.ingest(report(5, arrivals=1, incarnation=2), T0) == Rejection.NOT_NEWER
    assert traffic.ingest(report(4, arrivals=1, incarnation=2), T0) == Rejection.NOT_NEWER
    assert traffic.ingest(report(9, arrivals=1, incarnation=1), T0) == Rejection.STALE_INCARNATION
    assert traffic.ingest(report(1, arrivals=1, incarnation=3), T0) is None, "a new incarnation starts at 1"
    assert sum(bucket.arrivals for bucket in traffic.buckets) == 2


def test_frontends_are_bounded_and_silent_ones_are_removed() -> None:
    traffic = make_traffic(frontends_max=2)
    assert traffic.ingest(report(1, "a"), T0) is None
    assert traffic.ingest(report(1, "b"), T0 + 50_000) is None
    assert traffic.ingest(report(1, "c"), T0 + 50_001) == Rejection.FRONTENDS_FULL
    assert traffic.ingest(report(1, "c"), T0 + 60_001) is None, "the last report of a is a window old"
    assert sorted(traffic.frontends) == ["b", "c"]


@pytest.mark.parametrize(("incarnation", "sequence"), [(1, 1), (2, 1), (2, 5)])
def test_an_overdue_frontend_may_restart_with_lower_numbers(incarnation: int, sequence: int) -> None:
    traffic = make_traffic()
    assert traffic.ingest(report(5, incarnation=2), T0) is None
    restarted = report(sequence, incarnation=incarnation, queued=3)
    assert traffic.ingest(restarted, T0 + 5_000) is not None
    assert traffic.ingest(restarted, T0 + 5_001) is None
    assert traffic.queued(T0 + 5_001) == 3


@pytest.mark.parametrize(
    "refused",
    [report(1, "new"), report(9, "a", incarnation=1), report(1, "a", incarnation=2)],
    ids=["full", "stale", "repeated"],
)
def test_a_refused_report_makes_traffic_incomplete_for_a_window(refused: TrafficReported) -> None:
    traffic = make_traffic(frontends_max=1)
    for second in range(120):
        now = T0 + second * 1_000
        assert traffic.ingest(report(second + 2, "a", incarnation=2), now) is None
        if second == 30:
            assert traffic.is_complete(now)
            assert traffic.ingest(refused, now) is not None
        assert traffic.is_complete(now) == (not 30 <= second <= 90)
        assert not traffic.refused_requests(now), "the refused report had no requests"


@given(st.lists(st.tuples(st.integers(0, 30_000), st.integers(0, 50)), min_size=1, max_size=40))
def test_the_rate_covers_the_window_and_memory_is_bounded(reports: list[tuple[int, int]]) -> None:
    traffic, now, ingested = make_traffic(), T0, []
    for sequence, (wait_ms, arrivals) in enumerate(reports, start=1):
        now += wait_ms
        traffic.ingest(report(sequence, arrivals=arrivals), now)
        ingested.append((now, arrivals))
    inside = sum(count for at, count in ingested if at - at % 1_000 >= now - 60_000)
    covered_ms = max(1_000, min(60_000, now - ingested[0][0]))
    assert traffic.status(now).requests_per_s == inside * 1_000 / covered_ms
    assert len(traffic.buckets) <= 62


def test_a_status_query_changes_nothing() -> None:
    traffic = make_traffic()
    traffic.ingest(report(1, arrivals=5), T0)
    before = msgspec.json.encode(traffic)
    traffic.status(T0 + 3_600_000)
    assert msgspec.json.encode(traffic) == before, "a replay does not include status queries"


def test_a_rate_far_above_that_of_the_window_is_bounded() -> None:
    traffic = make_traffic()
    for second in range(60):
        traffic.ingest(report(second, arrivals=200, completed=200, isl_tokens=100.0), T0 + second * 1_000)
    histogram = Histogram((10.0,), (10**9, 0))
    excess = report(60, arrivals=10**9, completed=10**9, isl_tokens=900.0, isl_histogram=histogram)  # type: ignore[arg-type]
    traffic.ingest(excess, T0 + 60_000)
    rate = traffic.status(T0 + 60_000).requests_per_s
    assert rate is not None
    assert 200 <= rate < 250, "ten times the usual rate for one of 60 seconds"
    assert traffic.totals.isl_bins.counts == ()


def test_a_surge_of_ten_times_the_rate_counts_in_full() -> None:
    traffic = make_traffic()
    for second in range(60):
        traffic.ingest(report(second, arrivals=90), T0 + second * 1_000)
    before = traffic.totals
    traffic.ingest(report(60, arrivals=900), T0 + 60_000)
    assert traffic.totals.since(before).arrivals == 900


def test_a_histogram_of_far_more_requests_than_arrived_is_left_out() -> None:
    traffic = make_traffic()
    traffic.ingest(report(1, arrivals=10, isl_histogram=Histogram((10.0,), (10**9, 0))), T0)  # type: ignore[arg-type]
    assert traffic.totals.arrivals == 10
    assert traffic.totals.isl_bins.counts == ()
