"""Limits of the wait for an engine: a pause in its output, and an engine that is away."""

import asyncio
from types import TracebackType
from typing import Final, Self

from loadline.gateway.backends import Backend
from loadline.gateway.engine_client import EngineBroken

# A sidecar that was just started is ready within a second; one whose engine is away has waited for 10 s already.
_AWAY_S: Final = 5.0
_CHECK_S: Final = 1.0


class EngineWait:
    """Time limit of each wait for an engine, as an async context manager; raises ``EngineBroken`` at its end.

    An engine that has sent output may pause for ``stall_s``. Before its first output it may take any time, since that
    waits for other requests, unless the engine is away: its sidecar knows by its metrics that it hangs.

    One timer a stream, not one a chunk, looks at the wait: a gateway relays 17,000 chunks per second.

    Args:
        backend: Worker of the engine.
        stall_s: Longest pause.
    """

    def __init__(self, backend: Backend, stall_s: float) -> None:
        self._backend = backend
        self._stall_s = stall_s
        self._loop = asyncio.get_running_loop()
        self._since_s: float | None = self._loop.time()
        """Begin of the present wait; None: the client is sent what has come."""
        self._has_output = False
        self._away_since_s: float | None = None
        self._reason = ""
        self._timeout = asyncio.timeout(None)

    async def __aenter__(self) -> Self:
        """Begin to wait for the answer."""
        await self._timeout.__aenter__()
        self._timer = self._loop.call_later(min(_CHECK_S, self._stall_s), self._check)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop the timer.

        Raises:
            EngineBroken: A wait was too long.
        """
        self._timer.cancel()
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            raise EngineBroken(self._reason) from None

    def begin(self, *, has_output: bool) -> None:
        """Begin to wait for the engine's next output; ``has_output``: it has sent some."""
        self._since_s, self._has_output = self._loop.time(), has_output

    def end(self) -> None:
        """Record that the engine sent something: the time that a slow client takes is not the engine's."""
        self._since_s = None

    def _check(self) -> None:
        now_s = self._loop.time()
        if not self._backend.is_away:
            self._away_since_s = None
        elif self._away_since_s is None:
            self._away_since_s = now_s
        self._reason = "" if self._since_s is None else self._excess(now_s, self._since_s)
        if self._reason:
            self._timeout.reschedule(now_s)
        else:
            self._timer = self._loop.call_later(min(_CHECK_S, self._stall_s), self._check)

    def _excess(self, now_s: float, since_s: float) -> str:
        """Return the limit that a wait exceeds; empty: none."""
        if self._has_output and now_s - since_s >= self._stall_s:
            return f"it sent nothing for {self._stall_s:g} s"
        if self._away_since_s is not None and now_s - max(since_s, self._away_since_s) >= _AWAY_S:
            return "its sidecar says that it does not answer, or makes no progress"
        return ""
