"""Bins of a rate series, as in the file."""

from collections.abc import Iterator

from msgspec import Struct

from loadline.traces.csv_table import CsvTable
from loadline.traces.trace import TIME_S_MAX, TOKENS_MAX

REQUESTS_PER_BIN_MAX = 1e9  # published bins of 600 s have at most 1.3 million
BINS_MAX = 1_000_000  # a year in bins of 32 s
_WIDTH_S_MIN = 0.001
_ROUNDING = 1e-3  # of a bin: times are printed rounded


class Bin(Struct, frozen=True):
    """Interval of the series with a constant rate."""

    line: int
    start_s: float
    """Start of the bin, since the first bin."""
    end_s: float
    requests: float | None
    """Requests in the bin; None without data."""
    isl_tokens: float | None
    osl_tokens: float | None


class _Row(Struct, frozen=True):
    line: int
    t_s: float
    requests: float | None
    isl_tokens: float | None
    osl_tokens: float | None


def read_bins(table: CsvTable) -> list[Bin]:
    """Read bins from ``t`` (start, s), ``num_req``, ``mean_isl`` and ``mean_osl``, in order and without gaps.

    All bins are as wide as the first. A bin has no data if ``num_req`` is blank or ``gap`` is not 0; missing rows
    become one bin without data.

    Raises:
        DataError: A column is missing, or a row is wrong.
    """
    rows = list(_rows(table))
    if len(rows) < 2:  # noqa: PLR2004 - the distance of two is the width
        raise table.lines.error("there are fewer than two bins", "Name a series; the first two bins give the width.")
    width_s = rows[1].t_s - rows[0].t_s
    bins: list[Bin] = []
    end_s = 0.0
    for row in rows:
        start_s = row.t_s - rows[0].t_s
        left_out = (start_s - end_s) / width_s
        if abs(left_out - round(left_out)) > _ROUNDING:
            problem = f"t is {start_s - end_s:g} s after the end of the previous bin, and bins are {width_s:g} s wide"
            raise table.lines.error(problem, "Make all bins as wide as the first.", row.line)
        if round(left_out) > 0:
            bins.append(Bin(row.line, end_s, start_s, None, None, None))
        end_s = start_s + width_s
        bins.append(Bin(row.line, start_s, end_s, row.requests, row.isl_tokens, row.osl_tokens))
    return bins


def _rows(table: CsvTable) -> Iterator[_Row]:
    names = ("t", "num_req", "mean_isl", "mean_osl")
    t, requests, isl, osl = map(table.column, names)
    gap = table.column("gap") if "gap" in table.names else None
    first_s = before_s = float("-inf")
    for count, cells in enumerate(table.rows(), 1):
        try:
            row = _Row(
                table.lines.number,
                float(cells[t]),
                None if gap is not None and float(cells[gap] or 0) else _number(cells[requests], REQUESTS_PER_BIN_MAX),
                _number(cells[isl], TOKENS_MAX),
                _number(cells[osl], TOKENS_MAX),
            )
        except (ValueError, IndexError) as error:
            raise table.refused(cells, ", ".join(names)) from error
        first_s = row.t_s if count == 1 else first_s
        _check(table, row, first_s, before_s)
        if count > BINS_MAX:
            raise table.lines.error(f"the series has more than {BINS_MAX} bins", "Cut the file.")
        before_s = row.t_s
        yield row


def _number(cell: str, high: float) -> float | None:
    """Parse a number within 0..``high``; return None for a blank cell."""
    if not cell.strip():
        return None
    value = float(cell)
    if not 0 <= value <= high:
        raise ValueError(cell)
    return value


def _check(table: CsvTable, row: _Row, first_s: float, before_s: float) -> None:
    if not (row.t_s >= 0 and row.t_s - first_s <= TIME_S_MAX):
        problem = f"t, {row.t_s} s, is negative, or more than {TIME_S_MAX:.0f} s after the first bin"
        raise table.lines.error(problem, "Write the bin's start in seconds.")
    if row.t_s < before_s + _WIDTH_S_MIN:
        problem = f"t, {row.t_s} s, is not {_WIDTH_S_MIN} s or more after the previous bin, {before_s} s"
        raise table.lines.error(problem, "Sort the series by t, one row per bin.")
    if row.requests and 0 in (row.isl_tokens, row.osl_tokens):
        raise table.lines.error("a mean length is 0 where there are requests", "Write the mean, or leave it blank.")
