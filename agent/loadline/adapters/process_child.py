"""Queries to a child process: a child that hangs, crashes or exhausts memory fails one query only."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import PIPE, Process
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeVar, cast

import msgspec

from loadline.adapters.backoff import backoff
from loadline.adapters.frames import FRAME_BYTES_MAX, LENGTH_BYTES, READY, with_length
from loadline.adapters.logs import bounded
from loadline.adapters.parent_death import die_with_parent

# With several threads, a fit of 60 points is fifty times slower on a busy machine (16 s instead of 0.3 s).
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_START_S: Final = 60.0  # importing pmdarima takes 2 s, and 20 s on a busy machine
_REAP_S: Final = 5.0  # the kernel needs milliseconds
_WAITING_MAX: Final = 1_024  # three series of 300 models
_RESTARTS_S: Final = (1.0, 60.0)

# The pipe broke, the child ended, or its answer cannot be decoded.
_FAILURES: Final = (OSError, EOFError, ValueError, RecursionError, msgspec.MsgspecError)

_log = bounded("child")
A = TypeVar("A")


class ChildUnanswered(Exception):
    """A query without an answer: the child was late, or away (dead, closed, or its answer was invalid)."""

    def __init__(self, why: Literal["late", "away"], detail: str) -> None:
        super().__init__(detail)
        self.why = why
        self.detail = detail


class ProcessChild:
    """A child process, started at the first query and restarted when it is late or dead.

    Args:
        command: Command of the child; it follows the protocol of ``frames``.
        on_unstarted: Called with the reason when the child cannot start, and again only after it has started.
    """

    def __init__(self, command: Sequence[str], on_unstarted: Callable[[str], None] = lambda _reason: None) -> None:
        self._command = command
        self._on_unstarted = on_unstarted
        self._startable = True
        self._child: Process | None = None
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._closed = False
        self._restarts = backoff(*_RESTARTS_S)
        self._failed_before = False
        self._start_at_s = 0.0

    @property
    def pid(self) -> int:
        """Process id of the child; 0 while there is none."""
        return self._child.pid if self._child is not None and self._child.returncode is None else 0

    async def ask(self, query: bytes, parse: Callable[[bytes], A], deadline_s: float) -> A:
        """Send a query and wait for its answer. Queries run one at a time; the deadline starts when this one does.

        Args:
            query: The query, encoded as a frame.
            parse: Decodes an answer; raises a ValueError or an error of msgspec if it is invalid.
            deadline_s: Time limit of the answer.

        Raises:
            ChildUnanswered: There is no answer.
        """
        if self._closed or self._waiting >= _WAITING_MAX:
            raise ChildUnanswered("away", "closed" if self._closed else "too many wait")
        self._waiting += 1
        try:
            async with self._turn:
                return await self._ask(query, parse, deadline_s)
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        """Kill the child and wait until it has ended."""
        self._closed = True
        self._kill()
        async with self._turn:
            await self._discard()

    async def _ask(self, query: bytes, parse: Callable[[bytes], A], deadline_s: float) -> A:
        try:
            child = await self._ready()
            async with asyncio.timeout(deadline_s):
                answer = parse(await _exchange(child, query))
        except TimeoutError:
            raise await self._failed("late", "no answer in time") from None
        except _FAILURES as error:
            raise await self._failed("away", f"{type(error).__name__}: {error}") from error
        except BaseException:
            await self._discard()  # cancelled: the next query would receive this answer
            raise
        self._failed_before = False
        self._restarts = backoff(*_RESTARTS_S)
        return answer

    async def _ready(self) -> Process:
        """Return the child, starting it if it is not running."""
        if self._child is not None and self.pid:
            return self._child
        await self._discard()
        if time.monotonic() < self._start_at_s:
            raise ChildUnanswered("away", "restarts after a wait")
        try:
            child = await self._start()
        except _FAILURES as error:
            unanswered = await self._failed("away", f"{type(error).__name__}: {error}")
            if self._startable and not self._closed:
                self._startable = False
                self._on_unstarted(unanswered.detail)
            raise unanswered from error
        self._startable = True
        return child

    async def _start(self) -> Process:
        """Start the child and wait until it is ready; raise one of ``_FAILURES`` if it is not."""
        self._child = child = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=PIPE,
            stdout=PIPE,
            env=os.environ | _ONE_THREAD,
            start_new_session=True,  # killed with all that it has started, and Ctrl-C is not for it
            preexec_fn=die_with_parent(),  # a system call and a comparison
        )
        if self._closed:
            raise ConnectionError("closed")
        try:
            async with asyncio.timeout(_START_S):
                if await _frame(child) != READY:
                    raise ValueError("no greeting")
        except TimeoutError:
            raise TimeoutError(f"not ready within {_START_S:.0f} s") from None
        except EOFError:
            raise EOFError("it ended before it was ready; the agent's standard error has its output") from None
        return child

    async def _failed(self, why: Literal["late", "away"], detail: str) -> ChildUnanswered:
        """Discard the child. The first failure restarts it at once, further consecutive ones after a wait."""
        await self._discard()
        if self._failed_before:
            self._start_at_s = time.monotonic() + next(self._restarts)
        self._failed_before = True
        if not self._closed:
            _log.warning("child_failed", why=why, detail=detail, command=self._command[-1])
        return ChildUnanswered(why, detail)

    async def _discard(self) -> None:
        """Kill the child, and wait until it has ended and its pipes are closed."""
        self._kill()
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.shield(_reap(child))

    def _kill(self) -> None:
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


def module_command(name: str, arguments: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the command of a child that runs a module of this package."""
    # -P: no module of the working directory, such as a random.py of the user, is imported.
    return (sys.executable, "-P", "-m", name, *arguments)


async def _exchange(child: Process, query: bytes) -> bytes:
    stdin = cast("StreamWriter", child.stdin)
    stdin.write(with_length(query))
    await stdin.drain()
    return await _frame(child)


async def _reap(child: Process) -> None:
    async with asyncio.timeout(_REAP_S):
        await child.communicate()


async def _frame(child: Process) -> bytes:
    stdout = cast("StreamReader", child.stdout)
    size = int.from_bytes(await stdout.readexactly(LENGTH_BYTES))
    if size > FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {size} bytes")
    return await stdout.readexactly(size)
