"""The checks of journals that a long run of faults makes while their agents write."""

import asyncio
import shutil
from pathlib import Path

import pytest

from tests.golden.test_golden import JOURNAL, edit
from tools.process_chaos.journal_checks import JournalChecks

pytestmark = pytest.mark.process


def test_a_journal_is_replayed_each_time_and_its_segments_counted_once(tmp_path: Path) -> None:
    journal, checks = tmp_path / "agent-1", JournalChecks()
    shutil.copytree(JOURNAL, journal)
    oldest = min(journal.iterdir())

    async def scenario() -> None:
        assert await checks.check(journal, tmp_path / "copies" / "agent-1-1") == []
        oldest.unlink()  # its agent makes room
        assert await checks.check(journal, tmp_path / "copies" / "agent-1-2") == []

    asyncio.run(scenario())
    assert checks.segments == len(list(JOURNAL.iterdir()))
    assert list((tmp_path / "copies").iterdir()) == []


def test_a_journal_that_is_not_exact_is_named_and_its_copy_kept(tmp_path: Path) -> None:
    journal, copy = tmp_path / "agent-1", tmp_path / "copies" / "agent-1-1"
    shutil.copytree(JOURNAL, journal)
    segment, record = edit(journal, 2, '"lease_id":', '"lease_id":1')
    (problem,) = asyncio.run(JournalChecks().check(journal, copy))
    assert problem.startswith(f"{copy}: ")
    assert f"{Path(segment).name}, record {record}" in problem
    assert (copy / Path(segment).name).read_bytes() == Path(segment).read_bytes()


def test_segments_that_were_deleted_between_two_checks_are_a_problem(tmp_path: Path) -> None:
    journal, checks = tmp_path / "agent-1", JournalChecks()
    oldest, _, newest = sorted(JOURNAL.iterdir())

    async def scenario() -> list[str]:
        for number, segment in enumerate((oldest, newest)):
            shutil.rmtree(journal, ignore_errors=True)
            journal.mkdir()
            shutil.copyfile(segment, journal / segment.name)
            found = await checks.check(journal, tmp_path / f"copy-{number}")
        return found

    assert asyncio.run(scenario()) == ["agent-1: segments were deleted before they were replayed"]
