"""The fleet at any time of a journal: segments are indexed by their first records, and replayed when asked for.

A segment begins with a snapshot, so a time is reached by replaying one segment, however long the journal is. The frames
of the segments that were used last stay in memory.
"""

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from loadline.adapters.file_journal import OnProgress, no_progress, read_segments, with_progress
from loadline.core.queries import status as query
from loadline.core.state.explanation_log import EncodedExplanation
from loadline.core.vocabulary.effects import RaiseAlarm
from loadline.core.vocabulary.events import DecisionAnswered, DecisionCommitted
from loadline.core.vocabulary.reasons import Explanation
from loadline.core.vocabulary.status import AgentStatus, DecisionSummary
from loadline.errors import JournalError
from loadline.runtime.journal_records import ReplayedTurn, ReplayResult, replay_turns, started_at_ms
from loadline.web.decision_log import DecisionLog
from loadline.web.history import FleetHistory, HistoryPage
from loadline.web.page_data import DecisionPage, FleetPage, ModelPage, fleet_page, fleet_row, model_page, worker_cell

FRAME_MS: Final = 5_000
"""Minimum time between two frames."""
FRAMES_MAX: Final = 360
"""Frames of a segment: when there are more, every second one is dropped."""
SEGMENTS_MAX: Final = 2
"""Segments whose frames are kept."""


class JournalSpan(Struct, frozen=True):
    """Times that a journal covers."""

    from_ms: int
    to_ms: int


class JournalFrame(Struct, frozen=True):
    """The fleet at a time, a model of it in detail, and its charts up to then."""

    fleet: FleetPage
    model: ModelPage | None
    history: HistoryPage
    decisions: list[DecisionPage]
    problem: str
    """Reason why the rest of the segment cannot be read; empty: it can."""


class _Moment(Struct, frozen=True):
    status: AgentStatus
    holds: dict[str, Explanation | None]
    explanations: tuple[EncodedExplanation, ...]


class _Frames(Struct, frozen=True):
    moments: list[_Moment]
    interval_ms: int
    """Minimum time between two of them."""
    states: list[tuple[int, DecisionSummary]]
    """States of decisions, each with the time at which it began, oldest first; moments miss some."""
    problem: str


class JournalView:
    """Frames of a journal.

    Args:
        path: Folder of a journal, or one segment.
        on_progress: Takes the progress of the replay of the newest segment.

    Raises:
        JournalError: There is no journal, or its newest segment is of another version.
    """

    def __init__(self, path: Path, on_progress: OnProgress = no_progress) -> None:
        found = [(started_at_ms(next(records, b"")), segment) for segment, records in read_segments(path)]
        self._segments = [(at_ms, segment) for at_ms, segment in found if at_ms]
        if not self._segments:
            raise JournalError(f"{path}: no segment has a whole first record")
        self._kept: OrderedDict[Path, _Frames] = OrderedDict()
        self._replaying = threading.Lock()
        newest = self._frames(self._segments[-1][1], on_progress)
        if not newest.moments:
            raise JournalError(newest.problem)
        self.span = JournalSpan(self._segments[0][0], newest.moments[-1].status.at_ms)

    def frame(self, at_ms: int, model: str) -> JournalFrame:
        """Return the fleet at a time, as of the last frame before it.

        Raises:
            JournalError: The segment of that time cannot be read.
        """
        place = max(0, bisect_right(self._segments, at_ms, key=lambda one: one[0]) - 1)
        frames = self._frames(self._segments[place][1])
        if not frames.moments:
            raise JournalError(frames.problem)
        return _frame(frames, at_ms, model)

    def _frames(self, segment: Path, on_progress: OnProgress = no_progress) -> _Frames:
        with self._replaying:  # one replay at a time, whatever is asked for
            found = self._kept.get(segment)
            if found is None:
                found = self._kept[segment] = _replay(segment, on_progress)
                if len(self._kept) > SEGMENTS_MAX:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(segment)
            return found


def _replay(segment: Path, on_progress: OnProgress) -> _Frames:
    """Replay a segment into frames, up to the first record that cannot be read."""
    moments: list[_Moment] = []
    states: list[tuple[int, DecisionSummary]] = []
    frame_ms, result = FRAME_MS, ReplayResult()
    last: ReplayedTurn | None = None
    problem = ""
    try:
        read = with_progress(list(read_segments(segment)), on_progress)
        for turn in replay_turns(((str(path), records) for path, records in read), result):
            last = turn
            states += ((turn.now, one) for one in _changed_decisions(turn))
            if not moments or turn.now - moments[-1].status.at_ms >= frame_ms:
                moments.append(_moment(turn))
                if len(moments) > FRAMES_MAX:
                    moments, frame_ms = moments[::2], 2 * frame_ms
    except JournalError as error:
        problem = str(error)
    if last is not None and last.now > moments[-1].status.at_ms:
        moments.append(_moment(last))
    problem = problem or result.difference or ("" if moments else f"{segment}: no turn is recorded")
    return _Frames(moments, frame_ms, states, problem)


def _changed_decisions(turn: ReplayedTurn) -> Iterator[DecisionSummary]:
    """Yield the decisions in force whose state may have changed in a turn: it was answered, committed or expired."""
    changed = {event.model: None for event in turn.events if isinstance(event, DecisionAnswered | DecisionCommitted)}
    expired = {effect.model: None for effect in turn.effects if isinstance(effect, RaiseAlarm)}
    for model in changed | expired:
        found = query.newest_decision(turn.controller.state, model)
        if found is not None:
            yield found


def _moment(turn: ReplayedTurn) -> _Moment:
    controller = turn.controller
    state = controller.state
    status = query.status(controller.settings, state, "", turn.now, turn.now, controller.planners)
    holds = {name: model.hold for name, model in state.fleet.models.items()}
    return _Moment(status, holds, tuple(state.explanations.entries))


def _frame(frames: _Frames, at_ms: int, name: str) -> JournalFrame:
    """Return what is shown at a time: the last moment before it, and what came before that."""
    moments = frames.moments[: max(1, bisect_right(frames.moments, at_ms, key=lambda one: one.status.at_ms))]
    newest = moments[-1]
    models = {model.model: model for model in newest.status.models}
    shown = models.get(name) or next(iter(models.values()), None)
    history, log = FleetHistory(1), DecisionLog(1)
    page, interval_ms = None, max(history.interval_ms, frames.interval_ms)  # no line is drawn over four of them
    if shown is not None:
        for moment in moments:
            for model in moment.status.models:
                if model.model == shown.model:
                    history.record(model, moment.status.at_ms)
        for began_ms, decision in frames.states:
            if decision.model == shown.model and began_ms <= newest.status.at_ms:
                log.update(shown.model, decision)
        log.update(shown.model, shown.decision)
        log.add(newest.explanations)
        cells = {pool.pool: [*map(worker_cell, pool.workers)] for pool in shown.pools}
        hold = newest.holds.get(shown.model)
        at_ms, revision = newest.status.at_ms, log.revision(shown.model)
        page = model_page(shown, cells, hold, at_ms=at_ms, interval_ms=interval_ms, decisions_revision=revision)
    chosen = "" if shown is None else shown.model
    rows = [fleet_row(model) for model in newest.status.models]
    charts = replace(history.page(chosen), interval_ms=interval_ms)
    return JournalFrame(fleet_page(newest.status, rows), page, charts, log.pages(chosen), frames.problem)
