import gzip
from itertools import pairwise
from pathlib import Path

import pytest

from loadline import journal
from loadline.adapters.file_journal import read_segments
from loadline.errors import JournalError
from loadline.web import journal_view
from loadline.web.journal_view import FRAMES_MAX, JournalView
from loadline.web.page_data import DecisionPage

GOLDEN = next(path for path in sorted(Path("tests/golden/journal").rglob("*")) if path.is_file())


def test_any_time_of_a_journal_shows_the_fleet_as_of_then() -> None:
    view = JournalView(GOLDEN)
    middle = (view.span.from_ms + view.span.to_ms) // 2
    for at_ms in (0, view.span.from_ms, middle, view.span.to_ms, view.span.to_ms + 10**9):
        frame = view.frame(at_ms, "")
        assert frame.model is not None
        assert frame.fleet.agent.at_ms <= max(at_ms, frame.history.times_ms[0])
        assert 0 < len(frame.history.times_ms) <= FRAMES_MAX + 2
    assert view.frame(view.span.to_ms, "").fleet.agent.at_ms == view.span.to_ms
    assert view.frame(middle, "no such model").model is not None


def test_decisions_have_the_states_that_they_reached_between_two_frames() -> None:
    """A decision is committed and applied within the 5 s of a frame."""
    view = JournalView(GOLDEN)
    model = view.frame(view.span.to_ms, "")
    assert model.decisions
    shown = {one.decision_id: one.state for name in ("split", "whole") for one in decisions(view, name)}
    rows = {row["id"]: row["outcome"] for row in journal.read(GOLDEN) if row["kind"] == "decision"}
    assert {name: shown[name] for name, outcome in rows.items() if outcome == "applied"} == {
        name: "applied" for name, outcome in rows.items() if outcome == "applied"
    }


def decisions(view: JournalView, model: str) -> list[DecisionPage]:
    return view.frame(view.span.to_ms, model).decisions


def test_the_points_of_a_long_segment_are_apart_as_its_interval_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page draws no line between points that are further apart than four intervals."""
    monkeypatch.setattr(journal_view, "FRAMES_MAX", 4)
    monkeypatch.setattr(journal_view, "FRAME_MS", 100)
    monkeypatch.setattr("loadline.web.history.SPAN_MS", 720)
    history = (view := JournalView(GOLDEN)).frame(view.span.to_ms, "").history
    assert history.interval_ms > 100
    assert all(after - before <= 4 * history.interval_ms for before, after in pairwise(history.times_ms))


def test_a_segment_that_is_compressed_is_named(tmp_path: Path) -> None:
    path = tmp_path / "segment.jsonl.gz"
    path.write_bytes(gzip.compress(GOLDEN.read_bytes()))
    with pytest.raises(JournalError, match="is compressed: unpack it with gunzip first"):
        JournalView(path)


def test_a_segment_that_is_cut_off_shows_what_is_whole(tmp_path: Path) -> None:
    cut = tmp_path / "cut.jsonl"
    data = GOLDEN.read_bytes()
    cut.write_bytes(data[: len(data) * 3 // 4])
    view = JournalView(cut)
    assert view.span.to_ms < JournalView(GOLDEN).span.to_ms


def test_a_damaged_record_is_named_and_the_frames_before_it_are_shown(tmp_path: Path) -> None:
    lines = GOLDEN.read_bytes().splitlines(keepends=True)
    lines[len(lines) // 2] = lines[len(lines) // 2].replace(b'"now":', b'"new":', 1).replace(b"kind", b"kinD", 1)
    damaged = tmp_path / "damaged.jsonl"
    damaged.write_bytes(b"".join(lines))
    view = JournalView(damaged)
    assert f"record {len(lines) // 2 + 1}" in view.frame(view.span.to_ms, "").problem


def test_a_journal_of_another_version_and_no_journal_are_named_errors(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="neither a segment"):
        JournalView(tmp_path / "missing")
    empty = tmp_path / "empty.jsonl"
    empty.write_bytes(b"")
    with pytest.raises(JournalError, match="is empty"):
        JournalView(empty)
    assert len(list(read_segments(GOLDEN))) == 1
