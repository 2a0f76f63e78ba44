"""Text output shared by commands: escaping, tables, counts and times."""

from collections.abc import Sequence
from datetime import UTC, datetime


def printable(text: str) -> str:
    """Escape control characters, which any publisher on the bus can put into names and details."""
    return "".join(c if c.isprintable() or c == "\n" else f"\\u{ord(c):04x}" for c in text)


def table(rows: Sequence[Sequence[str]]) -> str:
    """Format rows as a table with text aligned left and cells that begin with a digit aligned right."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.rjust(w) if cell[:1].isdigit() else cell.ljust(w) for cell, w in zip(row, widths, strict=True))
        for row in rows
    )


def plural(count: int, noun: str) -> str:
    """Format a count with its noun, such as ``2 workers``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def timestamp(at_ms: int, timespec: str = "seconds") -> str:
    """Format a Unix time in ms as ISO 8601 in UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec=timespec)
