"""Replay of a recorded journal: the same effects byte for byte, in any process and with any hash seed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from loadline.adapters.file_journal import read_segments
from loadline.adapters.journal_checksums import ChecksumChain
from loadline.cli.main import main
from loadline.runtime import journal_records

JOURNAL = Path(__file__).parent / "journal"
EXACT = "the replay is exact: 3 segments, "


def replay(journal: Path, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    """Run ``loadline replay`` in a child process."""
    command = [sys.executable, "-m", "loadline", "replay", str(journal)]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=60)


@pytest.fixture
def changed(tmp_path: Path) -> Path:
    """Return a copy of the journal that a test may change."""
    for segment in JOURNAL.glob("*.jsonl"):
        (tmp_path / segment.name).write_bytes(segment.read_bytes())
    return tmp_path


def edit(journal: Path, segment: int, old: str, new: str) -> tuple[str, int]:
    """Replace the first occurrence in an effect; return the segment's path and the number of the record."""
    path, records = list(read_segments(journal))[segment]
    lines = [record.decode() for record in records]
    number = next(n for n, line in enumerate(lines) if line.startswith('{"kind":"effects"') and old in line)
    lines[number] = lines[number].replace(old, new, 1)
    write(path, lines)
    return str(path), number + 1


def write(path: Path, records: list[str]) -> None:
    """Write a segment with valid checksums."""
    checksums = ChecksumChain()
    path.write_bytes(b"".join(part for record in records for part in checksums.seal(record.encode())))


@pytest.mark.parametrize("hash_seed", ["0", "1", "random"])
def test_the_replay_is_exact(hash_seed: str) -> None:
    done = replay(JOURNAL, hash_seed)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(EXACT)


def test_the_journal_has_all_kinds_of_effects() -> None:
    found = journal_records.replay((path.name, records) for path, records in read_segments(JOURNAL))
    assert found.controller is not None
    state = found.controller.state
    assert found.decisions >= 5
    assert state.counters["leaderships_won"] == 2, "the bus was disconnected for a while"
    assert {finished.ending for finished in state.drains.finished} >= {"drained"}
    assert state.leadership.phase == "resigned"
    assert sum(path.stat().st_size for path in JOURNAL.iterdir()) < 350_000


def test_a_single_segment_can_be_replayed() -> None:
    segments = sorted(JOURNAL.glob("*.jsonl"))
    assert len(segments) >= 2
    for segment in segments:
        done = replay(segment)
        assert done.returncode == 0
        assert done.stdout.startswith("the replay is exact: 1 segment, ")


@pytest.mark.parametrize(
    ("segment", "old", "new"),
    [(0, '"replicas":', '"replicas":1'), (1, '"ttl_ms":', '"ttl_ms":1'), (2, '"lease_id":', '"lease_id":1')],
)
def test_a_changed_effect_is_reported_with_its_place(changed: Path, segment: int, old: str, new: str) -> None:
    path, number = edit(changed, segment, old, new)
    done = replay(changed)
    assert done.returncode == 1
    assert f"{path}, record {number}: the replay gives " in done.stderr
    assert "the replay differs after" in done.stdout


def test_a_missing_segment_is_reported(changed: Path) -> None:
    first, middle, last = sorted(changed.glob("*.jsonl"))
    middle.unlink()
    done = replay(changed)
    assert done.returncode == 1
    assert f"{last}, record 1: the state that the replay arrived at" in done.stderr
    first.unlink()
    assert replay(changed).returncode == 0, "a replay may begin with any segment"


def test_a_journal_that_cannot_be_read_is_reported(
    changed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = sorted(changed.glob("*.jsonl"))[1]
    write(path, ['{"kind":"start"}'])
    assert main(["replay", str(changed)]) == 1
    assert f"{path}, record 1: not a journal record" in capsys.readouterr().err
    assert main(["replay", str(tmp_path / "nowhere")]) == 1
    assert "nowhere" in capsys.readouterr().err


@pytest.mark.parametrize("records", [1, 2])
def test_a_damaged_record_is_not_exact(changed: Path, records: int) -> None:
    path = sorted(changed.glob("*.jsonl"))[1]
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:10] + lines[10 + records :]))
    done = replay(changed)
    assert done.returncode == 1
    assert f"{path}, record 11: the checksum is wrong" in done.stderr


def test_a_journal_without_a_complete_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "20240101T000000.000Z-000000.jsonl"
    path.write_bytes(b'{"kind":"start","format":')
    done = replay(tmp_path)
    assert done.returncode == 1
    assert f"{path}: no whole record" in done.stderr
