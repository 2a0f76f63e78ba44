"""Process of an engine that the sidecar has started."""

import asyncio
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final

from loadline.adapters.child_process import Child
from loadline.adapters.logs import bounded
from loadline.client.resources import wait_at_most
from loadline.errors import ConfigError

# An empty engine ends within seconds; one that is told --shutdown-timeout waits for its requests first.
_END_S: Final = 30.0
_SHUTDOWN_OPTION: Final = "--shutdown-timeout"
_log = bounded("sidecar")


class EngineProcess:
    """Engine process, which with its children never outlives the sidecar, even if that is killed.

    Args:
        command: Program and arguments.
        on_exit: Called when it has ended.

    Raises:
        ConfigError: The process cannot be started.
    """

    def __init__(self, command: Sequence[str], on_exit: Callable[[], None]) -> None:
        self.ended = asyncio.Event()
        self.exit_code: int | None = None
        """None while it runs."""
        self.asked_to_end = False
        self._on_exit = on_exit
        try:
            self._child = Child(command, {}, None, self._exited)
        except OSError as error:
            problem = f"{command[0]} cannot be started: {error.strerror}"
            raise ConfigError("-- COMMAND", problem, "Write the path of the engine's program.") from error
        if cuts_streams(command):
            remedy = f"add {_SHUTDOWN_OPTION} 30: requests that outlast a drain then end, too"
            _log.warning("engine_cuts_streams", detail="vLLM aborts its requests at SIGTERM", remedy=remedy)

    async def end(self) -> None:
        """Send SIGTERM once, and SIGKILL after 30 s."""
        if not self.asked_to_end:
            self.asked_to_end = True
            self._child.send("terminate")
        if not await wait_at_most(self.ended, _END_S):
            _log.warning("engine_killed", after_s=_END_S)
            self._child.send("kill")
            await self.ended.wait()

    def _exited(self, code: int) -> None:
        self.exit_code = code
        self.ended.set()
        self._on_exit()


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
        if name == option:
            return value if equals else following
    return ""
