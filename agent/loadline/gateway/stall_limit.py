"""Limit of the time for which an engine may send nothing once it has begun to stream tokens."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Self

from loadline.gateway.engine_client import EngineBroken


class StallLimit:
    """Time limit of each wait for an engine, as a context manager; raises ``EngineBroken`` at its end.

    One timer a stream, not one a chunk, looks at the wait: a gateway relays 17,000 chunks per second.

    Args:
        limit_s: Longest wait.
        end: Called when a wait is longer; ends the body of the ``with``.
    """

    def __init__(self, limit_s: float, end: Callable[[], None]) -> None:
        self._limit_s = limit_s
        self._end = end
        self._exceeded = False
        self._waits_since_s: float | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(limit_s, self._check)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the timer.

        Raises:
            EngineBroken: A wait was too long.
        """
        self._timer.cancel()
        if self._exceeded and not isinstance(error, asyncio.CancelledError):
            raise EngineBroken(f"it sent nothing for {self._limit_s:g} s") from error

    def begin_wait(self) -> None:
        """Begin to wait for the engine."""
        self._waits_since_s = self._loop.time()

    def end_wait(self) -> None:
        """Record that the engine sent something: the time that a slow client takes is not the engine's."""
        self._waits_since_s = None

    def _check(self) -> None:
        now_s, since_s = self._loop.time(), self._waits_since_s
        due_s = self._limit_s + (now_s if since_s is None else since_s)
        if due_s > now_s:
            self._timer = self._loop.call_at(due_s, self._check)
            return
        self._exceeded = True
        self._end()
