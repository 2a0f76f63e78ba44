"""Output shared by commands: the choice of text or JSON, escaping, tables, counts and times."""

import argparse
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

Options = argparse._MutuallyExclusiveGroup  # noqa: SLF001 - argparse has no public name for what it returns
"""Options of which one may be given."""


def arguments(parser: argparse.ArgumentParser, *formats: str, alias: bool = True) -> Options:
    """Add the option ``--output``, and return the group of the options that exclude it.

    Args:
        parser: Parser of the command.
        formats: Formats in addition to text and JSON.
        alias: True if ``--json`` is short for ``--output json``; without it, ``--json`` may be another option.
    """
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--output", choices=("text", "json", *formats), default="text", help="form of the output (default: text)"
    )
    if alias:
        group.add_argument("--json", dest="output", action="store_const", const="json", help="same as --output json")
    return group


def print_result(options: argparse.Namespace, result: object, text: str) -> None:
    """Print a result as JSON or as text, as ``--output`` says."""
    print(json_text(result) if options.output == "json" else printable(text))


def json_text(result: object) -> str:
    """Format a result as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(result)).decode()


def printable(text: str) -> str:
    """Escape control characters, which any publisher on the bus can put into names and details."""
    return "".join(c if c.isprintable() or c == "\n" else f"\\u{ord(c):04x}" for c in text)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as a table with text aligned left and cells that begin with a digit aligned right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(map(_aligned, row, widths)).rstrip() for row in rows)


def _aligned(cell: str, width: int) -> str:
    return cell.rjust(width) if cell[:1].isdigit() else cell.ljust(width)


def timestamp(at_ms: int, timespec: str = "seconds") -> str:
    """Format a Unix time in ms as ISO 8601 in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec=timespec)
