"""Text output of ``loadline history``: two or more lines a row, of at most 80 columns."""

import textwrap
from typing import Final

from loadline.cli.output import timestamp
from loadline.journal import Row

_COLUMNS: Final = 80


def format_row(row: Row) -> str:
    """Format a row: time, kind, place, change and outcome; then the reasons."""
    place = f"{row.model}/{row.pool}" if row.pool else row.model
    time = timestamp(row.at_ms).removesuffix("+00:00")
    title = f"{time}Z  {row.kind}  {place}  {_change(row)}  {_outcome(row)}"
    return "\n".join([*_wrap(title, ""), *_wrap(row.text, "  ")])


def _change(row: Row) -> str:
    if row.kind == "migration":
        return f"{row.source} -> {row.destination} ({row.policy}), {row.moved} of {row.requests} requests"
    if row.previous_replicas == row.replicas:
        return f"{row.replicas} workers"
    return f"{row.previous_replicas} -> {row.replicas} workers"


def _outcome(row: Row) -> str:
    took = "" if row.ended_at_ms is None else f" after {(row.ended_at_ms - row.at_ms) / 1000:.1f} s"
    if row.kind in {"hold", "advice"}:
        return f"for{took.removeprefix(' after')}" if took else "still"
    return f"{row.outcome}{took}"


def _wrap(text: str, indent: str) -> list[str]:
    further = indent + "  "
    return textwrap.wrap(text, _COLUMNS, initial_indent=indent, subsequent_indent=further, break_on_hyphens=False)
