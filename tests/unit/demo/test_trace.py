"""Trace of the demo, and its replay."""

import pytest

from loadline.demo.defaults import TRACE
from loadline.demo.trace import play
from loadline.errors import DataError
from loadline.traces import Arrival, Trace, read_trace

THREE = Trace("three", [Arrival(0.0, 1, 1), Arrival(10.0, 2, 1), Arrival(20.0, 3, 1)], 20.0)


def test_the_demo_trace_matches_its_licence_file() -> None:
    trace = read_trace(TRACE)
    assert trace.name == "azure2023_conv"
    assert trace.arrivals[0] == Arrival(0.0, 374, 44)
    assert 2_399 < trace.duration_s < 2_400
    assert len(trace.arrivals) / trace.duration_s == pytest.approx(5.9, abs=0.05)
    assert trace.arrivals == sorted(trace.arrivals, key=lambda one: one.arrival_s)


def test_a_replay_begins_at_the_start_time_and_can_repeat_for_ever() -> None:
    assert [(one.arrival_s, one.isl_tokens) for one in play(THREE, start_s=5.0)] == [(5.0, 2), (15.0, 3)]
    again = list(play(THREE, start_s=15.0, repeat=True, requests_max=5))
    assert [(one.arrival_s, one.isl_tokens) for one in again] == [(5, 3), (5, 1), (15, 2), (25, 3), (25, 1)]


def test_a_faster_trace_has_the_same_rate_and_as_many_fewer_requests() -> None:
    trace = Trace("many", [Arrival(float(at), at + 1, 1) for at in range(100)], 100.0)
    played = list(play(trace, start_s=10.0, speed=10))
    assert [(one.arrival_s, one.isl_tokens) for one in played] == [(float(n), 10 * n + 11) for n in range(9)]
    assert len(list(play(trace, speed=10, requests_max=4))) == 4
    repeated = list(play(trace, speed=10, repeat=True, requests_max=12))
    assert [one.arrival_s for one in repeated] == [float(n) for n in range(12)]


def test_a_trace_speed_below_that_of_the_trace_is_refused() -> None:
    with pytest.raises(DataError, match=r"trace speed 0: .* Name 1 or more"):
        play(THREE, speed=0)


@pytest.mark.parametrize("start_s", [-1.0, 21.0])
def test_a_start_outside_the_trace_is_refused(start_s: float) -> None:
    with pytest.raises(DataError, match="Start within it"):
        play(THREE, start_s=start_s)
