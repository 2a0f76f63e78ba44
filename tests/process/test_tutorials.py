"""The tutorial from pip install is followed: its files are written and its commands run, in their order and as written.

The installation is left out, which `make package` does. The programs have a network namespace, so their ports are free.
"""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.support.namespaces import can_make_namespaces, network_namespace
from tests.support.tutorials import blocks_of, commands
from tests.waiting import until_true

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not can_make_namespaces(), reason="this user may not make network namespaces"),
]

TUTORIAL: Final = Path(__file__).parents[2] / "docs/tutorials/from-pip-install.md"
INSTALLATION: Final = ("python3 -m venv", "export PATH", "pip install")
PROGRAMS: Final = ("nats-server", "etcd", "loadline run", "loadline scaler", "loadline gateway", "python load.py")
"""Commands that run on, each in a terminal of its own."""
# What a reader must see after a command, in the order of the commands that end.
EXPECTED: Final = (
    ("loadline check", r"loadline\.toml: valid, 0 warnings"),
    ("loadline status", r"aggregated  aggregated  +1 +1 +0 "),
    ("curl", r"data: \[DONE\]"),
    ("loadline status", r"aggregated  aggregated  +2 +2 +0 "),
    ("loadline explain", r"result: aggregated 1 -> 2"),
    ("loadline drain", r"aggregated-1 will be drained"),
    ("loadline replay", r"the replay is exact: \d+ segment"),
)
LOAD_S: Final = 60
"""Time of the load, in place of the tutorial's, which leaves a reader time to read."""


class Reader:
    """Runs the commands of the tutorial in a folder."""

    def __init__(self, folder: Path, prefix: list[str]) -> None:
        self._folder = folder
        self._prefix = prefix
        self._environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        self._programs: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._expected = iter(EXPECTED)

    def do(self, command: str) -> None:
        if command.startswith("loadline replay"):
            self.stop()
        if command.startswith(PROGRAMS):
            self._start(re.sub(r"^(python load.py) \d+", rf"\1 {LOAD_S}", command))
        elif not command.startswith(INSTALLATION):
            self._expect(command)

    def stop(self) -> None:
        """Wait for the load, then interrupt the programs, the gateway first and the servers last."""
        [load] = [process for name, process in self._programs if name.startswith("python load.py")]
        assert load.wait(timeout=300) == 0, self.log("python load.py")
        succeeded, sent = map(int, re.findall(r"(\d+) of (\d+) requests succeeded", self.log("python load.py"))[0])
        assert succeeded == sent == LOAD_S * 3, self.log("loadline gateway")
        for _, process in reversed(self._programs):
            process.send_signal(signal.SIGINT)
            process.wait(timeout=120)
        for name, process in self._programs:
            if name.startswith("loadline"):
                assert process.returncode == 0, self.log(name)
        self._programs.clear()

    def kill(self) -> None:
        for _, process in self._programs:
            process.kill()
            process.wait()

    def log(self, name: str) -> str:
        return (self._folder / f"{name.replace(' ', '-').replace('/', '')}.log").read_text("utf-8")

    def _start(self, command: str) -> None:
        name = next(one for one in PROGRAMS if command.startswith(one))
        with (self._folder / f"{name.replace(' ', '-')}.log").open("wb") as log:
            process = subprocess.Popen(
                [*self._prefix, "sh", "-c", f"exec {command}"],
                cwd=self._folder, env=self._environment, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        self._programs.append((name, process))

    def _expect(self, command: str) -> None:
        begin, pattern = next(self._expected)
        assert command.startswith(begin)
        printed = ""

        def as_expected() -> bool:
            nonlocal printed
            run = subprocess.run(
                [*self._prefix, "sh", "-c", command],
                cwd=self._folder, env=self._environment, capture_output=True, text=True, check=False, timeout=100,
            )  # fmt: skip
            printed = run.stdout + run.stderr
            return re.search(pattern, printed) is not None

        try:
            until_true(as_expected, f"{command}: {pattern}", deadline_s=120)
        except AssertionError as error:
            raise AssertionError(printed) from error


@contextmanager
def reader(folder: Path) -> Iterator[Reader]:
    with ExitStack() as stack:
        found = Reader(folder, stack.enter_context(network_namespace()))
        stack.callback(found.kill)
        yield found


def test_the_tutorial_from_pip_install_works_as_written(tmp_path: Path) -> None:
    (tmp_path / ".venv").symlink_to(Path(sys.executable).parents[1])
    with reader(tmp_path) as one:
        for language, text in blocks_of(TUTORIAL):
            if language == "console":
                for command in commands(text):
                    one.do(command)
            else:
                (tmp_path / text.split()[1]).write_text(text, "utf-8")
    assert next(one._expected, None) is None, "every command was run"
