"""Request traces: CSV with ``arrival_s`` (s from the start), ``isl`` and ``osl`` (tokens), sorted by arrival."""

import csv
import gzip
import io
import math
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import TextIO

from msgspec import Struct

from loadline.errors import DataError

ROWS_MAX = 2_000_000  # a million requests take about 200 MB
TOKENS_MAX = 1_000_000
LINE_CHARACTERS_MAX = 1_000
LOAD_MAX = 1_000
# Copies are spread by this much: enough to take a burst of single requests apart, too little to move a wave of minutes.
JITTER_S = 5.0


class Arrival(Struct, frozen=True, order=True):
    """One request of a trace."""

    arrival_s: float
    isl_tokens: int
    osl_tokens: int


def read_trace(path: Path) -> list[Arrival]:
    """Read a trace, plain or gzipped.

    Raises:
        DataError: The file cannot be read, or a line is wrong; the text names file, line and remedy.
    """
    arrivals: list[Arrival] = []
    line = 1
    try:
        with _open(path) as file:
            columns = _columns(path, _next_line(path, file, line))
            while text := _next_line(path, file, line := line + 1):
                if line - 1 > ROWS_MAX:
                    raise DataError(f"{path}, line {line}: more than {ROWS_MAX} requests. Cut the trace.")
                arrivals.append(_arrival(f"{path}, line {line}", text, columns, arrivals[-1] if arrivals else None))
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise DataError(f"{path}, line {line}: cannot be read ({error}). Name a CSV or CSV.gz file.") from error
    if not arrivals:
        raise DataError(f"{path}, line 2: there are no requests. Name a trace with at least one.")
    return arrivals


def superpose(arrivals: list[Arrival], load: int, seed: int = 0) -> list[Arrival]:
    """``load`` copies of a trace in one; all but the first are jittered by up to 5 s a request, from the seed.

    Raises:
        DataError: The load is not within 1..1000.
    """
    if not 1 <= load <= LOAD_MAX:
        raise DataError(f"load {load}: not within 1..{LOAD_MAX}. Give the number of copies of the trace.")
    rng = random.Random(seed)  # noqa: S311 - a repeatable spread, no secret
    copies = list(arrivals)
    for _ in range(load - 1):
        for one in arrivals:
            moved_s = max(0.0, one.arrival_s + rng.uniform(-JITTER_S, JITTER_S))
            copies.append(Arrival(moved_s, one.isl_tokens, one.osl_tokens))
    return sorted(copies)


def play(
    arrivals: list[Arrival], *, start_s: float = 0.0, requests_max: int = 0, repeat: bool = False
) -> Iterator[Arrival]:
    """The arrivals from ``start_s`` on, counted from there.

    Args:
        arrivals: The trace, sorted.
        start_s: Where to begin.
        requests_max: End after so many; 0: with the trace.
        repeat: Begin again at the start of the trace whenever it is over.

    Raises:
        DataError: The trace ends before ``start_s``.
    """
    length_s = arrivals[-1].arrival_s
    if not 0 <= start_s <= length_s:
        raise DataError(f"start {start_s} s: the trace is {length_s:.0f} s long. Start within it.")
    return islice(_play(arrivals, length_s, start_s, repeat=repeat), requests_max or None)


def _play(arrivals: list[Arrival], length_s: float, start_s: float, *, repeat: bool) -> Iterator[Arrival]:
    offset_s = -start_s
    while True:
        for one in arrivals:
            if one.arrival_s + offset_s >= 0:
                yield Arrival(one.arrival_s + offset_s, one.isl_tokens, one.osl_tokens)
        if not repeat:
            return
        offset_s += max(length_s, 1.0)


def _open(path: Path) -> TextIO:
    if path.suffix == ".gz":
        return io.TextIOWrapper(gzip.open(path, "rb"), encoding="utf-8", newline="")
    return path.open(encoding="utf-8", newline="")


def _next_line(path: Path, file: TextIO, line: int) -> str:
    """The next line, empty at the end; a line is bounded, so that a file without newlines cannot fill the memory."""
    text = file.readline(LINE_CHARACTERS_MAX)
    if len(text) == LINE_CHARACTERS_MAX:
        raise DataError(f"{path}, line {line}: longer than {LINE_CHARACTERS_MAX} characters. Name a trace in CSV.")
    return text


def _columns(path: Path, header: str) -> tuple[int, int, int]:
    names = next(csv.reader([header]), [])
    missing = [name for name in ("arrival_s", "isl", "osl") if name not in names]
    if missing:
        raise DataError(f"{path}, line 1: column {missing[0]!r} is missing. The header needs arrival_s, isl and osl.")
    return names.index("arrival_s"), names.index("isl"), names.index("osl")


def _arrival(place: str, text: str, columns: tuple[int, int, int], before: Arrival | None) -> Arrival:
    at, isl, osl = columns
    try:
        row = next(csv.reader([text]))
        one = Arrival(float(row[at]), int(row[isl]), int(row[osl]))
    except (ValueError, IndexError, StopIteration, csv.Error) as error:
        raise DataError(f"{place}: {text.strip()[:80]!r} is no request. Write seconds, tokens, tokens.") from error
    if not (math.isfinite(one.arrival_s) and one.arrival_s >= (before.arrival_s if before else 0.0)):
        raise DataError(f"{place}: arrival_s {one.arrival_s} is earlier than the line before. Sort by arrival_s.")
    if not (1 <= one.isl_tokens <= TOKENS_MAX and 1 <= one.osl_tokens <= TOKENS_MAX):
        raise DataError(f"{place}: isl and osl must be within 1..{TOKENS_MAX}. Drop the line.")
    return one
