"""Journal records and their replay.

A segment is JSON Lines: a ``SegmentStart`` (settings and a snapshot of the whole state), then for each turn a
``TurnRecord`` (time and events) and, if the turn had effects, an ``EffectsRecord``. A turn is written before it is
handled, so a replay sees exactly what the core saw.
"""

import contextlib
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

import msgspec
from msgspec import Raw, Struct

from loadline.config.plugins import discover, unknown_planner
from loadline.core.controller import Controller
from loadline.core.planning.planners import PLANNERS
from loadline.core.state.settings import Settings
from loadline.core.vocabulary.effects import AnyEffect, CommitDecision
from loadline.core.vocabulary.events import AnyEvent
from loadline.errors import JournalError

FORMAT = 46
"""Version of the format; increases when fields of records, settings or snapshots, or texts of effects change."""

SnapshotT = TypeVar("SnapshotT")


class SegmentStart(Struct, Generic[SnapshotT], frozen=True, tag="start", tag_field="kind"):
    """First record of a segment. Written with a captured snapshot, read as ``Raw``."""

    format: int
    version: str
    now: int
    continues: bool
    """True if the segment continues the previous one: same process, no record lost between them."""
    settings: Settings
    snapshot: SnapshotT


class _SegmentHeader(Struct, frozen=True, tag="start", tag_field="kind"):
    """Fields that the first record has in every format."""

    format: int
    version: str


class _Beginning(Struct, frozen=True, tag="start", tag_field="kind"):
    """Time of the first record."""

    now: int


class TurnRecord(Struct, frozen=True, tag="turn", tag_field="kind"):
    """Events of a turn at ``now`` (ms)."""

    now: int
    events: list[AnyEvent]


class EffectsRecord(Struct, frozen=True, tag="effects", tag_field="kind"):
    """Effects of the preceding turn."""

    effects: list[AnyEffect]


encode = msgspec.json.Encoder().encode
_headers = msgspec.json.Decoder(_SegmentHeader)
_beginnings = msgspec.json.Decoder(_Beginning)
_records: msgspec.json.Decoder[SegmentStart[Raw] | TurnRecord | EffectsRecord] = msgspec.json.Decoder(
    SegmentStart[Raw] | TurnRecord | EffectsRecord
)


class ReplayResult(Struct):
    """Result of a replay."""

    segments: int = 0
    turns: int = 0
    effects: int = 0
    decisions: int = 0
    difference: str = ""
    """First difference, as a sentence; empty: the replay is exact."""
    controller: Controller | None = None
    now: int = 0
    unconfirmed: bytes | None = None
    """Effects of the last turn that no journal record has confirmed yet."""


class ReplayedTurn(Struct, frozen=True):
    """A turn that was replayed; ``controller`` has the state after it."""

    controller: Controller
    now: int
    events: list[AnyEvent]
    effects: list[AnyEffect]


def replay(segments: Iterable[tuple[str, Iterable[bytes]]]) -> ReplayResult:
    """Drive a fresh controller with the recorded turns and compare every effect byte for byte.

    Args:
        segments: Name and records of each segment, oldest first; may begin with any segment of a journal.

    Raises:
        JournalError: A record is not one of ours.
    """
    found = ReplayResult()
    for _turn in replay_turns(segments, found):
        pass
    return found


def replay_turns(segments: Iterable[tuple[str, Iterable[bytes]]], found: ReplayResult) -> Iterator[ReplayedTurn]:
    """Replay turn by turn, as ``replay``; stop at the first difference, which ``found`` then has.

    Raises:
        JournalError: A record is not one of ours.
    """
    discover()  # the settings may name the planner of a package
    for name, records in segments:
        found.segments += 1
        yield from _replay_segment(name, records, found)
        if found.difference:
            return
    if found.segments and found.controller is None:
        raise JournalError(f"{name}: no whole record: the process ended, or the disk was full, during the first one")


def started_at_ms(record: bytes) -> int:
    """Return the time at which a segment begins, by its first record in any format; 0: it has none."""
    try:
        return _beginnings.decode(record).now
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return 0


