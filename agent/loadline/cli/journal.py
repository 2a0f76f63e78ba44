"""Implementation of ``loadline replay``, and of ``loadline explain`` from a journal."""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from loadline.adapters.file_journal import read_segments
from loadline.cli import output, progress
from loadline.cli.exit_codes import FAILED
from loadline.core.queries import status as query
from loadline.errors import JournalError
from loadline.runtime import journal_records
from loadline.wire.messages import ExplainReply

_SHOWN_RECORDS: Final = 256
"""Records between two updates of the progress."""


class ReplaySummary(Struct, frozen=True):
    """Result of ``loadline replay``."""

    exact: bool
    difference: str
    """First difference, as a sentence; empty if the replay is exact."""
    segments: int
    turns: int
    effects: int
    decisions: int


def replay(options: argparse.Namespace) -> int:
    """Replay a journal through the core and return the exit code: 0 if all effects are identical byte for byte."""
    result = _replay(options.journal)
    numbers = (
        (result.segments, "segment"),
        (result.turns, "turn"),
        (result.effects, "effect"),
        (result.decisions, "decision"),
    )
    counts = ", ".join(output.plural(count, noun) for count, noun in numbers)
    summary = ReplaySummary(not result.difference, result.difference, *(count for count, _ in numbers))
    if result.difference:
        print(f"loadline: {result.difference}", file=sys.stderr)
    text = f"the replay differs after {counts}" if result.difference else f"the replay is exact: {counts}"
    output.print_result(options, summary, text)
    return 0 if summary.exact else FAILED


def explain(path: Path, decision_id: str, model: str) -> ExplainReply:
    """Explain a decision in a journal; without an id, explain the newest decisions, holds and migrations."""
    controller = _replay(path).controller
    if controller is None:
        return ExplainReply([])
    state = controller.state
    return ExplainReply(query.explain(state, decision_id, model), query.explain_migrations(state, decision_id, model))


def _replay(path: Path) -> journal_records.ReplayResult:
    segments = list(read_segments(path))
    with progress.progress_display(f"replaying {path.name}", "bytes") as on_progress:
        result = journal_records.replay(_watched(segments, on_progress))
    if not result.segments:
        raise JournalError(f"{path}: there is no journal. Is it the folder of `journal.directory`?")
    return result


def _watched(
    segments: Sequence[tuple[Path, Iterable[bytes]]], on_progress: progress.OnProgress
) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield segments, and report the bytes of the records that are taken."""
    sizes = [segment.stat().st_size for segment, _ in segments]

    def taken(records: Iterable[bytes], before: int) -> Iterator[bytes]:
        read = before
        for number, record in enumerate(records):
            read += len(record)
            if number % _SHOWN_RECORDS == 0:
                on_progress(read, sum(sizes))
            yield record

    for index, (segment, records) in enumerate(segments):
        yield str(segment), taken(records, sum(sizes[:index]))
