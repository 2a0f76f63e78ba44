"""Child processes that never outlive this one, even if it is killed."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Literal

from loadline.adapters.group_guard import GroupGuard
from loadline.adapters.parent_death import die_with_parent

_SIGNALS: Final = {"terminate": signal.SIGTERM, "kill": signal.SIGKILL}


class Child:
    """Process in its own process group, which ends with this one, even if this one is killed.

    Create it in the event loop of the main thread.

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
        try:
            self._guard = GroupGuard(self._process.pid)
        except OSError:
            self._process.kill()
            self._process.wait()
            raise
        self._pidfd = os.pidfd_open(self._process.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._ended)

    def send(self, kind: Literal["terminate", "kill"], *, group: bool = True) -> None:
        """Send a signal to the process, and to its own group if ``group``, unless the process has ended.

        ``kill`` with ``group`` also kills descendants in other groups: an engine that a sidecar has started would hold
        its GPU memory for ever.
        """
        if self._process.returncode is not None:
            return
        elsewhere = _descendants(self._process.pid) if group and kind == "kill" else ()
        (os.killpg if group else os.kill)(self._process.pid, _SIGNALS[kind])
        for pid in elsewhere:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        # Kill its own children too. The group id is still valid: the process has ended but was not waited for yet.
        os.killpg(self._process.pid, signal.SIGKILL)
        self._guard.dismiss()
        self._on_exit(self._process.wait())


def _descendants(pid: int) -> list[int]:
    """Return the ids of the children of a process, their children, and so on."""
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, children.read_text("ascii").split()):
                found += [child, *_descendants(child)]
    return found


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
            # Ctrl-C goes to the whole foreground group; children are stopped in order.
            start_new_session=True,
            preexec_fn=die_with_parent(),  # noqa: PLW1509 - safe, see die_with_parent
        )
