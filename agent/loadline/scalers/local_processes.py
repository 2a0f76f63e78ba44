"""Worker processes that never outlive the scaler, and the file of their lifetimes."""

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from loadline.adapters.logs import bounded
from loadline.adapters.parent_death import die_with_parent

_SIGNALS: Final = {"terminate": signal.SIGTERM, "kill": signal.SIGKILL}
_log = bounded("local_scaler")


class Lifetime(Struct, frozen=True):
    """Lifetime of a worker process, for GPU-hours. Unix times in ms."""

    worker: str
    model: str
    pool: str
    gpus: int
    started_at_ms: int
    ended_at_ms: int
    reason: str


class Lifetimes:
    """JSON Lines file of lifetimes. A write error is logged and does not stop the scaler.

    Args:
        path: Path of the file; None: nothing is written.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)

    def add(self, lifetime: Lifetime) -> None:
        """Append a lifetime."""
        if self._path is None:
            return
        try:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(lifetime) + b"\n")
        except OSError as error:
            _log.error("lifetime_not_written", worker=lifetime.worker, error=str(error))


class Child:
    """Worker process in its own process group. Create it in the event loop of the main thread.

    Args:
        command: Program and arguments.
        env: Variables added to the environment of this process.
        log_path: File to append its output to; None: the output of this process.
        on_exit: Called once with the exit code; negative: the signal that ended it.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], log_path: Path | None, on_exit: Callable[[int], None]
    ) -> None:
        self._on_exit = on_exit
        self._process = _spawn(command, env, log_path)
        self._pidfd = os.pidfd_open(self._process.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._ended)

    def send(self, kind: Literal["terminate", "kill"]) -> None:
        """Send a signal to the process group, unless the process has ended."""
        if self._process.returncode is None:
            os.killpg(self._process.pid, _SIGNALS[kind])

    def _ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        # Kill its own children too. The group id is still valid: the process has ended but was not waited for yet.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._on_exit(self._process.wait())


def _spawn(command: Sequence[str], env: Mapping[str, str], log_path: Path | None) -> "subprocess.Popen[bytes]":
    """Start a process that ends with this one, even on SIGKILL."""
    with ExitStack() as stack:
        output = None
        if log_path is not None:
            log_path.parent.mkdir(parents=True, exist_ok=True)
            output = stack.enter_context(log_path.open("ab"))
        return subprocess.Popen(  # noqa: S603 - the purpose is to run the operator's command
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **env},
            # Ctrl-C goes to the whole foreground group; the scaler stops its children in order.
            start_new_session=True,
            preexec_fn=die_with_parent(),  # noqa: PLW1509 - safe, see die_with_parent
        )


def fill_template(template: Sequence[str], names: Mapping[str, str]) -> list[str]:
    """Replace each ``{name}`` in a command; other braces stay, so that JSON arguments need no escaping."""
    filled = []
    for argument in template:
        for name, value in names.items():
            argument = argument.replace(f"{{{name}}}", value)  # noqa: PLW2901 - each name in turn
        filled.append(argument)
    return filled


def unix_ms() -> int:
    """Unix time in ms."""
    return time.time_ns() // 1_000_000
