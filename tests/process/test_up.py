"""`loadline up` as a user runs it: it ends by itself, and whenever it is told to, and leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.waiting import until_true

pytestmark = pytest.mark.process


def processes(directory: Path) -> list[int]:
    """Processes that have anything to do with a demo's folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if str(directory) in command:
                found.append(int(entry.name))
    return found


class Up:
    """A running `loadline up`, its output in a file."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self.output = directory.with_name("output.txt")
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "loadline", "up", "--directory", str(directory), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def text(self) -> str:
        return self.output.read_text()

    def said(self, words: str) -> None:
        """Wait for some words."""
        until_true(lambda: words in self.text() or self.process.poll() is not None, deadline_s=60)
        assert words in self.text()

    def pid_of(self, program: str) -> int:
        return next(
            pid
            for pid in processes(self.directory)
            if program in Path(f"/proc/{pid}/cmdline").read_text().split("\0")[0].rsplit("/", 1)[-1]
        )


@contextmanager
def up(directory: Path, *arguments: str) -> Iterator[Up]:
    running = Up(directory, *arguments)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.process.kill()
        running.process.wait()
    until_true(lambda: not processes(directory))


def test_ends_by_itself_with_a_summary_and_an_exact_journal(tmp_path: Path) -> None:
    with up(tmp_path / "demo", "--for", "15s", "--agents", "2") as running:
        assert running.process.wait(90) == 0, running.text()
        assert not processes(running.directory)
        summary = running.text()
        found = re.search(r"requests +(\d+) served of (\d+), (\d+) lost", summary)
        assert found is not None, summary
        served, arrived, lost = map(int, found.groups())
        assert lost == 0
        assert 0 < served <= arrived
        assert re.search(r"decisions +[1-9]", summary)
        for journal in (running.directory / "journal").iterdir():
            replay = [sys.executable, "-m", "loadline", "replay", str(journal)]
            done = subprocess.run(replay, capture_output=True, text=True, check=False, timeout=60)
            assert done.returncode == 0, done.stderr
            assert "exact" in done.stdout


def test_goes_on_when_its_servers_and_its_agent_are_killed(tmp_path: Path) -> None:
    with up(tmp_path / "demo", "--for", "25s") as running:
        running.said("load starts")
        os.kill(running.pid_of("nats-server"), signal.SIGKILL)
        running.said("nats-server exited")
        os.kill(running.pid_of("etcd"), signal.SIGKILL)
        running.said("etcd exited")
        agent = next(pid for pid in processes(running.directory) if b"agent-1.toml" in cmdline(pid))
        os.kill(agent, signal.SIGKILL)
        running.said("agent-1 exited")
        worker = next(int(pid) for pid in children(running, "loadline.scalers.local"))
        os.kill(worker, signal.SIGKILL)
        assert running.process.wait(90) == 0, running.text()
        assert " 0 lost" in running.text()


def cmdline(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def children(running: Up, module: str) -> list[str]:
    """Process ids that a module of the demo started."""
    parent = next(pid for pid in processes(running.directory) if module.encode() in cmdline(pid))
    return Path(f"/proc/{parent}/task/{parent}/children").read_text().split()


@pytest.mark.parametrize("words", ["loadline demo", "query", "leads", "load starts"])
def test_ctrl_c_at_any_moment_leaves_nothing(tmp_path: Path, words: str) -> None:
    with up(tmp_path / "demo") as running:
        running.said(words)
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(60) == 0, running.text()
        assert not processes(running.directory)
        assert "Traceback" not in running.text()


def test_a_kill_leaves_nothing_either(tmp_path: Path) -> None:
    with up(tmp_path / "demo") as running:
        running.said("load starts")
        assert len(processes(running.directory)) > 4
        running.process.kill()


def test_a_wrong_duration_is_refused_with_an_example(tmp_path: Path) -> None:
    with up(tmp_path / "demo", "--for", "soon") as running:
        assert running.process.wait(30) == 2
        assert "write 90s, 2m or 1h" in running.text()
