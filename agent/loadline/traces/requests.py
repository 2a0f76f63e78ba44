"""CSV traces with one request per row, in our columns or in those of the public Azure traces."""

from collections.abc import Callable, Iterator
from datetime import datetime

from loadline.traces.csv_table import CsvTable
from loadline.traces.line_reader import LineReader
from loadline.traces.trace import PREFIX_BLOCK_TOKENS, REQUESTS_MAX, TIME_S_MAX, TOKENS_MAX, Arrival

# Dithered arrivals: a coarse clock (3 s in the Mooncake traces) shows bursts that did not happen.
SPREAD = "arrival_dith_s"


def seconds_rows(table: CsvTable) -> Iterator[Arrival]:
    """Yield rows of ``arrival_s`` (s from the start), ``isl`` and ``osl`` (tokens), sorted by arrival.

    ``arrival_dith_s`` replaces ``arrival_s``, and the rows are sorted by it. ``hit_blocks`` counts leading blocks of
    512 tokens that hit the prefix cache, cut to the prompt. Other columns are ignored.

    Raises:
        DataError: A column is missing, or a row is wrong.
    """
    if SPREAD not in table.names:
        yield from _rows(table, ("arrival_s", "isl", "osl"), float)
        return
    arrivals: list[Arrival] = []
    for one in _rows(table, (SPREAD, "isl", "osl"), float, ordered=False):
        arrivals.append(one)
        if len(arrivals) > REQUESTS_MAX:
            raise table.lines.error(f"the file has more than {REQUESTS_MAX} requests", "Cut the file.")
    yield from sorted(arrivals, key=lambda one: one.arrival_s)


def azure_rows(table: CsvTable) -> Iterator[Arrival]:
    """Yield rows of ``TIMESTAMP``, ``ContextTokens`` and ``GeneratedTokens``, sorted by time.

    Times are ISO 8601, in all rows with an offset from UTC or in none. Arrivals are relative to the first row.

    Raises:
        DataError: A column is missing, or a row is wrong.
    """
    first: list[datetime] = []

    def since_first(text: str) -> float:
        moment = datetime.fromisoformat(text)
        if not first:
            first.append(moment)
        return (moment - first[0]).total_seconds()

    return _rows(table, ("TIMESTAMP", "ContextTokens", "GeneratedTokens"), since_first)


def check_arrival(lines: LineReader, one: Arrival, before_s: float) -> None:
    """Check a request against its bounds and the previous arrival.

    Raises:
        DataError: A value is out of bounds, or the arrival is earlier than the previous one.
    """
    if one.arrival_s < before_s:
        problem = f"the arrival, {one.arrival_s} s, is earlier than the previous one, {before_s} s"
        raise lines.error(problem, "Sort the trace by arrival.")
    if not 0 <= one.arrival_s <= TIME_S_MAX:
        remedy = "Count from the start of the trace."
        raise lines.error(f"the arrival, {one.arrival_s} s, is not within 0..{TIME_S_MAX:.0f} s", remedy)
    if not (1 <= one.isl_tokens <= TOKENS_MAX and 1 <= one.osl_tokens <= TOKENS_MAX):
        problem = f"the lengths, {one.isl_tokens} and {one.osl_tokens} tokens, are not within 1..{TOKENS_MAX}"
        raise lines.error(problem, "Drop the line.")
    if one.hit_tokens < 0:
        raise lines.error("hit_blocks is negative", "Write 0 where nothing had been seen before.")


def _rows(
    table: CsvTable, names: tuple[str, str, str], seconds: Callable[[str], float], *, ordered: bool = True
) -> Iterator[Arrival]:
    time, isl, osl = map(table.column, names)
    hits = table.column("hit_blocks") if "hit_blocks" in table.names else None
    before_s = float("-inf")
    for row in table.rows():
        try:
            isl_tokens = int(row[isl])
            hit_tokens = 0 if hits is None else min(int(row[hits]) * PREFIX_BLOCK_TOKENS, isl_tokens)
            one = Arrival(seconds(row[time]), isl_tokens, int(row[osl]), (), hit_tokens)
        except (ValueError, IndexError, TypeError) as error:  # mixing times with and without an offset is a TypeError
            raise table.refused(row, ", ".join(names)) from error
        check_arrival(table.lines, one, before_s)
        if ordered:
            before_s = one.arrival_s
        yield one
