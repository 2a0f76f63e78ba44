"""Replay of a journal: exact if it is unchanged, and a reported difference for every change."""

from collections.abc import Callable

import msgspec
import pytest

from loadline.core.controller import Controller
from loadline.core.vocabulary import events as ev
from loadline.errors import JournalError
from loadline.runtime import journal_records
from tests.support.segments import single_agent

Segments = list[list[bytes]]


@pytest.fixture(scope="module")
def recorded() -> Segments:
    """Record three segments of one agent, with decisions and drains."""
    world, _, segments = single_agent(10, (0.0, 40_000.0, 80_000.0))
    world.demand.update({("split", "prefill"): 2.5, ("split", "decode"): 2.5, ("whole", "both"): 2.5})
    world.timeline.call_at(50_000.0, lambda: world.demand.update(dict.fromkeys(world.demand, 0.1)))
    world.timeline.run_until(118_500.0)
    assert len(segments.kept) == 3
    return segments.kept


def replay(segments: Segments) -> journal_records.ReplayResult:
    return journal_records.replay((f"segment {number}", list(segment)) for number, segment in enumerate(segments))


def copy(segments: Segments) -> Segments:
    return [list(segment) for segment in segments]


def effects_at(segments: Segments, kind: str) -> list[tuple[int, int]]:
    """Return segment and line of the records with a kind of effect."""
    found = [
        (number, line)
        for number, segment in enumerate(segments)
        for line, content in enumerate(segment)
        if content.startswith(b'{"kind":"effects"') and kind.encode() in content
    ]
    assert found, f"the journal has no {kind}"
    return found


def test_a_journal_replays_exactly(recorded: Segments) -> None:
    found = replay(recorded)
    turns = sum(line.startswith(b'{"kind":"turn"') for segment in recorded for line in segment)
    assert (found.difference, found.segments, found.turns) == ("", 3, turns)
    assert found.decisions >= 3
    assert found.effects > found.decisions
    assert found.controller is not None
    drains = found.controller.state.drains
    assert drains.finished or drains.open


@pytest.mark.parametrize("first", [1, 2])
def test_a_replay_may_begin_with_any_segment(recorded: Segments, first: int) -> None:
    found = replay(recorded[first:])
    assert (found.difference, found.segments) == ("", 3 - first)


def test_an_empty_journal_is_refused() -> None:
    found = replay([])
    assert (found.segments, found.controller, found.difference) == (0, None, "")


# -- changed records ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"replicas":3', b'"replicas":4'),
        (b'"epoch":', b'"epoch":9'),
        (b'"expires_at_ms":1', b'"expires_at_ms":2'),
        (b'"expected_revision":', b'"expected_revision":7'),
        (b'"scope":"all"', b'"scope": "all"'),
    ],
)
def test_a_changed_effect(recorded: Segments, old: bytes, new: bytes) -> None:
    segments = copy(recorded)
    number, line = next((n, k) for n, k in effects_at(segments, "CommitDecision") if old in segments[n][k])
    segments[number][line] = segments[number][line].replace(old, new, 1)
    difference = replay(segments).difference
    assert difference.startswith(f"segment {number}, record {line + 1}: ")
    assert "the journal has" in difference


@pytest.mark.parametrize("kind", ["CommitDecision", "AnnounceDecision", "SendDrain", "RenewLease", "Campaign"])
def test_missing_effects(recorded: Segments, kind: str) -> None:
    for number, line in effects_at(recorded, kind):
        segments = copy(recorded)
        del segments[number][line]
        assert replay(segments).difference, f"{kind} in segment {number}, record {line + 1}"


def test_repeated_effects(recorded: Segments) -> None:
    segments = copy(recorded)
    number, line = effects_at(segments, "CommitDecision")[0]
    segments[number].insert(line, segments[number][line])
    assert replay(segments).difference.startswith(f"segment {number}, record {line + 2}: ")


def test_a_missing_turn(recorded: Segments) -> None:
    for number, line in effects_at(recorded, '"type"'):
        segments = copy(recorded)
        del segments[number][line - 1]
        assert replay(segments).difference.startswith(f"segment {number}, record {line}: "), (
            "the effects of the missing turn remain"
        )


def test_a_missing_turn_without_effects_is_found_at_the_next_segment(recorded: Segments) -> None:
    segments = copy(recorded)
    line = next(k for k, content in reversed(list(enumerate(segments[0]))) if b"LoadReported" in content)
    assert not segments[0][line + 1 :][:1] or not segments[0][line + 1].startswith(b'{"kind":"effects"')
    del segments[0][line]
    assert "the state that the replay arrived at" in replay(segments).difference


def test_reordered_turns(recorded: Segments) -> None:
    segments = copy(recorded)
    commits = effects_at(segments, "CommitDecision")
    number, line = next((n, k) for n, k in commits if segments[n][k - 2].startswith(b'{"kind":"turn"'))
    turn, before = line - 1, line - 2
    segments[number][turn], segments[number][before] = segments[number][before], segments[number][turn]
    assert replay(segments).difference.startswith(f"segment {number}, record {line}: ")


def test_decreasing_times(recorded: Segments) -> None:
    segments = copy(recorded)
    turns = [k for k, content in enumerate(segments[2]) if content.startswith(b'{"kind":"turn"')]
    segments[2] = [*segments[2][: turns[-1] + 1], segments[2][turns[-2]]]
    assert "time goes back" in replay(segments).difference


def changed_turn(change: Callable[[ev.LoadReported], ev.LoadReported]) -> Callable[[bytes], bytes]:
    def edit(line: bytes) -> bytes:
        turn = msgspec.json.decode(line, type=journal_records.TurnRecord)
        events = [change(event) if isinstance(event, ev.LoadReported) else event for event in turn.events]
        return journal_records.encode(journal_records.TurnRecord(turn.now, events))

    return edit


