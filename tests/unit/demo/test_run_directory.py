"""Folders of ended demos are removed, but for the last three."""

import os
from pathlib import Path

from loadline.demo.stack import run_directory

ENDED = ("up-4000000001", "up-4000000002", "up-4000000003", "up-4000000004", "up-4000000005")
"""Process ids above the maximum of Linux."""


def test_the_last_three_folders_and_those_of_running_demos_stay(tmp_path: Path) -> None:
    running = f"up-{os.getppid()}"
    for age, name in enumerate([running, "up-mine", *ENDED]):
        (tmp_path / name / "journal").mkdir(parents=True)
        os.utime(tmp_path / name, (age, age))
    assert run_directory(tmp_path) == tmp_path / f"up-{os.getpid()}"
    assert {one.name for one in tmp_path.iterdir()} == {running, "up-mine", *ENDED[2:]}


def test_the_first_demo_finds_no_folder(tmp_path: Path) -> None:
    assert run_directory(tmp_path / "none").parent == tmp_path / "none"
