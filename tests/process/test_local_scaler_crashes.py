"""Local scaler that is killed between any two of its steps: the next one adopts its workers."""

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import pytest

from loadline.core.vocabulary.decisions import PoolTarget, Victim
from tests.support.crashing_scaler import CIRCUS, LATER, scale
from tests.waiting import until_true

pytestmark = pytest.mark.process

STEPS: Final = 6
"""Steps of the longest decision below: two workers are created and released, and the state is written twice."""
# A fork of a process that has imported the scaler starts at once.
SCALERS: Final = multiprocessing.get_context("forkserver")
SCALERS.set_forkserver_preload(["tests.support.crashing_scaler"])
CIRCUS_STEPS: Final = 7
CIRCUS_CONFIG: Final = """
[circus]
endpoint = ipc://{directory}/circus.sock
pubsub_endpoint = ipc://{directory}/events.sock
check_delay = 1
"""
CONFIG: Final = """
gpus = ["0", "1"]
avoid_used_gpus = false
first_port = {port}
ports = 20
state_file = "{directory}/state.json"
on_stop = "leave"
linger_ms = 50
settle_ms = 100
restart_backoff_ms = 50
[[models]]
name = "m"
[[models.pools]]
name = "p"
role = "decode"
command = ["sh", "-c", '''
echo start {{worker}} {{gpus}} {{port}} $$ >> {directory}/events
trap 'echo term {{name}} >> {directory}/events; exit 0' TERM
sleep 600 & wait
''']
"""


class Host:
    """A directory with the state of a scaler and what its workers did."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        (directory / "local.toml").write_text(CONFIG.format(directory=directory, port=23_100), "utf-8")

    def apply(self, number: int, replicas: int, victim: str = "", *, step: int) -> bool:
        """Apply a decision with a scaler that is killed at a step, then with another one; return if it was killed."""
        victims = (Victim(victim, LATER),) if victim else ()
        target = PoolTarget("p", "decode", replicas, 0, victims)
        (self.directory / "decision.json").write_bytes(msgspec.json.encode((number, target)))
        killed = self._run(step) == -signal.SIGKILL
        if killed:
            assert self._run(0) == 0
        return killed

    def events(self, kind: str) -> list[list[str]]:
        path = self.directory / "events"
        lines = path.read_text("ascii").splitlines() if path.exists() else []
        return [line.split()[1:] for line in lines if line.startswith(kind)]

    def running(self) -> dict[str, tuple[str, str]]:
        """Return GPU and port of each worker that runs, by name."""
        started = self.events("start")
        return {name: (gpu, port) for name, gpu, port, pid in started if _runs(int(pid))}

    def end(self) -> None:
        for *_, pid in self.events("start"):
            if _runs(int(pid)):
                os.killpg(int(pid), signal.SIGKILL)

    def _run(self, step: int) -> int:
        process = SCALERS.Process(target=scale, args=(self.directory, step))
        process.start()
        process.join(60)
        assert process.exitcode in {0, -signal.SIGKILL}
        return process.exitcode


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    started = Host(tmp_path)
    yield started
    started.end()


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_a_scaler_killed_between_two_steps_loses_and_doubles_no_worker(host: Host, step: int) -> None:
    check_decisions(host, step)


@pytest.mark.parametrize("step", range(1, CIRCUS_STEPS + 1))
def test_the_same_holds_for_workers_in_circusd(host: Host, step: int) -> None:
    with circusd(host.directory):
        check_decisions(host, step)


def check_decisions(host: Host, step: int) -> None:
    """Scale a pool up, down and up again, with a scaler that is killed at a step each time."""
    assert host.apply(1, 2, step=step)
    until_true(lambda: len(host.running()) == 2, "two workers run")
    assert len(host.events("start")) == 2
    victim, survivor = sorted(host.running())

    host.apply(2, 1, victim, step=step)
    assert set(host.running()) == {survivor}
    assert host.events("term") == [[victim]]
    lines = (host.directory / "events").read_text("ascii").splitlines()
    assert lines.index(f"drained {victim}") < lines.index(f"term {victim}")

    host.apply(3, 2, step=step)
    until_true(lambda: len(host.running()) == 2, "two workers run")
    assert survivor in host.running()
    assert len(host.events("start")) == 3
    (first_gpu, first_port), (second_gpu, second_port) = host.running().values()
    assert {first_gpu, second_gpu} == {"0", "1"}
    assert first_port != second_port


def test_every_step_is_among_those_above(host: Host) -> None:
    assert not host.apply(1, 2, step=STEPS + 1)
    assert not host.apply(2, 1, "p-1", step=STEPS + 1)


def test_every_step_with_circusd_is_among_those_above(host: Host) -> None:
    with circusd(host.directory):
        assert not host.apply(1, 2, step=CIRCUS_STEPS + 1)
        assert not host.apply(2, 1, "p-1", step=CIRCUS_STEPS + 1)


@contextmanager
def circusd(directory: Path) -> Iterator[None]:
    """Run circusd."""
    config = directory / "circus.ini"
    config.write_text(CIRCUS_CONFIG.format(directory=directory), "utf-8")
    process = subprocess.Popen([sys.executable, "-m", "circus.circusd", "--log-level", "error", str(config)])
    try:
        until_true((directory / CIRCUS).exists, "circusd listens")
        yield
    finally:
        process.kill()
        process.wait()


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
