"""Fits in a child process: one that hangs, crashes or takes all the memory costs that fit, and nothing else."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from asyncio import StreamReader, StreamWriter
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from typing import Final, cast

import msgspec

from loadline.adapters.backoff import backoff
from loadline.adapters.children import die_with_parent
from loadline.adapters.fitting import FRAME_BYTES_MAX, LENGTH_BYTES, READY, framed
from loadline.adapters.logs import bounded
from loadline.core.forecasts import Fallback, Forecast, Question
from loadline.forecast import last_value

# More threads than one make a fit of 60 points fifty times as slow where the cores are taken (16 s instead of 0.3 s).
_ONE_THREAD: Final = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_START_S: Final = 60.0  # importing pmdarima takes 2 s, and 20 s on a machine that is full
_REAP_S: Final = 5.0  # the kernel needs milliseconds
_WAITING_MAX: Final = 1_024  # three series of 300 models
_RESTARTS_S: Final = (1.0, 60.0)

# The pipe broke, the child ended, or what it says is nonsense.
_FAILURES: Final = (OSError, EOFError, ValueError, RecursionError, msgspec.MsgspecError)

_log = bounded("fitter")
_decoder = msgspec.json.Decoder(Forecast | None)


class ProcessFitter:
    """A ``Fitter`` with one child, which is started when it is first needed and lives until it is late or dead.

    Args:
        imports: Modules that the child imports as it starts, so that no fit has to wait for them.
        command: Another child that speaks the same protocol.
    """

    def __init__(self, imports: Sequence[str] = (), command: Sequence[str] = ()) -> None:
        self._command = (*(command or (sys.executable, "-m", "loadline.adapters.fitting")), *imports)
        self._child: Process | None = None
        self._turn = asyncio.Lock()
        self._waiting = 0
        self._closed = False
        self._restarts = backoff(*_RESTARTS_S)
        self._failed_before = False
        self._start_at_s = 0.0

    @property
    def pid(self) -> int:
        """Of the child; 0 while there is none."""
        return self._child.pid if self._child is not None and self._child.returncode is None else 0

    async def fit(self, question: Question, deadline_s: float) -> Forecast | None:
        """The forecast, or the last value where the child was late, died or talked nonsense; see ``Fitter``."""
        if self._closed or self._waiting >= _WAITING_MAX:
            return last_value(question, "away", "closed" if self._closed else "too many wait")
        self._waiting += 1
        try:
            async with self._turn:
                return await self._fit(question, deadline_s)
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        """Kill the child and wait for its end."""
        self._closed = True
        self._kill()
        async with self._turn:
            await self._discard()

    async def _fit(self, question: Question, deadline_s: float) -> Forecast | None:
        fallback: Fallback = "away"
        try:
            child = await self._ready()
            fallback = "late"
            async with asyncio.timeout(deadline_s):
                answer = await _asked(child, question)
        except TimeoutError:
            return await self._failed(question, fallback, "no answer in time")
        except _FAILURES as error:
            return await self._failed(question, "away", f"{type(error).__name__}: {error}")
        except BaseException:
            await self._discard()  # cancelled: the answer would be taken for the next question's
            raise
        self._failed_before = False
        self._restarts = backoff(*_RESTARTS_S)
        return answer

    async def _ready(self) -> Process:
        """The child, started if need be: it may have died since it last answered."""
        if self._child is not None and self.pid:
            return self._child
        await self._discard()
        if time.monotonic() < self._start_at_s:
            raise ConnectionError("waits before it starts again")
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
        async with asyncio.timeout(_START_S):
            if await _frame(child) != READY:
                raise ValueError("no greeting")
        return child

    async def _failed(self, question: Question, fallback: Fallback, detail: str) -> Forecast | None:
        """Get rid of the child. The first failure restarts it at once, more in a row only after a wait."""
        if self._child is not None:
            await self._discard()
            if self._failed_before:
                self._start_at_s = time.monotonic() + next(self._restarts)
            self._failed_before = True
            if not self._closed:
                _log.warning("fit_failed", fallback=fallback, detail=detail, predictor=question.knobs.predictor)
        return last_value(question, fallback, detail)

    async def _discard(self) -> None:
        """Kill the child and wait for its end, and for that of its pipes."""
        self._kill()
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(TimeoutError):
                await asyncio.shield(asyncio.wait_for(child.communicate(), _REAP_S))

    def _kill(self) -> None:
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)


async def _asked(child: Process, question: Question) -> Forecast | None:
    stdin = cast("StreamWriter", child.stdin)
    stdin.write(framed(msgspec.json.encode(question)))
    await stdin.drain()
    answer: Forecast | None = _decoder.decode(await _frame(child))
    if answer is not None and not len(answer.mean) == len(answer.upper) == question.horizon:
        raise ValueError("another horizon than was asked for")
    return answer


async def _frame(child: Process) -> bytes:
    stdout = cast("StreamReader", child.stdout)
    size = int.from_bytes(await stdout.readexactly(LENGTH_BYTES))
    if size > FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {size} bytes")
    return await stdout.readexactly(size)
