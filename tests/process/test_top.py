"""``loadline top`` on a terminal of its own, beside a real agent."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from loadline.rig.rig import Rig
from tests.support.agents import config
from tests.waiting import SCENARIO_S

pytestmark = pytest.mark.process


def read_until(terminal: int, word: str) -> str:
    """Read until the word has been drawn; escape sequences are left out."""
    deadline, seen = time.monotonic() + SCENARIO_S, b""
    while True:
        text = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", seen.decode(errors="replace"))
        if word in text:
            return seen.decode(errors="replace")
        assert time.monotonic() < deadline, text
        if select.select([terminal], [], [], 0.1)[0]:
            seen += os.read(terminal, 65_536)


def test_the_fleet_is_shown_on_a_terminal_without_colours_until_q(tmp_path: Path) -> None:
    with Rig(tmp_path) as rig:
        rig.agent(config(rig, "a1"), "a1").wait_ready()
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        command = [sys.executable, "-m", "loadline", "top", "--no-color", "--nats", rig.nats.url]
        environment = {**os.environ, "TERM": "xterm-256color"}
        child = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment)
        os.close(theirs)
        try:
            drawn = read_until(ours, "m (threshold planner)")
            assert "agent a1" in drawn
            colours = {int(one) for one in re.findall(r"[34]8;5;(\d+)[;m]", drawn)}
            assert colours
            assert colours <= {16, *range(231, 256)}, "shades of grey"
            os.write(ours, b"q")
            deadline = time.monotonic() + SCENARIO_S
            while child.poll() is None:
                assert time.monotonic() < deadline
                if select.select([ours], [], [], 0.1)[0]:
                    try:
                        os.read(ours, 65_536)
                    except OSError:
                        break  # the terminal has no other end any more
            assert child.wait(SCENARIO_S) == 0
        finally:
            child.kill()
            child.wait()
            os.close(ours)


def test_a_pipe_is_no_terminal() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "loadline", "top"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert "needs a terminal" in done.stderr
