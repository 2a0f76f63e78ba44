"""A trace as the demo plays it: from anywhere in it, and again from the start if wanted."""

from collections.abc import Iterator
from itertools import islice

from msgspec.structs import replace

from loadline.errors import DataError
from loadline.traces import Arrival, Trace


def play(trace: Trace, *, start_s: float = 0.0, requests_max: int = 0, repeat: bool = False) -> Iterator[Arrival]:
    """The arrivals from ``start_s`` on, counted from there.

    Args:
        trace: What is played.
        start_s: Where to begin.
        requests_max: End after so many; 0: with the trace.
        repeat: Begin again at the start of the trace whenever it is over.

    Raises:
        DataError: The trace ends before ``start_s``.
    """
    if not 0 <= start_s <= trace.duration_s:
        raise DataError(f"start {start_s} s: the trace is {trace.duration_s:.0f} s long. Start within it.")
    return islice(_play(trace, start_s, repeat=repeat), requests_max or None)


def _play(trace: Trace, start_s: float, *, repeat: bool) -> Iterator[Arrival]:
    offset_s = -start_s
    while True:
        for one in trace.arrivals:
            if one.arrival_s + offset_s >= 0:
                yield replace(one, arrival_s=one.arrival_s + offset_s)
        if not repeat:
            return
        offset_s += max(trace.duration_s, 1.0)
