"""Child processes: one that never outlives this one, even if it is killed, and one that starts in two steps."""

import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from loadline.adapters.group_guard import GroupGuard
from loadline.adapters.parent_death import die_with_parent
from loadline.adapters.process_identity import identify
from loadline.adapters.watched_process import WatchedProcess

# The end of its input is the end of the process that should have opened the gate.
_GATE: Final = ("/bin/sh", "-c", 'read -r opened && exec "$@" </dev/null', "sh")


class Child(WatchedProcess):
    """Process in its own session, which ends with this one, even if this one is killed.

    Create it in the event loop of the main thread.

    Args:
        command: Program and arguments.
        env: Variables added to the environment of this process.
        log_path: File to append its output to; None: the output of this process.
        on_exit: Called once with the exit code; negative: the signal that ended it.
        stdin: Its input, as ``subprocess.Popen`` takes it.
        outlives: True if it outlives this process, against the rule.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        log_path: Path | None,
        on_exit: Callable[[int], None],
        *,
        stdin: int = subprocess.DEVNULL,
        outlives: bool = False,
    ) -> None:
        self._on_exit = on_exit
        self._process = _spawn(command, env, log_path, stdin, None if outlives else die_with_parent())
        try:
            self._guard = None if outlives else GroupGuard(self._process.pid)
            super().__init__(identify(self._process.pid), self._reap)
        except OSError:
            self._process.kill()
            self._process.wait()
            raise

    def _reap(self) -> None:
        if self._guard is not None:
            self._guard.dismiss()
        self._on_exit(self._process.wait())


class GatedChild(Child):
    """Process in its own session, which waits behind a gate and then runs its command under the same id.

    If this process ends before, so does the child, and its command never runs.

    Args:
        command: Program and arguments.
        env: Variables added to the environment of this process.
        log_path: File to append its output to; None: the output of this process.
        on_exit: Called once with the exit code; negative: the signal that ended it.
        outlives: True if it outlives this process once the gate was opened.

    Raises:
        OSError: The process cannot be started.
    """

    def __init__(
        self,
        command: Sequence[str],
        env: Mapping[str, str],
        log_path: Path | None,
        on_exit: Callable[[int], None],
        *,
        outlives: bool,
    ) -> None:
        super().__init__([*_GATE, *command], env, log_path, on_exit, stdin=subprocess.PIPE, outlives=outlives)

    def open_gate(self) -> None:
        """Let it run its command."""
        pipe = self._process.stdin
        if pipe is not None:
            with suppress(BrokenPipeError), pipe:
                pipe.write(b"\n")


def _spawn(
    command: Sequence[str],
    env: Mapping[str, str],
    log_path: Path | None,
    stdin: int,
    prepare: Callable[[], None] | None,
) -> "subprocess.Popen[bytes]":
    with ExitStack() as stack:
        output = None
        if log_path is not None:
            log_path.parent.mkdir(parents=True, exist_ok=True)
            output = stack.enter_context(log_path.open("ab"))
        return subprocess.Popen(  # noqa: S603 - the purpose is to run the operator's command
            list(command),
            stdin=stdin,
            stdout=output,
            stderr=output,
            env={**os.environ, **env},
            # Ctrl-C goes to the whole foreground group; children are stopped in order.
            start_new_session=True,
            preexec_fn=prepare,  # noqa: PLW1509 - safe, see die_with_parent
        )