def _replay_segment(name: str, records: Iterable[bytes], found: ReplayResult) -> Iterator[ReplayedTurn]:
    """Replay the turns of one segment, up to a difference."""
    for number, line in enumerate(records, start=1):
        place = f"{name}, record {number}"
        record = _parse(line, place)
        if isinstance(record, SegmentStart):
            if _begin(record, place, found):
                return
            continue
        if found.controller is None:
            raise JournalError(f"{place}: a segment must begin with a start record; its beginning may be missing")
        if isinstance(record, TurnRecord):
            if _misses_turn(record, place, found):
                return
            found.turns, found.now = found.turns + 1, record.now
            effects = _handle(found.controller, record, place)
            found.unconfirmed = encode(EffectsRecord(effects)) if effects else None
            found.effects += len(effects)
            found.decisions += sum(isinstance(effect, CommitDecision) for effect in effects)
            yield ReplayedTurn(found.controller, record.now, record.events, effects)
        elif line != found.unconfirmed:
            _differ(found, place, f"the replay gives {_shown(found.unconfirmed)}, the journal has {_shown(line)}")
            return
        else:
            found.unconfirmed = None
    # Effects of the last turn may be missing at the end of a journal: the process ended between the two writes.


def _misses_turn(record: TurnRecord, place: str, found: ReplayResult) -> bool:
    """Return True, and record the difference, if a turn cannot follow the last one."""
    if found.unconfirmed:
        return _differ(found, place, _missing(found.unconfirmed))
    if record.now < found.now:
        return _differ(found, place, f"time goes back by {found.now - record.now} ms")
    return False


def _handle(controller: Controller, turn: TurnRecord, place: str) -> list[AnyEffect]:
    try:
        return controller.handle(turn.events, turn.now)
    except Exception as error:  # the core never raises on purpose, and the turn of any exception must be reported
        what = f"the core raised {type(error).__name__}: {error}, in the turn at {turn.now} ms"
        raise JournalError(f"{place}: {what}. Replay it with the version that wrote it, or report it") from error


def _begin(start: SegmentStart[Raw], place: str, found: ReplayResult) -> bool:
    known = found.controller
    if known is not None and start.continues:
        if found.unconfirmed:
            return _differ(found, place, _missing(found.unconfirmed))
        if not _is_same(known.snapshot(), bytes(start.snapshot)):
            return _differ(
                found, place, "the state that the replay arrived at is not the state that the segment begins with"
            )
        return False
    for model in start.settings.models:
        if model.planner not in PLANNERS:
            problem, remedy = unknown_planner(model.planner)
            raise JournalError(f"{place}: the planner of model {model.name}: {problem}. {remedy}")
    found.controller, found.now, found.unconfirmed = Controller(start.settings), start.now, None
    try:
        found.controller.restore(bytes(start.snapshot))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        problem = f"{place}: the snapshot cannot be read: {error}"
        raise JournalError(f"{problem}. Replay it with the version that wrote it, or report it") from error
    return False


def _is_same(one: bytes, other: bytes) -> bool:
    """Compare two snapshots; a number that was computed as 0 and read again as 0.0 is the same."""
    return one == other or msgspec.json.decode(one) == msgspec.json.decode(other)


def _parse(line: bytes, place: str) -> SegmentStart[Raw] | TurnRecord | EffectsRecord:
    try:
        record = _records.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            _check_format(_headers.decode(line), place)  # rather than name a knob that was another one then
        raise JournalError(f"{place}: not a journal record: {error}") from error
    if isinstance(record, SegmentStart):
        _check_format(record, place)
    return record


def _check_format(start: SegmentStart[Raw] | _SegmentHeader, place: str) -> None:
    if start.format != FORMAT:
        raise JournalError(
            f"{place}: format {start.format} was written by loadline {start.version}; replay it with that"
        )


def _missing(effects: bytes) -> str:
    return f"the replay gives {_shown(effects)}, the journal has no effects"


def _differ(found: ReplayResult, place: str, difference: str) -> bool:
    found.difference = f"{place}: {difference}"
    return True


def _shown(line: bytes | None) -> str:
    if line is None:
        return "no effects"
    text = line.decode(errors="replace")
    return text if len(text) <= 400 else f"{text[:400]}..."  # noqa: PLR2004 - enough to see which effect it is
