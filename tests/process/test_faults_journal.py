"""Journal on a real file system: rotation, full and slow disks, truncated records."""

import errno
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from loadline.adapters import file_journal
from loadline.adapters.file_journal import FileJournal, read_segments
from loadline.adapters.journal_checksums import ChecksumChain
from loadline.errors import JournalError
from tests.support.journals import replay, run, said
from tests.waiting import until_true

pytestmark = pytest.mark.process

MB = 2**20


def lines_of(*records: bytes) -> bytes:
    checksums = ChecksumChain()
    return b"".join(part for record in records for part in checksums.seal(record))


def test_appended_turns_are_read_back(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path / "new" / "folder", MB, 10 * MB)
    assert journal.wants_snapshot
    run(journal, 1_000)
    journal.close()
    [segment] = replay(tmp_path / "new" / "folder")
    assert segment[0] == b'{"snapshot":0}'
    assert len(segment) == 1_001
    assert journal.lost == 0


def test_a_restarted_agent_continues_the_sequence_of_segments(tmp_path: Path) -> None:
    # A segment name in the future, as after a step back of the wall clock.
    (tmp_path / "29990101T000000.000Z-000007.jsonl").write_bytes(lines_of(b'{"snapshot":"old"}'))
    for number in range(3):
        journal = FileJournal(tmp_path, MB, 10 * MB)
        journal.begin(said(b'{"snapshot":%d}' % number))
        journal.close()
    assert replay(tmp_path) == [[b'{"snapshot":"old"}']] + [[b'{"snapshot":%d}' % number] for number in range(3)]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 1 MiB, or skip the test; a test below simulates ENOSPC."""
    mount, umount = shutil.which("mount"), shutil.which("umount")
    if mount is None or umount is None:
        pytest.skip("there is no mount here")
    command = [mount, "-t", "tmpfs", "-o", "size=1m", "none", str(tmp_path)]
    if subprocess.run(command, check=False, capture_output=True).returncode != 0:
        pytest.skip("cannot mount a tmpfs here")
    yield tmp_path
    # Lazily, since a failed test may still have a file open.
    subprocess.run([umount, "-l", str(tmp_path)], check=True)


def test_a_full_disk_does_not_stop_the_agent(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"x" * 700_000)
    journal = FileJournal(small_disk / "journal", 10 * MB, 100 * MB, retry_s=0.0)
    run(journal, 1)
    full = 10_000
    for index in range(1, full):
        journal.append(b'{"turn":%d,"x":"%s"}' % (index, b"x" * 100))
    until_true(lambda: journal.lost > 0 and journal.wants_snapshot and not journal._queued_bytes)
    lost = journal.lost
    journal.append(b"{}")
    assert journal.lost == lost + 1
    ballast.unlink()
    run(journal, 10, first=full)
    journal.close()
    before, after = replay(small_disk / "journal")
    assert after == [b'{"snapshot":10000}'] + [b'{"turn":%d,"x":"xxxxxxxxxx"}' % i for i in range(full, full + 10)]
    # The file has a prefix of the records; all others were counted as lost.
    assert len(before) - 1 + journal.lost == full + 1
    assert before[-1].startswith(b'{"turn":%d,' % (len(before) - 2))


def test_a_write_that_fails_ends_the_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full, torn = threading.Event(), threading.Event()
    write = os.writev

    def write_or_not(file: int, parts: Sequence[bytes]) -> int:
        if torn.is_set():
            raise OSError(errno.ENOSPC, "No space left on device")
        if full.is_set():
            torn.set()
            return write(file, [parts[0][:10]])
        return write(file, parts)

    monkeypatch.setattr(os, "writev", write_or_not)
    journal = FileJournal(tmp_path, MB, 10 * MB, retry_s=0.0)
    run(journal, 2, size=0)
    until_true(lambda: not journal._queued_bytes)
    full.set()
    run(journal, 3, size=0, first=2)
    until_true(lambda: journal.lost >= 1 and not journal._queued_bytes)
    full.clear()
    torn.clear()
    run(journal, 1, size=0, first=5)
    journal.close()
    first, *_, last = replay(tmp_path)
    assert first == [b'{"snapshot":0}', b'{"turn":0,"x":""}', b'{"turn":1,"x":""}']
    assert last[-1] == b'{"turn":5,"x":""}'
    assert all(
        file.read_bytes().endswith(b"}\n") for file in tmp_path.glob("*.jsonl")
    )  # the truncated record was removed


def test_gathered_records_survive_short_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, calls = os.writev, list[int]()

    def cut_short(file: int, parts: Sequence[bytes]) -> int:
        calls.append(len(parts))
        return write(file, [b"".join(parts)[: 1 + 999 * (len(calls) % 5)]])

    monkeypatch.setattr(os, "writev", cut_short)
    monkeypatch.setattr(file_journal, "_GATHER_S", 3_600.0)  # until the journal is closed
    journal = FileJournal(tmp_path, MB, 10 * MB)
    run(journal, 3_000, size=0)
    journal.close()
    assert replay(tmp_path) == [[b'{"snapshot":0}'] + [b'{"turn":%d,"x":""}' % turn for turn in range(3_000)]]
    assert calls[0] == 1_024


def remove_folder(folder: Path) -> None:
    shutil.rmtree(folder)


def move_folder(folder: Path) -> None:
    folder.rename(folder.with_name("moved"))


def replace_segment(folder: Path) -> None:
    [segment] = folder.glob("*.jsonl")
    segment.unlink()
    segment.touch()


@pytest.mark.parametrize("vanish", [remove_folder, move_folder, replace_segment])
def test_a_segment_that_vanishes_is_followed_by_a_new_one(tmp_path: Path, vanish: Callable[[Path], None]) -> None:
    folder = tmp_path / "journal"
    journal = FileJournal(folder, MB, 10 * MB, retry_s=0.0)
    run(journal, 2)
    until_true(lambda: not journal._queued_bytes)
    vanish(folder)
    journal.append(b'{"turn":2}')
    until_true(lambda: journal.lost == 1)
    run(journal, 1, size=0, first=3)
    journal.close()
    assert replay(folder) == [[b'{"snapshot":3}', b'{"turn":3,"x":""}']]
    assert journal.lost == 1


def test_a_folder_replaced_by_a_file_ends_the_segment(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    journal = FileJournal(folder, MB, 10 * MB, retry_s=0.0)
    run(journal, 1)
    until_true(lambda: not journal._queued_bytes)
    shutil.rmtree(folder)
    folder.touch()
    run(journal, 3, first=1)
    until_true(lambda: journal.lost > 0 and not journal._queued_bytes)
    folder.unlink()
    until_true(lambda: journal.wants_snapshot)
    run(journal, 1, size=0, first=9)
    journal.close()
    assert replay(folder) == [[b'{"snapshot":9}', b'{"turn":9,"x":""}']]


def test_nothing_is_appended_to_a_segment_after_a_failed_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    writing, may_fail = threading.Event(), threading.Event()
    write = os.writev

    def second_fails(file: int, parts: Sequence[bytes]) -> int:
        calls.append(len(parts))
        if len(calls) == 2:
            writing.set()
            may_fail.wait(30)
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(file, parts)

    monkeypatch.setattr(os, "writev", second_fails)
    journal = FileJournal(tmp_path, MB, 10 * MB, retry_s=3_600)
    journal.begin(said(b'{"snapshot":0}'))
    until_true(lambda: not journal._queued_bytes)
    journal.append(b'{"turn":1}')
    assert writing.wait(30)
    journal.append(b'{"turn":2}')  # queued behind the write that fails; without turn 1 it cannot be replayed
    may_fail.set()
    journal.close()
    assert replay(tmp_path) == [[b'{"snapshot":0}']]
    assert journal.lost == 2


def test_a_segment_that_continues_a_failed_one_is_discarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writing, may_fail, full = threading.Event(), threading.Event(), threading.Event()
    write = os.writev

    def full_disk(file: int, parts: Sequence[bytes]) -> int:
        if not full.is_set():
            return write(file, parts)
        writing.set()
        may_fail.wait(30)
        full.clear()  # there is space again at once, so the segment that follows the loss could be written
        raise OSError(errno.ENOSPC, "No space left on device")

    def start(number: int) -> Callable[[bool], bytes]:
        return lambda goes_on: b'{"segment":%d,"goes_on":%d}' % (number, goes_on)

    monkeypatch.setattr(os, "writev", full_disk)
    journal = FileJournal(tmp_path, MB, 10 * MB, retry_s=0.0)
    journal.begin(start(0))
    journal.begin(start(1))
    until_true(lambda: not journal._queued_bytes)
    full.set()
    journal.append(b'{"turn":1}')
    assert writing.wait(30)
    journal.begin(start(2))  # continues from turn 1, whose loss is not known yet
    journal.append(b'{"turn":2}')
    may_fail.set()
    until_true(lambda: not journal._queued_bytes)
    assert journal.lost == 3
    assert journal.wants_snapshot
    journal.begin(start(3))
    journal.append(b'{"turn":3}')
    journal.close()
    assert replay(tmp_path) == [
        [b'{"segment":0,"goes_on":0}'],
        [b'{"segment":1,"goes_on":1}'],
        [b'{"segment":3,"goes_on":0}', b'{"turn":3}'],
    ]


def test_a_slow_disk_does_not_block_the_caller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    may_go_on, waits = threading.Event(), threading.Event()
    write = os.writev

    def slow_write(file: int, parts: Sequence[bytes]) -> int:
        waits.set()
        may_go_on.wait(30)
        return write(file, parts)

    monkeypatch.setattr(os, "writev", slow_write)
    journal = FileJournal(tmp_path, 100 * MB, 1_000 * MB, queue_bytes_max=100_000, retry_s=3_600)
    journal.begin(said(b'{"snapshot":0}'))
    waits.wait(30)
    for index in range(10_000):  # the test would take 5 minutes if the journal blocked
        journal.append(b'{"turn":%05d}' % index)
    assert journal._queued_bytes <= 100_000
    kept = 10_000 - journal.lost
    assert 0 < kept < 10_000
    assert not journal.wants_snapshot
    may_go_on.set()
    journal.close()
    assert replay(tmp_path) == [[b'{"snapshot":0}'] + [b'{"turn":%05d}' % index for index in range(kept)]]


def test_a_folder_that_cannot_be_created_stops_the_journal(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    journal = FileJournal(tmp_path / "file" / "journal", MB, 10 * MB)
    run(journal, 3)
    until_true(lambda: journal.lost == 4)
    journal.close()
    journal.append(b"{}")
    journal.begin(said(b"{}"))
    assert journal.lost == 6


@pytest.mark.parametrize("tear", [b'{"turn":3,"x', b"\0" * 512, b"\0" * 512 + b"\n"])
def test_a_truncated_record_ends_its_segment_only(tmp_path: Path, tear: bytes) -> None:
    records = [b'{"snapshot":0}', b'{"turn":1}', b'{"turn":2}']
    whole = lines_of(*records)
    (tmp_path / "20260101T000000.000Z-000000.jsonl").write_bytes(whole + tear)
    (tmp_path / "20260101T000001.000Z-000000.jsonl").write_bytes(whole)
    assert replay(tmp_path) == [records, records]
    assert replay(tmp_path / "20260101T000000.000Z-000000.jsonl") == [records]


@pytest.mark.parametrize("damage", [b'{"turn":3}\0\n{"turn":4}\n', b'\0\0{"turn":4}\n'])
def test_records_after_a_damaged_one_are_reported(tmp_path: Path, damage: bytes) -> None:
    segment = tmp_path / "20260101T000000.000Z-000000.jsonl"
    segment.write_bytes(lines_of(b'{"snapshot":0}') + damage)
    with pytest.raises(JournalError, match="damaged after record 1"):
        replay(segment)


def test_a_journal_with_only_an_empty_segment_is_refused(tmp_path: Path) -> None:
    (tmp_path / "20260101T000000.000Z-000000.jsonl").touch()
    with pytest.raises(JournalError, match="is empty"):
        replay(tmp_path)


def flip(lines: list[bytes]) -> None:
    lines[2] = lines[2].replace(b'"turn":1', b'"turn":3')


def remove(lines: list[bytes]) -> None:
    del lines[2]


def swap(lines: list[bytes]) -> None:
    lines[2], lines[3] = lines[3], lines[2]


def strip(lines: list[bytes]) -> None:
    lines[2] = b'{"turn":1,"x":""}'


@pytest.mark.parametrize("tamper", [flip, remove, swap, strip])
def test_a_changed_segment_is_refused(tmp_path: Path, tamper: Callable[[list[bytes]], None]) -> None:
    journal = FileJournal(tmp_path, MB, 10 * MB)
    run(journal, 5, size=0)
    journal.close()
    [path] = tmp_path.glob("*.jsonl")
    lines = path.read_bytes().splitlines()
    tamper(lines)
    path.write_bytes(b"\n".join(lines) + b"\n")
    with pytest.raises(JournalError, match=r"record 3: .* checksum"):
        replay(tmp_path)


def test_a_large_record_has_a_checksum(tmp_path: Path) -> None:
    journal = FileJournal(tmp_path, 10 * MB, 100 * MB)
    run(journal, 3, size=2 * MB)
    journal.close()
    [segment] = replay(tmp_path)
    assert [len(record) // MB for record in segment] == [0, 2, 2, 2]


def test_an_empty_folder_is_reported(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(JournalError):
            read_segments(path)
