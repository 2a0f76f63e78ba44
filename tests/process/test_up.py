"""`loadline up` as a user runs it: it ends after a time or on a signal, and leaves no processes."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.waiting import until_true

pytestmark = pytest.mark.process


def processes(directory: Path, program: str = "") -> list[int]:
    """Return the processes whose command line names the folder of a demo, and a program of it."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().decode(errors="replace")
            except OSError:
                continue
            if str(directory) in command and program in command:
                found.append(int(entry.name))
    return found


class Up:
    """A running `loadline up`, its output in a file."""

    def __init__(self, directory: Path, *arguments: str) -> None:
        self.directory = directory
        self.output = directory.with_name("output.txt")
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "loadline", "up", "--directory", str(directory), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )

    def text(self) -> str:
        return self.output.read_text()

    def wait_for_output(self, words: str) -> None:
        """Wait until the output has these words."""
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


def test_the_demo_ends_with_a_summary_and_a_journal_that_replays(tmp_path: Path) -> None:
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


def test_the_demo_continues_when_servers_and_agent_are_killed(tmp_path: Path) -> None:
    with up(tmp_path / "demo", "--for", "25s") as running:
        running.wait_for_output("load starts")
        os.kill(running.pid_of("nats-server"), signal.SIGKILL)
        running.wait_for_output("nats-server exited")
        os.kill(running.pid_of("etcd"), signal.SIGKILL)
        running.wait_for_output("etcd exited")
        os.kill(min(processes(running.directory, "agent-1.toml")), signal.SIGKILL)
        running.wait_for_output("agent-1 exited")
        worker = next(int(pid) for pid in children(running, "scaler\0local"))
        os.kill(worker, signal.SIGKILL)
        assert running.process.wait(90) == 0, running.text()
        assert " 0 lost" in running.text()


def children(running: Up, module: str) -> list[str]:
    """Return the ids of the processes that run a module of the demo."""
    parent = min(processes(running.directory, module))
    return Path(f"/proc/{parent}/task/{parent}/children").read_text().split()


@pytest.mark.parametrize("words", ["loadline demo", "query", "leads", "load starts"])
def test_ctrl_c_at_any_time_leaves_no_processes(tmp_path: Path, words: str) -> None:
    with up(tmp_path / "demo") as running:
        running.wait_for_output(words)
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(60) == 0, running.text()
        assert not processes(running.directory)
        assert "Traceback" not in running.text()


def test_a_time_shorter_than_the_start_of_the_gateway_is_one_of_load(tmp_path: Path) -> None:
    with up(tmp_path / "demo", "--for", "0.1s") as running:
        assert running.process.wait(60) == 0, running.text()
        assert "load starts" in running.text()
        assert "GPU-hours" in running.text()


def test_a_second_demo_in_the_same_folder_is_refused_and_a_later_one_counts_itself(tmp_path: Path) -> None:
    directory = tmp_path / "demo"
    directory.mkdir()
    hour = '"started_at_ms":0,"ended_at_ms":3600000'  # eight GPU-hours
    ended = f'{{"worker":"w","model":"m","pool":"p","gpus":8,{hour},"reason":"drained"}}'
    (directory / "lifetimes.jsonl").write_text(f"{ended}\n")
    with up(directory) as running:
        running.wait_for_output("files ")
        command = [sys.executable, "-m", "loadline", "up", "--directory", str(directory)]
        second = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert second.returncode == 1
        assert f"another `loadline up` uses {directory}: end it, or name another --directory" in second.stderr
        running.wait_for_output("load starts")
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(60) == 0, running.text()
        hours = re.search(r"GPU-hours +([0-9.]+)", running.text())
        assert hours, running.text()
        assert float(hours[1]) < 1


def test_modules_of_the_working_directory_are_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "http.py").write_text("raise SystemExit('a file of the user')")
    monkeypatch.chdir(tmp_path)
    with up(tmp_path / "demo", "--for", "1s") as running:
        running.wait_for_output("load starts")
        assert "is restarted" not in running.text()


def test_a_killed_demo_leaves_no_processes(tmp_path: Path) -> None:
    with up(tmp_path / "demo") as running:
        running.wait_for_output("load starts")
        assert len(processes(running.directory)) > 4
        running.process.kill()


def test_a_wrong_duration_is_refused_with_an_example(tmp_path: Path) -> None:
    with up(tmp_path / "demo", "--for", "soon") as running:
        assert running.process.wait(30) == 2
        assert "write 90s, 2m or 1h" in running.text()


def test_an_agent_that_cannot_start_ends_the_demo_with_its_reason(tmp_path: Path) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as taken,
        up(tmp_path / "\U0001f600", "--http-port", port_of(taken)) as ran,
    ):
        assert ran.process.wait(60) == 1
        assert "agent-1 exited 3 times, with 2 at last" in ran.text()
        assert f"cannot listen on 127.0.0.1:{port_of(taken)}" in ran.text()
        assert "load starts" not in ran.text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--http-port", "70000"), "'70000' is not a whole number from 0 to 65535"),
        (("--namespace", "a" * 101), "is not a name of 1 to 100 printable characters"),
        (
            ("--attach-etcd", "http://10.0.0.9:2379"),
            "--attach-etcd: is not encrypted. Use https://, or an etcd of this",
        ),
    ],
)
def test_an_option_that_no_agent_could_use_is_refused(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    with up(tmp_path / "demo", *arguments) as running:
        assert running.process.wait(30) == 2
        assert words in running.text()


def port_of(server: socket.socket) -> str:
    return str(server.getsockname()[1])
