"""`loadline compare` as a process: Ctrl-C ends it with its children and leaves no partial file."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.simulation_files import write_options

pytestmark = pytest.mark.process

DEADLINE_S = 60.0


def children(pid: int) -> list[int]:
    """Return the running child processes of a process."""
    try:
        return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def is_running(pid: int) -> bool:
    """Return whether a process is running and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_ctrl_c_ends_everything_and_leaves_nothing(tmp_path: Path) -> None:
    # A day of requests: the simulation lasts much longer than the test.
    trace = "arrival_s,isl,osl\n" + "".join(f"{n / 2},500,100\n" for n in range(170_000))
    options = write_options(tmp_path, trace=trace)
    there = sorted(tmp_path.iterdir())
    outputs = ["--json", str(tmp_path / "out.json"), "--html", str(tmp_path / "out.html")]
    command = [sys.executable, "-m", "loadline", "compare", *options, *outputs, "--jobs", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as process:
        try:
            deadline_s = time.monotonic() + DEADLINE_S
            # One child is Python's resource tracker.
            while len(children(process.pid)) < 2:
                assert process.poll() is None
                assert time.monotonic() < deadline_s
                time.sleep(0.05)
            started = children(process.pid)
            os.killpg(process.pid, signal.SIGINT)
            printed, _ = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert process.returncode == 130
    assert printed == b""
    assert sorted(tmp_path.iterdir()) == there
    while any(map(is_running, started)):
        assert time.monotonic() < deadline_s
        time.sleep(0.05)
