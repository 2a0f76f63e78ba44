"""Implementation of ``loadline replay``, and of ``loadline explain`` from a journal."""

import argparse
import sys
from pathlib import Path

from msgspec import Struct

from loadline.adapters.file_journal import read_segments, with_progress
from loadline.cli import output, progress
from loadline.cli.exit_codes import FAILED
from loadline.core.queries import status as query
from loadline.errors import JournalError
from loadline.formatting import plural
from loadline.runtime import journal_records
from loadline.wire.messages import ExplainReply


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
    counts = ", ".join(plural(count, noun) for count, noun in numbers)
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
    with progress.progress_display(f"replaying {path.name}", "MB") as on_progress:
        segments = with_progress(list(read_segments(path)), on_progress)
        result = journal_records.replay((str(segment), records) for segment, records in segments)
    if not result.segments:
        raise JournalError(f"{path}: there is no journal. Is it the folder of `journal.directory`?")
    return result
