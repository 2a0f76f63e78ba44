"""Process of an engine that the sidecar ends: one that it has started, or one that others have."""

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from loadline.adapters.child_process import Child
from loadline.adapters.logs import bounded
from loadline.adapters.process_identity import identify
from loadline.adapters.watched_process import WatchedProcess
from loadline.client.resources import wait_at_most
from loadline.errors import ConfigError

# An empty engine ends within seconds; one that is told --shutdown-timeout waits for its requests first.
_END_S: Final = 30.0
_SHUTDOWN_OPTION: Final = "--shutdown-timeout"
_log = bounded("sidecar")


class EngineProcess(ABC):
    """Process of an engine, which a drain ends.

    Args:
        on_end: Called when it has ended.
    """

    def __init__(self, on_end: Callable[[], None]) -> None:
        self.ended = asyncio.Event()
        self.ending = "the engine ended"
        """Sentence about its end."""
        self.asked_to_end = False
        self._on_end = on_end
        self._process, command = self._watch()
        self.batch_slots = batch_slots(command)
        """Largest batch that its command sets; None: its default."""
        if cuts_streams(command):
            remedy = f"add {_SHUTDOWN_OPTION} 30: requests that outlast a drain then end, too"
            _log.warning("engine_cuts_streams", detail="vLLM aborts its requests at SIGTERM", remedy=remedy)

    @abstractmethod
    def _watch(self) -> tuple[WatchedProcess, Sequence[str]]:
        """Return the process, which calls ``_note_end``, and its command."""

    async def end(self) -> None:
        """Send SIGTERM once, and SIGKILL after 30 s."""
        if not self.asked_to_end:
            self.asked_to_end = True
            self._process.send("terminate")
        if not await wait_at_most(self.ended, _END_S):
            _log.warning("engine_killed", after_s=_END_S)
            self._process.send("kill")
            await self.ended.wait()

    def _note_end(self) -> None:
        self.ended.set()
        self._on_end()


class StartedEngine(EngineProcess):
    """Engine that the sidecar starts. With its children it never outlives the sidecar, even if that is killed.

    Args:
        command: Program and arguments.
        on_end: Called when it has ended.

    Raises:
        ConfigError: The process cannot be started.
    """

    def __init__(self, command: Sequence[str], on_end: Callable[[], None]) -> None:
        self._command = command
        super().__init__(on_end)

    def _watch(self) -> tuple[WatchedProcess, Sequence[str]]:
        try:
            return Child(self._command, {}, None, self._note_exit), self._command
        except OSError as error:
            problem = f"{self._command[0]} cannot be started: {error.strerror}"
            raise ConfigError("-- COMMAND", problem, "Write the path of the engine's program.") from error

    def _note_exit(self, code: int) -> None:
        self.ending = f"the engine ended with exit code {code}"
        self._note_end()


class FoundEngine(EngineProcess):
    """Engine that others have started. It outlives the sidecar, unless it is drained.

    Args:
        pid: Its process.
        on_end: Called when it has ended.

    Raises:
        ConfigError: There is no such process, or it belongs to another user.
    """

    def __init__(self, pid: int, on_end: Callable[[], None]) -> None:
        self._pid = pid
        super().__init__(on_end)

    def _watch(self) -> tuple[WatchedProcess, Sequence[str]]:
        try:
            os.kill(self._pid, 0)
            command = Path(f"/proc/{self._pid}/cmdline").read_text("utf-8", errors="replace").split("\0")
            return WatchedProcess(identify(self._pid), self._note_end), command
        except PermissionError as error:
            problem = f"process {self._pid} belongs to another user"
            raise ConfigError("--pid", problem, "Run the sidecar as the user of the engine.") from error
        except OSError as error:
            problem = f"there is no process {self._pid}"
            raise ConfigError("--pid", problem, "Write the id of the engine's process.") from error

    def forget(self) -> None:
        """Watch it no longer."""
        self._process.forget()


def cuts_streams(command: Sequence[str]) -> bool:
    """Return True for a vLLM that aborts its requests at SIGTERM, its default."""
    if not any(word.rsplit("/", 1)[-1].startswith("vllm") for word in command):
        return False
    return _value(command, _SHUTDOWN_OPTION) in ("", "0")


def batch_slots(command: Sequence[str]) -> int | None:
    """Return the largest batch that a command of vLLM sets; None: its default."""
    written = _value(command, "--max-num-seqs")
    return int(written) if written.isascii() and written.isdigit() else None


def _value(command: Sequence[str], option: str) -> str:
    """Return the value of an option, written as ``--option value`` or ``--option=value``; empty: it has none."""
    for word, following in pairwise([*command, ""]):
        name, equals, value = word.partition("=")
        if name.replace("_", "-") == option:  # vLLM takes both
            return value if equals else following
    return ""
