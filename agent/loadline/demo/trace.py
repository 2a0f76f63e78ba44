"""Playback of a trace from any position, optionally repeated."""

from collections.abc import Iterator
from itertools import islice

from msgspec.structs import replace

from loadline.errors import DataError
from loadline.traces import Arrival, Trace


def play(
    trace: Trace, *, start_s: float = 0.0, speed: int = 1, requests_max: int = 0, repeat: bool = False
) -> Iterator[Arrival]:
    """Return the arrivals from ``start_s`` on, with times relative to it.

    Args:
        trace: The trace.
        start_s: Position in the trace to start from.
        speed: Ratio of the trace's duration to that of the playback, in which one of as many requests arrives, so
            that the rate stays.
        requests_max: Maximum number of arrivals; 0: unlimited.
        repeat: Repeat the trace from its start.

    Raises:
        DataError: The trace ends before ``start_s``, or ``speed`` is below 1.
    """
    if speed < 1:
        raise DataError(f"trace speed {speed}: it cannot pass more slowly than in real time. Name 1 or more.")
    if not 0 <= start_s <= trace.duration_s:
        raise DataError(f"start {start_s} s: the trace is {trace.duration_s:.0f} s long. Start within it.")
    arrivals = islice(_play(trace, start_s, repeat=repeat), 0, None, speed)
    return islice((replace(one, arrival_s=one.arrival_s / speed) for one in arrivals), requests_max or None)


def _play(trace: Trace, start_s: float, *, repeat: bool) -> Iterator[Arrival]:
    offset_s = -start_s
    while True:
        for one in trace.arrivals:
            if one.arrival_s + offset_s >= 0:
                yield replace(one, arrival_s=one.arrival_s + offset_s)
        if not repeat:
            return
        offset_s += max(trace.duration_s, 1.0)