def test_a_changed_event(recorded: Segments) -> None:
    segments = copy(recorded)

    def idle(event: ev.LoadReported) -> ev.LoadReported:
        samples = [msgspec.structs.replace(s, kv_blocks_used=0, waiting_requests=0) for s in event.samples]
        return msgspec.structs.replace(event, samples=samples)

    segments[0] = [changed_turn(idle)(c) if c.startswith(b'{"kind":"turn"') else c for c in segments[0]]
    assert replay(segments).difference


def test_a_changed_snapshot(recorded: Segments) -> None:
    segments = copy(recorded)
    segments[1][0] = segments[1][0].replace(b'"registry_read":true', b'"registry_read":false')
    assert replay(segments).difference.startswith("segment 1, record 1: the state that the replay arrived at")


def test_a_number_that_was_computed_as_an_integer_is_no_difference(recorded: Segments) -> None:
    """One that was written as 0 is 0.0 after it was read again, as in a replay that begins with a later segment."""
    segments = copy(recorded)
    number = segments[1][0].index(b'":0.0', segments[1][0].index(b'"snapshot":'))
    segments[1][0] = segments[1][0][: number + 3] + segments[1][0][number + 5 :]
    assert replay(segments).difference == ""


def test_a_missing_segment(recorded: Segments) -> None:
    assert "the state that the replay arrived at" in replay([recorded[0], recorded[2]]).difference


# -- incomplete journals -----------------------------------------------------------------------------------------------


def test_an_incomplete_last_turn_is_accepted(recorded: Segments) -> None:
    number, line = effects_at(recorded, "CommitDecision")[-1]
    torn = [*recorded[:number], recorded[number][:line]]
    assert replay(torn).difference == "", "the process ended between a turn and its effects"


def test_missing_effects_at_the_end_of_a_segment_that_continues() -> None:
    world, _, recording = single_agent(3, (0.0, 1.0))
    world.timeline.run_until(100.0)
    assert recording.kept[0][-1].startswith(b'{"kind":"effects"'), "the turn of the first campaign"
    segments = copy(recording.kept)
    assert len(segments) == 2
    assert replay(segments).difference == ""
    del segments[0][-1]
    assert replay(segments).difference.startswith("segment 1, record 1: ")


def test_the_replay_starts_again_after_a_gap(recorded: Segments) -> None:
    segments = copy(recorded)
    start = segments[2][0]
    segments[2][0] = start.replace(b'"continues":true', b'"continues":false')
    assert segments[2][0] != start
    del segments[1][20:]
    assert replay(segments).difference == ""


@pytest.mark.parametrize(
    ("line", "what"),
    [
        (b"", "not a journal record"),
        (b"{", "not a journal record"),
        (b"\xff\xfe", "not a journal record"),
        (b"[" * 100_000, "not a journal record"),
        (b'{"kind":"turn","now":1,"events":[{"type":"Nonsense"}]}', "not a journal record"),
        (b'{"kind":"other"}', "not a journal record"),
    ],
)
def test_an_invalid_record_is_reported(recorded: Segments, line: bytes, what: str) -> None:
    with pytest.raises(JournalError, match=f"^segment 0, record 3: {what}"):
        replay([[*recorded[0][:2], line]])


def test_a_segment_without_its_first_record(recorded: Segments) -> None:
    with pytest.raises(JournalError, match="record 1: a segment must begin with a start record"):
        replay([recorded[0][1:]])


@pytest.mark.parametrize("renamed", [b"stabilisation_ms", b'"snapshot"'])
def test_another_format_is_refused_for_any_fields(recorded: Segments, renamed: bytes) -> None:
    start = recorded[0][0]
    assert renamed in start
    start = start.replace(renamed, renamed.replace(b"s", b"z", 1))
    with pytest.raises(JournalError, match="not a journal record"):
        replay([[start]])
    with pytest.raises(JournalError, match="format 99 was written by loadline sim"):
        replay([[start.replace(b'"format":%d' % journal_records.FORMAT, b'"format":99')]])


def test_a_snapshot_of_another_version_is_refused(recorded: Segments) -> None:
    with pytest.raises(JournalError, match="the snapshot cannot be read"):
        replay([[recorded[0][0].replace(b'"phase":"follower"', b'"phase":7')]])


def test_a_snapshot_whose_text_is_not_utf_8_is_refused(recorded: Segments) -> None:
    with pytest.raises(JournalError, match=r"the snapshot cannot be read: .*utf-8"):
        replay([[recorded[0][0].replace(b'"phase":"follower"', b'"phase":"\xd8"')]])


def test_a_snapshot_of_other_settings_is_refused(recorded: Segments) -> None:
    start = msgspec.json.decode(recorded[0][0])
    names = [model["name"] for model in start["settings"]["models"]]
    start["settings"]["models"] = []
    with pytest.raises(JournalError, match=f"the snapshot cannot be read: the settings lack its models {names[0]}"):
        replay([[msgspec.json.encode(start)]])


def test_a_turn_in_which_the_core_raises_is_reported(recorded: Segments, monkeypatch: pytest.MonkeyPatch) -> None:
    def raises(_self: Controller, _events: object, _now: int) -> None:
        raise ZeroDivisionError("float division by zero")

    monkeypatch.setattr(Controller, "handle", raises)
    now = msgspec.json.decode(recorded[0][1], type=journal_records.TurnRecord).now
    expected = (
        f"segment 0, record 2: the core raised ZeroDivisionError: float division by zero, in the turn at {now} ms"
    )
    with pytest.raises(JournalError, match=expected):
        replay(recorded)
