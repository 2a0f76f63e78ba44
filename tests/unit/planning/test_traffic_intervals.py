"""Traffic of frontends with different report intervals."""

import pytest

from loadline.core.fleet.traffic import Traffic
from loadline.core.planning.demand.outlook import Outlook
from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.samples import TrafficSample

T0 = 1_700_000_000_000
PLANNED_S = 180


def make_traffic() -> Traffic:
    return Traffic(window_ms=60_000, frontends_max=8, stale_after_ms=5_000)


def ingest(traffic: Traffic, frontend: str, interval_ms: int, now: int, requests_per_s: float = 20.0) -> None:
    arrivals = round(requests_per_s * interval_ms / 1_000.0)
    sample = TrafficSample(now - T0 + 1, interval_ms, arrivals, arrivals, isl_tokens=1_000.0, osl_tokens=200.0)
    assert traffic.ingest(TrafficReported("m", frontend, 1, sample), now) is None


def ingest_reports(traffic: Traffic, seconds: int, *intervals_s: int, since_s: int = 0) -> int:
    """Ingest reports of frontends with these intervals, each with 20 requests/s."""
    for second in range(since_s + 1, since_s + seconds + 1):
        for interval_s in intervals_s:
            if second % interval_s == 0:
                ingest(traffic, f"every {interval_s} s", interval_s * 1_000, T0 + second * 1_000)
    return T0 + (since_s + seconds) * 1_000


@pytest.mark.parametrize("intervals_s", [(1,), (2,), (6,), (30,), (60,), (1, 6), (1, 30), (1, 60), (6, 30, 60)])
def test_rates_of_frontends_add_up(intervals_s: tuple[int, ...]) -> None:
    traffic = make_traffic()
    mark_ms = ingest_reports(traffic, PLANNED_S, *intervals_s)
    mark, truth = traffic.totals, 20.0 * len(intervals_s)
    assert traffic.is_reporting(mark_ms)
    now = ingest_reports(traffic, PLANNED_S, *intervals_s, since_s=PLANNED_S)
    assert traffic.totals.since(mark).requests_per_s == pytest.approx(truth, rel=0.03)
    assert traffic.recent_arrivals(30_000, now).requests_per_s == pytest.approx(truth, rel=0.05)
    assert traffic.status(now).requests_per_s == pytest.approx(truth, rel=0.05)
    assert traffic.recent_arrivals(10_000, now).observed_ms == pytest.approx(10_000, abs=1_000)
    assert len(traffic.buckets) <= 62


def test_a_slow_frontend_is_not_silent_between_two_reports() -> None:
    traffic = make_traffic()
    now = ingest_reports(traffic, 60, 1, 20)
    assert traffic.is_complete(now + 5_000)
    ingest(traffic, "every 1 s", 1_000, now + 40_000)
    assert traffic.is_complete(now + 40_000), "a report may be lost"
    assert not traffic.is_complete(now + 40_001)
    assert traffic.is_reporting(now + 45_000)
    assert not traffic.is_reporting(now + 45_001)


@pytest.mark.parametrize("frontend", ["every 1 s", "another"])
def test_a_report_over_an_hour_is_no_surge(frontend: str) -> None:
    traffic = make_traffic()
    mark, now = traffic.totals, ingest_reports(traffic, 120, 1)
    ingest(traffic, frontend, 3_600_000, now + 500)
    assert traffic.recent_arrivals(10_000, now + 500).requests_per_s <= 42.0
    now = ingest_reports(traffic, 60, 1, since_s=120)
    assert traffic.totals.since(mark).requests_per_s <= 20.0 * 4 / 3


def test_a_report_after_a_silence_counts_at_its_own_rate() -> None:
    traffic = make_traffic()
    mark = traffic.totals
    ingest(traffic, "f", 3_600_000, T0)
    assert traffic.totals.since(mark).requests_per_s == traffic.recent_arrivals(60_000, T0).requests_per_s == 20.0
    assert traffic.status(T0).requests_per_s == pytest.approx(20.0, rel=0.02)


def test_requests_without_output_do_not_affect_output_lengths() -> None:
    traffic = make_traffic()
    now = ingest_reports(traffic, 10, 1)
    failed = TrafficSample(90_000, 1_000, 20, 20, isl_tokens=1_000.0, osl_tokens=0.0)
    traffic.ingest(TrafficReported("m", "every 1 s", 1, failed), now + 1_000)
    assert (traffic.totals.osl_tokens.value, traffic.totals.completed) == (200.0, 220)
    assert traffic.status(now + 1_000).osl_tokens == 200.0


LONG = {"isl_tokens": 1e7, "osl_tokens": 1e7}


def ingest_second(traffic: Traffic, second: int, **counts: float) -> None:
    lengths = {"isl_tokens": 1_000.0, "osl_tokens": 200.0} | counts
    sample = TrafficSample(second, 1_000, 20, 20, **lengths)  # type: ignore[arg-type]
    assert traffic.ingest(TrafficReported("m", "f", 1, sample), T0 + second * 1_000) is None


def test_one_report_of_absurd_lengths_is_no_surge() -> None:
    traffic = make_traffic()
    for second in range(1, 61):
        ingest_second(traffic, second, **LONG if second == 58 else {})
    recent = traffic.recent_arrivals(10_000, T0 + 60_000)
    assert recent.isl_tokens == pytest.approx((9 * 1_000 + 10_000) / 10)
    assert traffic.totals.osl_tokens.value == pytest.approx((59 * 200 + 2_000) / 60, rel=0.01)
    assert not Outlook(20.0, 1_000.0, 200.0).is_exceeded_by(recent, 1.0)


def test_growing_lengths_are_a_surge_within_seconds() -> None:
    traffic = make_traffic()
    for second in range(1, 91):
        ingest_second(traffic, second, isl_tokens=1_000.0 if second <= 60 else 50_000.0)
        surge = Outlook(20.0, 1_000.0, 200.0).is_exceeded_by(traffic.recent_arrivals(10_000, T0 + second * 1_000), 1.0)
        assert surge == (second >= 64)
    ingest_second(traffic, 91, isl_tokens=50_000.0)
    assert traffic.buckets[-1].isl_sum == 20 * 50_000.0, "after that time the new lengths count in full"


def test_any_length_of_few_requests_is_accepted() -> None:
    traffic = make_traffic()
    ingest_second(traffic, 1)
    ingest_second(traffic, 2, **LONG)
    assert traffic.buckets[-1].isl_sum == 20 * 1e7
