"""Limits of the wait for an engine that pauses or is away, and for a client that reads nothing of its output."""

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from loadline.gateway.backends import Backend
from loadline.gateway.engine_client import EngineBroken
from loadline.gateway.errors import ClientLeft

# A sidecar that was just started is ready within a second; one whose engine is away has waited for 10 s already.
_AWAY_S: Final = 5.0
# A sidecar that was cut off from etcd registers again within seconds; one that is frozen with its engine never does.
_UNREGISTERED_S: Final = 60.0
# Nobody continues a stream that cannot move, and an engine may hold the output of a tool call back for minutes.
_UNMOVABLE_STALLS: Final = 10
CLIENT_S: Final = 300.0
"""Time in which a client must read what it is sent next: its engine's slot is taken for so long. A full buffer of the
kernel has up to 1.4 MB, so less than 5 kB/s may count as nothing."""
_CHECK_S: Final = 1.0


class EngineWait:
    """Time limit of each wait for an engine, as an async context manager; raises ``EngineBroken`` at its end.

    It also limits the time for which the client takes nothing, and raises ``ClientLeft`` at the end of that.

    An engine that has sent output may pause for ``stall_s``. Before its first output it may take any time, since that
    waits for other requests, unless the engine is away: its sidecar knows by its metrics that it hangs, or has not been
    registered for a minute.

    One timer a stream, not one a chunk, looks at the wait: a gateway relays 17,000 chunks per second.

    Args:
        backend: Worker of the engine.
        stall_s: Longest pause.
        has_other: Returns whether another engine could answer: without one, an unregistered worker is waited for.
    """

    def __init__(self, backend: Backend, stall_s: float, has_other: Callable[[Backend], bool]) -> None:
        self._backend = backend
        self._has_other = has_other
        self._stall_s = stall_s
        self._loop = asyncio.get_running_loop()
        self._since_s = self._loop.time()
        """Begin of the present wait."""
        self._for_client = False
        """True while the client is sent what has come."""
        self._client_left = False
        self._has_output = False
        self._can_move = True
        self._away_since_s: float | None = None
        self._unregistered_since_s: float | None = None
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
            EngineBroken: A wait for the engine was too long.
            ClientLeft: The client has read nothing for five minutes.
        """
        self._timer.cancel()
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError:
            if self._client_left:
                raise ClientLeft from None
            raise EngineBroken(self._reason) from None

    def begin(self, *, has_output: bool, can_move: bool) -> None:
        """Begin to wait for the engine's next output.

        Args:
            has_output: True if it has sent some.
            can_move: False if no other engine can continue the stream: then it may pause for ten times ``stall_s``.
        """
        self._since_s, self._has_output, self._can_move = self._loop.time(), has_output, can_move
        self._for_client = False

    def end(self) -> None:
        """Record that the engine sent something: the time that a slow client takes is not the engine's."""
        self._since_s, self._for_client = self._loop.time(), True

    def record_comment(self) -> None:
        """Record a comment, or a part of an event: the wait restarts, unless another engine can continue the output.

        Servers send comments while their engine hangs, but also while it computes a long prompt or parses a tool call,
        which would be lost.
        """
        if not (self._has_output and self._can_move):
            self._since_s = self._loop.time()

    def _check(self) -> None:
        now_s = self._loop.time()
        self._away_since_s = (self._away_since_s or now_s) if self._backend.is_away else None
        is_left = not self._backend.is_registered
        self._unregistered_since_s = (self._unregistered_since_s or now_s) if is_left else None
        self._reason = self._excess(now_s)
        if self._reason:
            self._client_left = self._for_client
            self._timeout.reschedule(now_s)
        else:
            self._timer = self._loop.call_later(min(_CHECK_S, self._stall_s), self._check)

    def _excess(self, now_s: float) -> str:
        """Return the limit that a wait exceeds; empty: none."""
        since_s = self._since_s
        if self._for_client:
            return f"its client has read nothing for {CLIENT_S:g} s" if now_s - since_s >= CLIENT_S else ""
        stall_s = self._stall_s if self._can_move else _UNMOVABLE_STALLS * self._stall_s
        if self._has_output and now_s - since_s >= stall_s:
            return f"it sent nothing for {stall_s:g} s"
        if self._away_since_s is not None and now_s - max(since_s, self._away_since_s) >= _AWAY_S:
            return "its sidecar says that it does not answer, or makes no progress"
        unregistered_s = self._unregistered_since_s
        is_late = unregistered_s is not None and now_s - max(since_s, unregistered_s) >= _UNREGISTERED_S
        if is_late and self._has_other(self._backend):
            return f"it has not been registered for {_UNREGISTERED_S:g} s"
        return ""
