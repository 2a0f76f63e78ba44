"""The guard of an engine: with the process that started it, all processes of its session end."""

import subprocess
from pathlib import Path

import pytest

from loadline.adapters.group_guard import GroupGuard
from tests.waiting import until_true

pytestmark = pytest.mark.process

ENGINE = "sleep 1000 & set -m; sleep 1000 & wait"
"""An engine with a child in its process group, and another in a group of its own, as ``timeout`` has one."""


def states(session: int) -> list[str]:
    """Return the states of the processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text("utf-8").rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(fields[0])
    return found


def test_children_in_groups_of_their_own_end_with_the_engine() -> None:
    with subprocess.Popen(["/bin/bash", "-c", ENGINE], stdout=subprocess.PIPE, start_new_session=True) as engine:
        until_true(lambda: len(states(engine.pid)) == 3, "the engine has two children")
        guard = GroupGuard(engine.pid)
        assert guard._process.stdin is not None
        guard._process.stdin.close()  # as the end of this process does
        until_true(lambda: states(engine.pid) == [], "all have ended")
        guard._process.wait()


def test_a_dismissed_guard_ends_nothing() -> None:
    with subprocess.Popen(["/bin/sleep", "1000"], start_new_session=True) as engine:
        GroupGuard(engine.pid).dismiss()
        assert engine.poll() is None
        engine.kill()
