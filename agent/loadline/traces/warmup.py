"""Warm-up history from a trace: intervals as the planner would have counted them."""

from pathlib import Path
from typing import Final

import numpy as np

from loadline.core.engines.arrays import FloatArray
from loadline.core.vocabulary.forecasts import History
from loadline.forecast import LoadInterval, merge_intervals
from loadline.traces.bins import Bin
from loadline.traces.history import rate_bins
from loadline.traces.read import read_trace
from loadline.traces.trace import Trace

_ROUNDING: Final = 1e-6  # of an interval
_KNOWN_MIN: Final = 0.5  # fraction of an interval that must be known, as for the planner


def read_warmup(path: Path, interval_s: float, busiest_s: float) -> History:
    """Read the load of a trace in intervals, of which the last ends with the trace.

    Requests of an interval are extrapolated from its busiest ``busiest_s``. The bins of a rate series, which lack that
    detail, are spread evenly over the intervals.

    Raises:
        DataError: The file cannot be used; the text names file, line and remedy.
    """
    bins = rate_bins(path)
    intervals = (
        _intervals_of_requests(read_trace(path), interval_s, busiest_s)
        if bins is None
        else _intervals_of_bins(bins, interval_s)
    )
    return merge_intervals(intervals, round(interval_s * 1_000))


def _intervals_of_requests(trace: Trace, interval_s: float, busiest_s: float) -> list[LoadInterval]:
    count = int(trace.duration_s / interval_s + _ROUNDING)
    began_s = trace.duration_s - count * interval_s
    at_s = np.array([one.arrival_s for one in trace.arrivals]) - began_s
    isl = np.array([float(one.isl_tokens) for one in trace.arrivals])
    osl = np.array([float(one.osl_tokens) for one in trace.arrivals])
    # Sums over the window that ends with each arrival, of which one is a busiest window.
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
    peak_requests, peak_tokens = np.zeros(count), np.zeros(count)
    np.maximum.at(peak_requests, number, (ends - begins)[within])
    np.maximum.at(peak_tokens, number, (tokens[ends] - tokens[begins])[within])
    by_tokens = peak_tokens / np.maximum(mean_isl, 1.0)
    busy = np.maximum(requests, np.maximum(peak_requests, by_tokens) * interval_s / busiest_s)
    return [_interval(*one) for one in zip(busy.tolist(), mean_isl.tolist(), mean_osl.tolist(), strict=True)]


def _intervals_of_bins(bins: list[Bin], interval_s: float) -> list[LoadInterval]:
    duration_s = bins[-1].end_s
    count = int(duration_s / interval_s + _ROUNDING)
    edges_s = duration_s - interval_s * np.arange(count, -1, -1)

    def total(values: list[float]) -> FloatArray:
        """Sum values that are spread evenly over the bins, by interval."""
        sums = np.interp(edges_s, [bins[0].start_s, *(one.end_s for one in bins)], np.cumsum([0.0, *values]))
        return np.diff(sums)

    requests = [one.requests or 0.0 for one in bins]
    known = total([0.0 if one.requests is None else one.end_s - one.start_s for one in bins]) / interval_s
    counts = total(requests) / np.maximum(known, _KNOWN_MIN)
    lengths: list[list[float | None]] = []
    for means in ([one.isl_tokens for one in bins], [one.osl_tokens for one in bins]):
        counted = [0.0 if mean is None else count for count, mean in zip(requests, means, strict=True)]
        tokens = [0.0 if mean is None else count * mean for count, mean in zip(requests, means, strict=True)]
        sums, weights = total(tokens), total(counted)
        lengths.append([float(a / b) if b > 0.0 else None for a, b in zip(sums, weights, strict=True)])
    return [
        _interval(count, isl, osl) if share >= _KNOWN_MIN else LoadInterval(None, None, None)
        for share, count, isl, osl in zip(known.tolist(), counts.tolist(), *lengths, strict=True)
    ]


def _interval(requests: float, isl: float | None, osl: float | None) -> LoadInterval:
    """Round values, since the history is written to the journal and forecasts are less exact."""
    if not requests:
        return LoadInterval(0.0, None, None)
    return LoadInterval(round(requests, 3), *(None if one is None else round(one, 1) for one in (isl, osl)))
