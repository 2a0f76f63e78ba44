"""Commands of scalers: bounded output, and ends of a call that a command cannot delay."""

import asyncio
import os
from functools import partial
from pathlib import Path

import pytest

from loadline.scalers import command
from loadline.scalers.command import CommandFailed, run_command
from tests.waiting import until, until_true

TIMEOUT_S = 60.0


def run(script: str, order: bytes = b"", timeout_s: float = TIMEOUT_S) -> bytes:
    return asyncio.run(run_command(("sh", "-c", script), order, timeout_s))


def ended(pid_file: Path) -> bool:
    """Return True if the process is gone, or waits to be reaped."""
    try:
        stat = Path("/proc", pid_file.read_text("utf-8").strip(), "stat").read_text("utf-8")
    except OSError:
        return True
    return stat.rsplit(")", 1)[1].split()[0] == "Z"


def test_the_order_is_its_input_and_its_output_is_returned() -> None:
    assert run("cat", b"x" * 1_000_000) == b"x" * 1_000_000


def test_a_command_that_prints_without_end_is_killed_before_its_output_fills_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(command, "_OUTPUT_BYTES_MAX", 1_000)
    with pytest.raises(CommandFailed, match="its output exceeds 1000 bytes"):
        run("yes")
    assert run("yes | head -c 1000000 >&2; echo done") == b"done\n"


def test_a_command_that_does_not_read_its_order_ends_the_call(tmp_path: Path) -> None:
    order = b"x" * 1_000_000
    assert run("echo done", order) == b"done\n"
    pid = tmp_path / "pid"
    # A program that it has left running holds stdin, stdout and stderr: the call ends before it, and before its time.
    assert run(f"exec 3<&0; sleep 600 <&3 & echo $! > {pid}; echo done", order, timeout_s=3_600) == b"done\n"
    assert not ended(pid)
    os.kill(int(pid.read_text("utf-8")), 9)


def test_output_of_a_filter_that_ends_after_the_command_is_read() -> None:
    assert run("(sleep 0.05; echo filtered) & exit") == b"filtered\n"


@pytest.mark.parametrize("detached", ["", "setsid "])
def test_a_command_that_does_not_end_is_killed_with_its_children(detached: str, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    child = f"{detached}sh -c 'echo $$ > {pid}; exec sleep 600'"
    with pytest.raises(CommandFailed, match="it did not end within 2000 ms"):
        run(f"{child} & wait", timeout_s=2)
    if detached:  # it has left the command's group on purpose, and holds its pipes
        assert not ended(pid)
        os.kill(int(pid.read_text("utf-8")), 9)
    until_true(lambda: ended(pid), "the child has ended")


def test_the_children_of_a_command_that_fails_are_killed(tmp_path: Path) -> None:
    """They would run beside the next call; what a successful call has started stays."""
    for code in (1, 0):
        pid = tmp_path / f"pid-{code}"
        script = f"sleep 1000 </dev/null >/dev/null 2>&1 & echo $! > {pid}; exit {code}"
        if code:
            with pytest.raises(CommandFailed, match="exit code 1"):
                run(script)
            until_true(partial(ended, pid), "the child has ended")
        else:
            run(script)
            assert not ended(pid)
            os.kill(int(pid.read_text("utf-8")), 9)


def test_a_cancelled_call_kills_the_command(tmp_path: Path) -> None:
    pid = tmp_path / "pid"

    async def scenario() -> None:
        call = asyncio.create_task(run_command(("sh", "-c", f"echo $$ > {pid}; exec yes >&2"), b"", TIMEOUT_S))
        await until(lambda: pid.exists() and pid.read_text("utf-8"), "the command runs")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert ended(pid)

    asyncio.run(scenario())
