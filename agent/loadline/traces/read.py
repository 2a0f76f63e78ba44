"""Reading of traces in all supported formats, detected by the first line."""

from pathlib import Path

from loadline.traces.csv_table import read_header
from loadline.traces.line_reader import BYTE_ORDER_MARK, LineReader, excerpt, open_lines
from loadline.traces.mooncake import json_rows
from loadline.traces.rates import draw
from loadline.traces.requests import azure_rows, seconds_rows
from loadline.traces.selection import Selection, select_requests
from loadline.traces.trace import RateKnobs, Trace, check_knobs

_ENDINGS = (".gz", ".csv", ".jsonl", ".json")


def read_trace(path: Path, *, seed: int = 0, arrivals: RateKnobs = RateKnobs()) -> Trace:  # noqa: B008 - frozen
    """Read a trace, plain or gzipped.

    Formats: CSV with ``arrival_s,isl,osl``; the public Azure CSV with ``TIMESTAMP,ContextTokens,GeneratedTokens``;
    Mooncake JSON Lines; a rate series in CSV with ``t,num_req,mean_isl,mean_osl``.

    Args:
        path: Path of the file, with any name.
        seed: Seed of thinning, of the jitter of copies, and of the requests of a rate series.
        arrivals: Window and scale of the trace, and the arrival process of a rate series.

    Raises:
        DataError: The file cannot be used; the text names file, line and remedy.
        ConfigError: A knob is out of its bounds.
    """
    check_knobs(arrivals)
    with open_lines(path) as lines:
        selection = _select(lines, arrivals, seed)
    return Trace(_name(path), selection.arrivals, selection.duration_s)


def _select(lines: LineReader, knobs: RateKnobs, seed: int) -> Selection:
    first = next(iter(lines), "").removeprefix(BYTE_ORDER_MARK)
    if not first:
        raise lines.error("the file is empty", "Name a trace in CSV or JSON Lines.")
    if first.lstrip().startswith("{"):
        return select_requests(json_rows(lines, first), knobs, seed, lines)
    found = read_header(lines, first)
    if "arrival_s" in found.names:
        return select_requests(seconds_rows(found), knobs, seed, lines)
    if "TIMESTAMP" in found.names:
        return select_requests(azure_rows(found), knobs, seed, lines)
    if "t" in found.names:
        return draw(found, knobs, seed)
    remedy = "Name CSV with the column arrival_s, TIMESTAMP or t, or JSON Lines."
    raise lines.error(f"{excerpt(first)} is not the first line of a known trace format", remedy)


def _name(path: Path) -> str:
    """Return the name of the file without the suffixes of trace formats."""
    name = path.name
    for ending in _ENDINGS:
        name = name.removesuffix(ending)
    return name
