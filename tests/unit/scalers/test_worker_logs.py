"""Logs of workers: a crash loop fills no disk, and no running worker loses its log."""

import os
from pathlib import Path

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
