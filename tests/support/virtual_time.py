"""Event loop in virtual time: a wait costs none, and sockets within the process work.

Loopback delivers what is sent before the call returns, so time passes only when no socket has data.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
_START_S = 1_000.0


class _VirtualSelector(selectors.DefaultSelector):
    now_s = _START_S

    def select(self, timeout: float | None = None) -> Any:
        # Without a timer, only a thread can wake the loop.
        found = super().select(None if timeout is None else 0)
        if not found and timeout is not None:
            self.now_s += timeout
        return found


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Loop that jumps to its next timer."""

    def __init__(self) -> None:
        self._virtual = _VirtualSelector()
        super().__init__(self._virtual)
        # From 2**24 s on, floats are 4 ns apart: a timer that is due within 1 ns would be one that is never due.
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._virtual.now_s


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
