"""Folders of journals: rotation and retention of their segments, and their locks."""

import os
from pathlib import Path

import pytest
import structlog

from loadline import app
from loadline.adapters.file_journal import FileJournal
from loadline.config import parse
from loadline.errors import JournalError
from tests.support.journals import replay, run
from tests.waiting import until_true

pytestmark = pytest.mark.process

MB = 2**20
SHARDED = """
[sharing]
shards = 16

[[models]]
name = "m"

[[models.pools]]
name = "p"
role = "aggregated"
"""


def write(journal: FileJournal, records: int, size: int = 10, first: int = 0) -> None:
    """Append turns, and wait until they are written."""
    until_true(lambda: journal._open or journal.wants_snapshot)
    run(journal, records, size, first)
    until_true(lambda: not journal._queued_bytes)


def test_segments_rotate_and_the_oldest_are_removed(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, 10_000, 50_000)
    other = tmp_path / "README"
    other.write_text("not ours to delete")
    for first in range(0, 5_000, 100):
        write(journal, 100, size=100, first=first)  # as a real agent, which is slower than a disk
    journal.close()
    segments = replay(tmp_path)
    assert all(segment[0].startswith(b'{"snapshot":') for segment in segments)
    files = sorted(tmp_path.glob("*.jsonl"))
    assert 3 <= len(files) <= 5
    assert sum(file.stat().st_size for file in files) <= 50_000
    assert segments[-1][-1].startswith(b'{"turn":4999,')
    turns = [record for segment in segments for record in segment[1:]]
    assert len(turns) == len(set(turns))
    assert other.exists()
    assert journal.lost == 0


def test_a_shard_keeps_older_segments(tmp_path: Path) -> None:
    """Its part of the folder is no larger than a segment of the defaults."""
    text = f'[journal]\ndirectory = "{tmp_path}"\nbytes_max = {16 * 80_000}\nsegment_bytes_max = 400_000\n'
    journal = app._journal(parse(text + SHARDED, "test"), "shard-1", 16)
    assert isinstance(journal, FileJournal)
    for first in range(0, 500, 10):
        write(journal, 10, size=500, first=first)
    journal.close()
    files = sorted((tmp_path / "shard-1").glob("*.jsonl"))
    assert 6 <= len(files) <= 9
    assert 60_000 <= sum(file.stat().st_size for file in files) <= 80_000


def test_a_snapshot_larger_than_a_segment_does_not_begin_the_next_one_at_once(tmp_path: Path) -> None:
    """Otherwise each turn would write a snapshot: 36 MB for 14 kB of events."""
    journal = FileJournal(tmp_path, 1_000, 10 * MB)
    begun = 0

    def snapshot(_goes_on: bool) -> bytes:  # noqa: FBT001 - as the runtime calls it
        nonlocal begun
        begun += 1
        return b'{"snapshot":"%s"}' % (b"x" * 10_000)

    for index in range(300):
        if journal.wants_snapshot:
            journal.begin(snapshot)
            until_true(lambda: not journal._queued_bytes)  # its size is known once it is written
        journal.append(b'{"turn":%d,"x":"%s"}' % (index, b"x" * 100))
    journal.close()
    assert 3 <= begun <= 5, "half of what is written is events"


def test_segments_that_a_large_snapshot_lengthens_do_not_exceed_the_size_of_the_journal(tmp_path: Path) -> None:
    journal, largest, segments = FileJournal(tmp_path, 20_000, 160_000), 0, 0
    for index in range(200):
        if journal.wants_snapshot:
            journal.begin(lambda _goes_on: b'{"snapshot":"%s"}' % (b"x" * 13_500))
            segments += 1
            until_true(lambda: not journal._queued_bytes)  # its size is known once it is written
        journal.append(b'{"turn":%d,"x":"%s"}' % (index, b"x" * 500), at_once=True)
        until_true(lambda: not journal._queued_bytes)
        largest = max(largest, sum(file.stat().st_size for file in tmp_path.glob("*.jsonl")))
    journal.close()
    assert segments > 6
    assert 130_000 < largest <= 160_000


@pytest.mark.parametrize(("bytes_max", "kept", "warned"), [(160_000, 7, False), (20_000, 1, True)])
def test_a_journal_that_holds_one_segment_only_says_so(
    tmp_path: Path, bytes_max: int, kept: int, *, warned: bool
) -> None:
    """The size is a promise, so each new segment deletes the one before, with the whole history."""
    journal = FileJournal(tmp_path, bytes_max // 8, bytes_max)
    with structlog.testing.capture_logs() as lines:
        for index in range(2_000):
            if journal.wants_snapshot:
                journal.begin(lambda _goes_on: b'{"snapshot":"%s"}' % (b"x" * 10_000))
                until_true(lambda: not journal._queued_bytes)
            journal.append(b'{"turn":%d,"x":"%s"}' % (index, b"x" * 100))
        journal.close()
    assert abs(len(list(tmp_path.glob("*.jsonl"))) - kept) <= 1
    said = [line for line in lines if line["event"] == "journal_too_small"]
    assert bool(said) is warned
    assert all("Raise journal.bytes_max" in line["remedy"] for line in said)


def test_what_is_no_file_but_has_a_segments_name_is_left_alone(tmp_path: Path) -> None:
    folder, fifo = tmp_path / "20200101T000000.000Z-000000.jsonl", tmp_path / "20200101T000001.000Z-000000.jsonl"
    folder.mkdir()
    os.mkfifo(fifo)
    journal = FileJournal(tmp_path, MB, 10 * MB)
    run(journal, 10)
    journal.close()
    assert journal.lost == 0
    assert [len(segment) for segment in replay(tmp_path)] == [11]
    assert folder.is_dir()
    assert fifo.is_fifo()


def test_a_folder_cannot_be_used_by_two_agents(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, MB, 10 * MB)
    with pytest.raises(JournalError, match="another agent"):
        FileJournal(tmp_path, MB, 10 * MB)
    journal.close()
    FileJournal(tmp_path, MB, 10 * MB).close()


def test_a_folder_that_could_not_be_used_at_the_start_is_locked_by_the_first_write(tmp_path: Path) -> None:
    """As before a mount; the retention of one agent would delete the segments of the other."""
    mount = tmp_path / "mount"
    mount.write_text("no folder yet")
    journals = [FileJournal(mount / "journal", MB, 10 * MB, retry_s=0.01) for _ in range(2)]
    mount.unlink()
    mount.mkdir()
    for journal in journals:
        write(journal, 10)
    for journal in journals:
        journal.close()
    assert [len(segment) for segment in replay(mount / "journal")] == [11]
    assert [journal.lost for journal in journals] == [0, 11]
