"""A trace as the past that a planner starts warm with: intervals as the planner itself would have counted them."""

from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from loadline.core.vocabulary.forecasts import History
from loadline.forecast import LoadInterval, merge_intervals
from loadline.traces.bins import Bin
from loadline.traces.history import rate_bins
from loadline.traces.read import read_trace
from loadline.traces.trace import Trace

_ROUNDING: Final = 1e-6  # of an interval
_HEARD_LEAST: Final = 0.5  # share of an interval that must be known, as of one that a planner hears

Numbers = NDArray[np.float64]


def read_warmup(path: Path, interval_s: float, busiest_s: float) -> History:
    """The load of a trace of any kind, in intervals of which the last ends with the trace.

    An interval of requests counts as busy as its busiest ``busiest_s``. A rate series does not tell how busy that was:
    its bins are spread evenly over the intervals, whatever their widths.

    Raises:
        DataError: The file cannot be used; the text names file, line and remedy.
    """
    bins = rate_bins(path)
    intervals = _of_requests(read_trace(path), interval_s, busiest_s) if bins is None else _of_bins(bins, interval_s)
    return merge_intervals(intervals, round(interval_s * 1_000))


def _of_requests(trace: Trace, interval_s: float, busiest_s: float) -> list[LoadInterval]:
    count = int(trace.duration_s / interval_s + _ROUNDING)
    began_s = trace.duration_s - count * interval_s
    at_s = np.array([one.arrival_s for one in trace.arrivals]) - began_s
    isl = np.array([float(one.isl_tokens) for one in trace.arrivals])
    osl = np.array([float(one.osl_tokens) for one in trace.arrivals])
    # Of the stretch that ends with each arrival: whatever stretch is the busiest, one of these has as much.
    ends = np.arange(1, at_s.size + 1)
    begins = np.searchsorted(at_s, at_s - busiest_s, side="right")
    tokens = np.concatenate(([0.0], isl.cumsum()))
    within = (at_s >= 0.0) & (count > 0)
    number = np.minimum(at_s[within] // interval_s, count - 1).astype(np.int64)
    requests = np.bincount(number, minlength=count).astype(np.float64)
    mean_isl, mean_osl = (
        np.bincount(number, weights=lengths[within], minlength=count) / np.maximum(requests, 1.0)
        for lengths in (isl, osl)
    )
    most_requests, most_tokens = np.zeros(count), np.zeros(count)
    np.maximum.at(most_requests, number, (ends - begins)[within])
    np.maximum.at(most_tokens, number, (tokens[ends] - tokens[begins])[within])
    by_tokens = most_tokens / np.maximum(mean_isl, 1.0)
    busy = np.maximum(requests, np.maximum(most_requests, by_tokens) * interval_s / busiest_s)
    return [_interval(*one) for one in zip(busy.tolist(), mean_isl.tolist(), mean_osl.tolist(), strict=True)]


def _of_bins(bins: list[Bin], interval_s: float) -> list[LoadInterval]:
    duration_s = bins[-1].end_s
    count = int(duration_s / interval_s + _ROUNDING)
    edges_s = duration_s - interval_s * np.arange(count, -1, -1)

    def total(of: list[float]) -> Numbers:
        """Sums of what is spread evenly over the bins, for each interval."""
        sums = np.interp(edges_s, [bins[0].start_s, *(one.end_s for one in bins)], np.cumsum([0.0, *of]))
        return np.diff(sums)

    requests = [one.requests or 0.0 for one in bins]
    heard = total([0.0 if one.requests is None else one.end_s - one.start_s for one in bins]) / interval_s
    counts = total(requests) / np.maximum(heard, _HEARD_LEAST)
    lengths: list[list[float | None]] = []
    for means in ([one.isl_tokens for one in bins], [one.osl_tokens for one in bins]):
        told = [0.0 if mean is None else count for count, mean in zip(requests, means, strict=True)]
        tokens = [0.0 if mean is None else count * mean for count, mean in zip(requests, means, strict=True)]
        sums, weights = total(tokens), total(told)
        lengths.append([float(a / b) if b > 0.0 else None for a, b in zip(sums, weights, strict=True)])
    return [
        _interval(count, isl, osl) if share >= _HEARD_LEAST else LoadInterval(None, None, None)
        for share, count, isl, osl in zip(heard.tolist(), counts.tolist(), *lengths, strict=True)
    ]


def _interval(requests: float, isl: float | None, osl: float | None) -> LoadInterval:
    """Rounded: a past is kept in the journal, and no forecast is that exact."""
    if not requests:
        return LoadInterval(0.0, None, None)
    return LoadInterval(round(requests, 3), *(None if one is None else round(one, 1) for one in (isl, osl)))
