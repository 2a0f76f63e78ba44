"""Processes are told apart by more than their ids, and none is left behind."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from loadline.adapters.process_identity import ProcessIdentity, identify, kill_tree, open_pidfd
from loadline.adapters.watched_process import WatchedProcess
from tests.waiting import until, until_true

pytestmark = pytest.mark.process


@pytest.fixture
def sleeper() -> Iterator["subprocess.Popen[bytes]"]:
    with subprocess.Popen(["/bin/sleep", "600"], start_new_session=True) as process:
        yield process
        process.kill()


def test_a_process_that_has_the_id_of_another_one_gets_no_signal(sleeper: "subprocess.Popen[bytes]") -> None:
    found = identify(sleeper.pid)
    for other in (replace(found, start_ticks=found.start_ticks - 1), replace(found, boot_id="of another boot")):
        with pytest.raises(ProcessLookupError):
            open_pidfd(other)
        kill_tree(other)
    assert sleeper.poll() is None
    kill_tree(found)
    assert sleeper.wait(60) == -signal.SIGKILL


def test_children_and_other_sessions_end_with_the_process(tmp_path: Path) -> None:
    script = f"sleep 600 & echo $! > {tmp_path}/a; setsid sh -c 'echo $$ > {tmp_path}/b; sleep 600 & wait' & wait"
    with subprocess.Popen(["/bin/sh", "-c", script], start_new_session=True) as process:
        pids = wait_for_pids(tmp_path / "a", tmp_path / "b")
        kill_tree(identify(process.pid))
        process.wait(60)
    until_true(lambda: not any(map(runs, pids)), "all have ended")


def test_what_an_ended_process_left_in_its_session_ends_too(tmp_path: Path) -> None:
    process = subprocess.Popen(["/bin/sh", "-c", f"sleep 600 & echo $! > {tmp_path}/a"], start_new_session=True)
    found = identify(process.pid)
    [pid] = wait_for_pids(tmp_path / "a")
    process.wait()
    assert runs(pid)
    kill_tree(found)
    until_true(lambda: not runs(pid), "it has ended")


def test_what_a_process_left_that_ended_before_it_was_watched_ends_too(tmp_path: Path) -> None:
    process = subprocess.Popen(["/bin/sh", "-c", f"sleep 600 & echo $! > {tmp_path}/a"], start_new_session=True)
    found = identify(process.pid)
    [pid] = wait_for_pids(tmp_path / "a")
    process.wait()
    assert runs(pid)
    with pytest.raises(ProcessLookupError):
        WatchedProcess(found, lambda: None)
    until_true(lambda: not runs(pid), "it has ended", deadline_s=10)


def test_one_process_that_cannot_be_killed_does_not_save_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"sleep 600 & echo $! > {tmp_path}/a; sleep 600 & echo $! > {tmp_path}/b; wait"
    send, refused = signal.pidfd_send_signal, list[int]()

    def refuse_first(pidfd: int, number: int) -> None:
        if not refused:
            refused.append(pidfd)
            raise PermissionError(1, "refused")
        send(pidfd, number)

    with subprocess.Popen(["/bin/sh", "-c", script], start_new_session=True) as process:
        pids = [process.pid, *wait_for_pids(tmp_path / "a", tmp_path / "b")]
        try:
            monkeypatch.setattr(signal, "pidfd_send_signal", refuse_first)
            kill_tree(identify(process.pid))
            until_true(lambda: sum(map(runs, pids)) == 1, "two have ended", deadline_s=10)
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def test_an_end_is_told_even_if_what_it_left_cannot_be_killed(
    sleeper: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_identity: ProcessIdentity) -> None:
        raise OSError(24, "Too many open files")

    async def scenario() -> None:
        ended: list[bool] = []
        watched = WatchedProcess(identify(sleeper.pid), lambda: ended.append(True))
        monkeypatch.setattr("loadline.adapters.watched_process.kill_tree", fail)
        watched.send("terminate")
        await until(lambda: ended, "its end is told", deadline_s=10)

    asyncio.run(scenario())


def test_the_end_of_a_process_of_somebody_else_is_noticed(sleeper: "subprocess.Popen[bytes]") -> None:
    async def scenario() -> None:
        ended: list[bool] = []
        watched = WatchedProcess(identify(sleeper.pid), lambda: ended.append(True))
        watched.send("terminate")
        await until(lambda: ended, "its end is noticed")
        watched.send("kill")

    asyncio.run(scenario())
    assert sleeper.wait(60) == -signal.SIGTERM


def wait_for_pids(*paths: Path) -> list[int]:
    until_true(lambda: all(path.exists() and path.read_text() for path in paths), "the processes run")
    return [int(path.read_text("ascii")) for path in paths]


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0] != "Z"
