"""Logs of workers: a crash loop fills no disk, and no running worker loses its log."""

import os
from pathlib import Path

import pytest

from loadline.scalers.local import worker_logs
from loadline.scalers.local.worker_logs import KEPT_LOGS, WorkerLogs


def test_the_oldest_logs_of_ended_workers_are_removed(tmp_path: Path) -> None:
    logs = WorkerLogs(tmp_path)
    others = ["q-1.log", "p-1-1.log", "p-x.log", "p.log"]
    for age, name in enumerate([*others, *(f"p-{number}.log" for number in range(1, 31))]):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (age, age))
    logs.prune("p", {"p-1", "p-30"})
    kept = {"p-1", "p-30"} | {f"p-{number}" for number in range(30 - KEPT_LOGS, 30)}
    assert {path.name for path in tmp_path.iterdir()} == {*others, *(f"{worker}.log" for worker in kept)}


def test_logs_are_ordered_by_time_since_numbers_start_again(tmp_path: Path) -> None:
    for number in range(1, KEPT_LOGS + 2):
        path = WorkerLogs(tmp_path).path_of(f"p-{number}")
        path.touch()
        os.utime(path, (1_000 - number, 1_000 - number))
    WorkerLogs(tmp_path).prune("p", set())
    assert (tmp_path / "p-1.log").exists()
    assert not (tmp_path / f"p-{KEPT_LOGS + 1}.log").exists()


def test_a_missing_folder_is_no_error(tmp_path: Path) -> None:
    WorkerLogs(tmp_path / "none").prune("p", set())


def test_the_log_of_a_running_worker_is_bounded_and_loses_nothing_of_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_logs, "LOG_BYTES_MAX", 1_000)
    logs, written = WorkerLogs(tmp_path), b""
    path, former = tmp_path / "p-1.log", tmp_path / "p-1.log.1"
    with path.open("ab", buffering=0) as output:  # as a worker has it
        for number in range(1_000):
            line = b"%d\n" % number
            output.write(line)
            written += line
            logs.bound(["p-1", "p-2"])
            assert path.stat().st_size <= 1_000
            kept = former.read_bytes() if former.exists() else b""
            assert len(kept) <= 1_000
            assert written.endswith(kept + path.read_bytes())
        assert kept, "the log began anew"


def test_the_former_part_of_a_log_is_removed_with_it(tmp_path: Path) -> None:
    for number in range(1, KEPT_LOGS + 2):
        for name in (f"p-{number}.log", f"p-{number}.log.1"):
            (tmp_path / name).touch()
            os.utime(tmp_path / name, (number, number))
    WorkerLogs(tmp_path).prune("p", set())
    assert len(list(tmp_path.iterdir())) == 2 * KEPT_LOGS
    assert not (tmp_path / "p-1.log.1").exists()


def test_on_a_full_disk_a_log_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_logs, "LOG_BYTES_MAX", 1_000)
    (tmp_path / "p-1.log").write_bytes(b"x" * 1_001)
    (tmp_path / "p-1.log.1").symlink_to("/dev/full")
    WorkerLogs(tmp_path).bound(["p-1"])
    assert (tmp_path / "p-1.log").stat().st_size == 1_001
    assert not (tmp_path / "p-1.log.1").exists(), "a part of a copy would take the rest of the disk"
