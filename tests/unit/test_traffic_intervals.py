"""Frontends that report at paces of their own add up to the truth."""

import pytest

from loadline.core.belief.traffic import Traffic
from loadline.core.events import TrafficReported
from loadline.core.observed import TrafficSample

T0 = 1_700_000_000_000
PLANNED_S = 180


def traffic() -> Traffic:
    return Traffic(window_ms=60_000, frontends_max=8, stale_after_ms=5_000)


def tell(belief: Traffic, frontend: str, interval_ms: int, now: int, requests_per_s: float = 20.0) -> None:
    arrivals = round(requests_per_s * interval_ms / 1_000.0)
    sample = TrafficSample(now - T0 + 1, interval_ms, arrivals, arrivals, isl_tokens=1_000.0, osl_tokens=200.0)
    assert belief.apply(TrafficReported("m", frontend, 1, sample), now) is None


def play(belief: Traffic, seconds: int, *intervals_s: int, since_s: int = 0) -> int:
    """Frontends of these intervals, each of 20 requests a second."""
    for second in range(since_s + 1, since_s + seconds + 1):
        for interval_s in intervals_s:
            if second % interval_s == 0:
                tell(belief, f"every {interval_s} s", interval_s * 1_000, T0 + second * 1_000)
    return T0 + (since_s + seconds) * 1_000


@pytest.mark.parametrize("intervals_s", [(1,), (2,), (6,), (30,), (60,), (1, 6), (1, 30), (1, 60), (6, 30, 60)])
def test_rates_add_up(intervals_s: tuple[int, ...]) -> None:
    belief = traffic()
    mark_ms = play(belief, PLANNED_S, *intervals_s)
    mark, truth = belief.totals, 20.0 * len(intervals_s)
    assert belief.heard(mark_ms)
    now = play(belief, PLANNED_S, *intervals_s, since_s=PLANNED_S)
    assert belief.totals.since(mark).requests_per_s == pytest.approx(truth, rel=0.03)
    assert belief.recent(30_000, now).requests_per_s == pytest.approx(truth, rel=0.05)
    assert belief.status(now).requests_per_s == pytest.approx(truth, rel=0.05)
    assert belief.recent(10_000, now).span_ms == pytest.approx(10_000, abs=1_000)
    assert len(belief.buckets) <= 62


def test_between_two_reports_a_slow_frontend_is_not_silent() -> None:
    belief = traffic()
    now = play(belief, 60, 1, 20)
    assert belief.complete(now + 5_000)
    tell(belief, "every 1 s", 1_000, now + 40_000)
    assert belief.complete(now + 40_000), "a report may be lost"
    assert not belief.complete(now + 40_001)
    assert belief.heard(now + 45_000)
    assert not belief.heard(now + 45_001)


@pytest.mark.parametrize("frontend", ["every 1 s", "another"])
def test_a_backlog_of_an_hour_is_no_surge(frontend: str) -> None:
    belief = traffic()
    mark, now = belief.totals, play(belief, 120, 1)
    tell(belief, frontend, 3_600_000, now + 500)
    assert belief.recent(10_000, now + 500).requests_per_s <= 42.0
    now = play(belief, 60, 1, since_s=120)
    assert belief.totals.since(mark).requests_per_s <= 20.0 * 4 / 3


def test_a_backlog_after_a_silence_counts_at_its_own_rate() -> None:
    belief = traffic()
    mark = belief.totals
    tell(belief, "f", 3_600_000, T0)
    assert belief.totals.since(mark).requests_per_s == belief.recent(60_000, T0).requests_per_s == 20.0
    assert belief.status(T0).requests_per_s == pytest.approx(20.0, rel=0.02)


def test_what_has_no_output_says_nothing_of_outputs() -> None:
    belief = traffic()
    now = play(belief, 10, 1)
    failed = TrafficSample(90_000, 1_000, 20, 20, isl_tokens=1_000.0, osl_tokens=0.0)
    belief.apply(TrafficReported("m", "every 1 s", 1, failed), now + 1_000)
    assert (belief.totals.osl_tokens.value, belief.totals.completed) == (200.0, 220)
    assert belief.status(now + 1_000).osl_tokens == 200.0
