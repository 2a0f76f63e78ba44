"""Run a command: bytes in, bounded output out, and a reason if it fails."""

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Final, cast

from loadline.client.resources import wait_at_most

_STDERR: Final = 2
_OUTPUT_BYTES_MAX: Final = 1_048_576
_REASON_CHARS_MAX: Final = 200
# A command has written its output when it exits, except through a filter of its own, such as tee.
_AFTER_EXIT_S: Final = 0.5


class CommandFailed(Exception):
    """A command that cannot be started, fails, prints too much or does not end in time; its text is the reason."""


class _Protocol(asyncio.SubprocessProtocol):
    """Output of a command up to its limit, and the end of its stderr, in which the reason of a failure is."""

    def __init__(self) -> None:
        self.output = bytearray()
        self.errors = bytearray()
        self.stopped = asyncio.Event()
        """Set when the command has exited, or has printed too much."""
        self.exited = asyncio.Event()
        self.closed = asyncio.Event()
        """Set when the command has exited and nothing holds its pipes."""

    @property
    def exceeded(self) -> bool:
        return len(self.output) > _OUTPUT_BYTES_MAX

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == _STDERR:
            self.errors += data
            del self.errors[: -4 * _REASON_CHARS_MAX]
        elif not self.exceeded:
            self.output += data
            if self.exceeded:
                self.stopped.set()

    def process_exited(self) -> None:
        self.exited.set()
        self.stopped.set()

    def connection_lost(self, _error: Exception | None) -> None:
        self.closed.set()


async def run_command(command: Sequence[str], order: bytes, timeout_s: float) -> bytes:
    """Run a command with ``order`` on stdin and return its output.

    The call ends when the command has exited, even if a program that it started and left running holds its pipes.

    Raises:
        CommandFailed: There is no output.
    """
    loop = asyncio.get_running_loop()
    try:
        transport, running = await loop.subprocess_exec(_Protocol, *command, start_new_session=True)
    except OSError as error:
        raise CommandFailed(f"it cannot be started: {error.strerror}") from error
    with closing(transport):
        try:
            stdin = cast("asyncio.WriteTransport", transport.get_pipe_transport(0))
            stdin.write(order)
            stdin.write_eof()
            if not await wait_at_most(running.stopped, timeout_s):
                raise CommandFailed(f"it did not end within {timeout_s * 1_000:.0f} ms")
            if running.exited.is_set():
                await wait_at_most(running.closed, _AFTER_EXIT_S)
        finally:
            # Its children too: they would continue beside the next call. What a successful call started stays.
            if not running.exited.is_set():
                with suppress(ProcessLookupError):
                    os.killpg(transport.get_pid(), signal.SIGKILL)
                await running.exited.wait()
            elif transport.get_returncode():
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(transport.get_pid(), signal.SIGKILL)
            if stdin.get_write_buffer_size():  # nobody has read it
                stdin.abort()
    if running.exceeded:
        raise CommandFailed(f"its output exceeds {_OUTPUT_BYTES_MAX} bytes")
    if code := transport.get_returncode():
        reason = running.errors.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise CommandFailed(f"{reason[:_REASON_CHARS_MAX]} (exit code {code})" if reason else f"exit code {code}")
    return bytes(running.output)
