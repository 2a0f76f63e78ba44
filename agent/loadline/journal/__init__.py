"""Decisions, holds and migrations of a journal as rows, for pandas, polars and the like.

A journal has what the agent received; ``read`` replays it, so it needs the version of loadline that wrote it. It holds
one turn in memory, so a journal may have any size.
"""

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from msgspec.structs import asdict

from loadline.adapters.file_journal import OnProgress, no_progress, read_segments, with_progress
from loadline.core.controller import Controller
from loadline.core.vocabulary.history import AnyRecord
from loadline.errors import JournalError
from loadline.journal.rows import Row, rows_of
from loadline.runtime.history import TurnHistory
from loadline.runtime.journal_records import ReplayResult, replay_turns, started_at_ms

__all__ = ["COLUMNS", "JournalCutOff", "JournalError", "Row", "read", "read_rows"]

COLUMNS: Final = Row.__struct_fields__
"""Names of the columns, in order."""


class JournalCutOff(UserWarning):
    """A segment ends within a record, because the process ended or the disk was full; the rows before it are whole."""


def read(path: str | Path, *, model: str = "", since_ms: int = 0) -> Iterator[dict[str, Any]]:
    """Read the history in a journal, one dictionary a row, with the fields of ``Row``.

    A decision, a hold or a migration has its rows once it has ended, so they are in the order of ``ended_at_ms``; those
    that are open at the end of the journal come last.

    Args:
        path: A journal's folder, or one segment.
        model: Only this model; empty: all.
        since_ms: Only what had not ended before this time, in Unix ms.

    Raises:
        JournalError: There is no journal, another version wrote it, or a record was changed. The text names the
            record and the remedy; the rows before it have been returned.
    """
    return map(asdict, read_rows(path, model=model, since_ms=since_ms))


def read_rows(
    path: str | Path, *, model: str = "", since_ms: int = 0, on_progress: OnProgress = no_progress
) -> Iterator[Row]:
    """Read the history in a journal as ``read``, with typed rows, and report the progress."""
    for record in _records(Path(path), since_ms, on_progress):
        for row in rows_of(record):
            if model in {"", row.model} and (row.ended_at_ms is None or row.ended_at_ms >= since_ms):
                yield row


def _records(path: Path, since_ms: int, on_progress: OnProgress) -> Iterator[AnyRecord]:
    """Replay a journal; yield what has ended, then what is open."""
    result, history = ReplayResult(), TurnHistory()
    controller: Controller | None = None
    for turn in replay_turns(_segments(path, since_ms, on_progress), result):
        if turn.controller is not controller:  # the agent was restarted, or has lost records
            yield from history.unfinished()
            controller, history = turn.controller, TurnHistory()
        yield from history.observe(controller.state, turn.events, turn.effects, turn.now)
    yield from history.unfinished()
    if result.difference:
        remedy = "Replay it with the version and the planners that wrote it"
        raise JournalError(f"{result.difference}. {remedy}")
    if not result.segments:
        raise JournalError(f"{path}: there is no journal. Is it the folder of `journal.directory`?")


def _segments(path: Path, since_ms: int, on_progress: OnProgress) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Return the segments from the one on that was being written at ``since_ms``."""
    found = list(read_segments(path, on_torn=_warn))
    if since_ms:
        starts = ((number, next(records, b"")) for number, (_, records) in reversed([*enumerate(read_segments(path))]))
        begin = next((number for number, first in starts if started_at_ms(first) <= since_ms), 0)
        found = found[begin:]
    return ((str(segment), records) for segment, records in with_progress(found, on_progress))


def _warn(segment: Path, records: int) -> None:
    text = f"{segment}: cut off after record {records}, so the end of its history is missing"
    warnings.warn(text, JournalCutOff, stacklevel=2)
