"""The checks of journals that a long run of faults makes while their agents write."""

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.golden.test_golden import JOURNAL, edit
from tools.process_chaos.journal_checks import JournalChecks, copy_segments

pytestmark = pytest.mark.process


def test_segments_are_copied_until_they_are_whole_and_replayed_once(tmp_path: Path) -> None:
    journal, copy, checks = tmp_path / "agent-1", tmp_path / "copy", JournalChecks()
    journal.mkdir()
    oldest, middle, newest = sorted(JOURNAL.iterdir())
    shutil.copyfile(oldest, journal / oldest.name)
    (journal / middle.name).write_bytes(middle.read_bytes()[:100_000])

    async def scenario() -> None:
        copy_segments(journal, copy)
        assert await checks.replay(copy) == [], "the last record is being written"
        shutil.copyfile(middle, journal / middle.name)
        shutil.copyfile(newest, journal / newest.name)
        copy_segments(journal, copy)
        assert sorted(path.name for path in copy.iterdir()) == [middle.name, newest.name]
        assert await checks.replay(copy) == []

    asyncio.run(scenario())
    assert checks.segments == 2
    assert [path.name for path in copy.iterdir()] == [newest.name]


def test_an_agent_that_is_still_starting_has_no_journal(tmp_path: Path) -> None:
    journal, copy = tmp_path / "agent-1", tmp_path / "copy"
    copy_segments(journal, copy)
    assert asyncio.run(JournalChecks().replay(copy)) == []


def test_a_segment_that_a_full_disk_left_empty_is_not_copied(tmp_path: Path) -> None:
    journal, copy = tmp_path / "agent-1", tmp_path / "copy"
    shutil.copytree(JOURNAL, journal)
    newest = max(journal.iterdir())
    (journal / newest.name.replace("000002", "000003")).touch()
    copy_segments(journal, copy)
    assert max(path.name for path in copy.iterdir()) == newest.name
    assert asyncio.run(JournalChecks().replay(copy)) == []


def test_a_journal_that_is_not_exact_is_named_and_its_copy_kept(tmp_path: Path) -> None:
    journal, copy = tmp_path / "agent-1", tmp_path / "copy"
    shutil.copytree(JOURNAL, journal)
    segment, record = edit(journal, 2, '"lease_id":', '"lease_id":1')
    copy_segments(journal, copy)
    (problem,) = asyncio.run(JournalChecks().replay(copy))
    assert problem.startswith(f"{copy}: ")
    assert f"{Path(segment).name}, record {record}" in problem
    assert len(list(copy.iterdir())) == len(list(journal.iterdir()))


def test_segments_that_were_deleted_before_they_were_copied_are_a_problem(tmp_path: Path) -> None:
    journal, copy = tmp_path / "agent-1", tmp_path / "copy"
    shutil.copytree(JOURNAL, journal)
    sorted(journal.iterdir())[1].unlink()
    copy_segments(journal, copy)
    (problem,) = asyncio.run(JournalChecks().replay(copy))
    assert problem.startswith(f"{copy}: ")
