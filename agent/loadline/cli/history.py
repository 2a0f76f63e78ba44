"""Command ``history``: decisions, holds and migrations of a journal, or the latest ones of a running agent."""

import argparse
import csv
import itertools
import re
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, TextIO

import msgspec
from msgspec.structs import astuple

from loadline.cli import output, progress, remote
from loadline.cli.extras import require_extra
from loadline.cli.history_output import format_row
from loadline.cli.history_parquet import write_parquet
from loadline.cli.option_types import name
from loadline.cli.output import printable
from loadline.cli.output_files import check_replaceable
from loadline.journal import COLUMNS, JournalCutOff, Row, read_rows
from loadline.journal.rows import explanation_rows

_UNITS_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def since(text: str) -> int:
    """Read an age, such as ``1h``, or a time in ISO 8601; return Unix time in ms."""
    age = re.fullmatch(r"([0-9]{1,6})([smhd])", text)
    if age is not None:
        return max(0, int(time.time() * 1000) - int(age[1]) * _UNITS_MS[age[2]])
    try:
        at = datetime.fromisoformat(text)
    except ValueError as error:
        wanted = "neither an age such as 30m, 1h or 2d nor a time such as 2026-11-23T21:00:00Z"
        raise argparse.ArgumentTypeError(f"{text!r} is {wanted}") from error
    return max(0, int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000))


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of ``history``; those of the connection are common to all commands that ask an agent."""
    add = parser.add_argument
    add("--journal", type=Path, metavar="PATH", help="read a journal, a folder or one segment, instead of an agent")
    add("--model", type=name, default="", metavar="NAME", help="only this model")
    add("--since", type=since, default=0, metavar="WHEN", help="only what ended since: 30m, 1h, 2d or an ISO 8601 time")
    add("--quiet", action="store_true", help="do not show progress")
    other = output.arguments(parser, "csv")
    other.add_argument(
        "--csv",
        dest="output",
        action="store_const",
        const="csv",
        help="same as --output csv; lists and numbers are JSON",
    )
    other.add_argument("--parquet", type=Path, metavar="FILE", help="write a Parquet file")


def history(options: argparse.Namespace) -> int:
    """Print or write the history."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", JournalCutOff)
        with progress.progress_display("reading the journal", "MB", quiet=options.quiet) as on_progress:
            _write(options, on_progress)
    for warning in caught:
        print(f"loadline: warning: {printable(str(warning.message))}", file=sys.stderr)
    return 0


def _write(options: argparse.Namespace, on_progress: progress.OnProgress) -> None:
    if options.parquet is not None:
        require_extra("--parquet", "parquet", ["pyarrow"])
        check_replaceable("--parquet", options.parquet, _journal_files(options.journal))
        print(f"{write_parquet(_rows(options, on_progress), options.parquet)} rows in {options.parquet}")
        return
    write = {"text": _write_text, "json": _write_json, "csv": _write_csv}[options.output]
    rows = iter(_rows(options, on_progress))
    first = list(itertools.islice(rows, 1))
    if not first:
        of_model = f" of model {options.model}" if options.model else ""
        late = "; leave out --since for what ended earlier" if options.since else ""
        print(f"loadline: no decision, hold or migration{of_model} is recorded{late}", file=sys.stderr)
    write(itertools.chain(first, rows), sys.stdout)


def _journal_files(journal: Path | None) -> dict[Path, str]:
    """Return the files of a journal, which no result may replace."""
    if journal is None:
        return {}
    files = journal.iterdir() if journal.is_dir() else [journal]
    return {file.resolve(): "a file of the journal" for file in files}


def _rows(options: argparse.Namespace, on_progress: progress.OnProgress) -> Iterator[Row]:
    """Return the rows of a journal, or those of the decisions that a running agent remembers, oldest first."""
    if options.journal is not None:
        return read_rows(options.journal, model=options.model, since_ms=options.since, on_progress=on_progress)
    found = remote.explanations(options, options.model)
    chosen = (one for one in reversed(found) if one.at_ms >= options.since)
    return itertools.chain.from_iterable(map(explanation_rows, chosen))


def _write_text(rows: Iterable[Row], out: TextIO) -> None:
    out.writelines(printable(format_row(row)) + "\n" for row in rows)


def _write_json(rows: Iterable[Row], out: TextIO) -> None:
    """Write an array, one row a line."""
    separator = "[\n"
    for row in rows:
        out.write(separator + msgspec.json.encode(row).decode())
        separator = ",\n"
    out.write("\n]\n" if separator == ",\n" else "[]\n")


def _write_csv(rows: Iterable[Row], out: TextIO) -> None:
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(COLUMNS)
    lines.writerows(map(_cell, astuple(row)) for row in rows)


def _cell(value: object) -> object:
    return msgspec.json.encode(value).decode() if isinstance(value, list | dict) else value
