"""Series of requests and lengths from traces of any format, in intervals of one width."""

from pathlib import Path
from typing import Final

from loadline.errors import ConfigError
from loadline.forecast import History, LoadInterval, bin_requests, merge_intervals
from loadline.traces.bins import Bin, read_bins
from loadline.traces.csv_table import read_header
from loadline.traces.line_reader import BYTE_ORDER_MARK, open_lines
from loadline.traces.read import read_trace

INTERVAL_S: Final = 60.0
"""Default width for a request trace."""
_INTERVAL_S_MIN: Final = 1.0
_INTERVAL_S_MAX: Final = 86_400.0
_ROUNDING: Final = 1e-3  # of a bin: times are printed rounded


def read_history(path: Path, interval_s: float | None = None) -> History:
    """Read the load of a trace; the bins of a rate series are used as they are, without drawing requests.

    Args:
        path: The file.
        interval_s: Width of the intervals, for a rate series a multiple of its bins. Unset: 60 s, or one bin.

    Raises:
        DataError: The file cannot be used; the text names file, line and remedy.
        ConfigError: The interval is out of its bounds, or not a multiple of the bins.
    """
    if interval_s is not None and not _INTERVAL_S_MIN <= interval_s <= _INTERVAL_S_MAX:
        raise ConfigError(
            "interval_s", f"is {interval_s:g}", f"Write {_INTERVAL_S_MIN:g} to {_INTERVAL_S_MAX:g} seconds."
        )
    bins = rate_bins(path)
    if bins is not None:
        return _of_bins(bins, interval_s)
    trace = read_trace(path)
    arrivals = ((one.arrival_s, one.isl_tokens, one.osl_tokens) for one in trace.arrivals)
    return bin_requests(arrivals, interval_s or INTERVAL_S, trace.duration_s)


def rate_bins(path: Path) -> list[Bin] | None:
    """Read the bins of a rate series; return None if the file is another kind of trace.

    Raises:
        DataError: The file cannot be used; the text names file, line and remedy.
    """
    with open_lines(path) as lines:
        first = next(iter(lines), "").removeprefix(BYTE_ORDER_MARK)
        if not first or first.lstrip().startswith("{"):
            return None
        found = read_header(lines, first)
        return read_bins(found) if "t" in found.names and "arrival_s" not in found.names else None


def _of_bins(bins: list[Bin], interval_s: float | None) -> History:
    width_s = bins[0].end_s - bins[0].start_s
    together = (interval_s or width_s) / width_s
    if round(together) < 1 or abs(together - round(together)) > _ROUNDING:
        raise ConfigError(
            "interval_s",
            f"is {interval_s:g}, and the bins of the trace are {width_s:g} s wide",
            "Write a multiple of the bins.",
        )
    intervals: list[LoadInterval] = []
    for one in bins:
        # Missing rows of the file are one bin here, as wide as the gap.
        count = round((one.end_s - one.start_s) / width_s)
        intervals += [LoadInterval(one.requests, one.isl_tokens, one.osl_tokens)] * count
    return merge_intervals(intervals, round(width_s * 1_000), round(together))
