"""Implementation of ``loadline replay``, and of ``loadline explain`` from a journal."""

import argparse
import sys
from pathlib import Path

from loadline.adapters.file_journal import read_segments
from loadline.cli.exit_codes import FAILED
from loadline.cli.output import plural
from loadline.core.queries import status as query
from loadline.errors import JournalError
from loadline.runtime import journal_records
from loadline.wire.messages import ExplainReply


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
    if result.difference:
        print(f"loadline: {result.difference}", file=sys.stderr)
        print(f"the replay differs after {counts}")
        return FAILED
    print(f"the replay is exact: {counts}")
    return 0


def explain(path: Path, decision_id: str, model: str) -> ExplainReply:
    """Explain a decision in a journal; without an id, explain the newest decisions, holds and migrations."""
    controller = _replay(path).controller
    if controller is None:
        return ExplainReply([])
    state = controller.state
    return ExplainReply(query.explain(state, decision_id, model), query.explain_migrations(state, decision_id, model))


def _replay(path: Path) -> journal_records.ReplayResult:
    result = journal_records.replay((str(segment), records) for segment, records in read_segments(path))
    if not result.segments:
        raise JournalError(f"{path}: there is no journal. Is it the folder of `journal.directory`?")
    return result
