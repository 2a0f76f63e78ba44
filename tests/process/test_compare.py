"""Simulations in child processes, which end with the command: by Ctrl-C without a partial file, and by a signal."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.simulation_files import write_options
from tests.waiting import until_true

pytestmark = pytest.mark.process

DEADLINE_S = 60.0
SIMULATING_S = 3.0
"""Processor time after which a child has imported everything; that takes 1.5 s."""
ROOT = Path(__file__).parents[2]


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


def cpu_s(pid: int) -> float:
    """Return the processor time of a process."""
    try:
        user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    except FileNotFoundError:
        return 0.0
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def started_children(process: subprocess.Popen[bytes]) -> list[int]:
    """Return the children of a process once one runs beside Python's resource tracker."""
    until_true(lambda: len(children(process.pid)) > 1 or process.poll() is not None, "a child runs")
    return children(process.pid)


def test_ctrl_c_ends_everything_and_leaves_nothing(tmp_path: Path) -> None:
    # A day of requests: the simulation lasts much longer than the test.
    trace = "arrival_s,isl,osl\n" + "".join(f"{n / 2},500,100\n" for n in range(170_000))
    options = write_options(tmp_path, trace=trace)
    there = sorted(tmp_path.iterdir())
    outputs = ["--json", str(tmp_path / "out.json"), "--html", str(tmp_path / "out.html")]
    command = [sys.executable, "-m", "loadline", "compare", *options, *outputs, "--jobs", "2"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True) as process:
        try:
            started = started_children(process)
            os.killpg(process.pid, signal.SIGINT)
            printed, _ = process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert process.returncode == 130
    assert printed == b""
    assert sorted(tmp_path.iterdir()) == there
    until_true(lambda: not any(map(is_running, started)), "its children end")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_scoreboard_that_a_signal_ends_leaves_no_child(number: signal.Signals, tmp_path: Path) -> None:
    # Each of the runs takes longer than the wait for the end of the children.
    options = ["--only", "azure2023_conv/8b/*", "--jobs", "2", "--results", str(tmp_path / "results.jsonl")]
    command = [sys.executable, "-m", "tools.scoreboard", *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT) as process:
        started: list[int] = []
        try:
            until_true(lambda: any(cpu_s(pid) > SIMULATING_S for pid in children(process.pid)), "a child simulates")
            started = children(process.pid)
            process.send_signal(number)
            process.wait(DEADLINE_S)
            until_true(lambda: not any(map(is_running, started)), "its children end", deadline_s=5.0)
        finally:
            process.kill()
            for pid in filter(is_running, started):
                os.kill(pid, signal.SIGKILL)
