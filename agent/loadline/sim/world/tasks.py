"""Coroutines in virtual time: what awaits goes on when the timeline says so. There is no event loop, and no thread."""

from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Generic, TypeVar

from loadline.sim.world.timeline import Timeline

T = TypeVar("T")


class VirtualFuture(Generic[T]):
    """A result that comes later, or has come already."""

    __slots__ = ("_error", "_result", "_waiting", "settled")

    def __init__(self) -> None:
        self.settled = False
        self._result: T | None = None
        self._error: BaseException | None = None
        self._waiting: list[Callable[[], None]] = []

    def keep(self, result: T) -> None:
        """The result is there; whoever waits goes on at once. What is settled already stays as it is."""
        if not self.settled:
            self.settled, self._result = True, result
            self._go_on()

    def fail(self, error: BaseException) -> None:
        """There will be no result: whoever waits gets the error."""
        if not self.settled:
            self.settled, self._error = True, error
            self._go_on()

    def then(self, do: Callable[[], None]) -> None:
        """Do it when the result is there."""
        self._waiting.append(do)

    def __await__(self) -> Generator["VirtualFuture[T]", None, T]:
        if not self.settled:
            yield self
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # settled without an error: it is a T

    def _go_on(self) -> None:
        waiting, self._waiting = self._waiting, []
        for do in waiting:
            do()


class VirtualTask:
    """A coroutine under way. It runs at once up to its first wait.

    Args:
        coroutine: May await promises, and what awaits promises.
        on_end: Called when it has come to its end.
        hold: Asked before every step; who says True takes the step, to do it later.
    """

    def __init__(
        self,
        coroutine: Coroutine[object, object, object],
        on_end: Callable[[], None] | None = None,
        hold: Callable[[Callable[[], None]], bool] | None = None,
    ) -> None:
        self.done = False
        self._running = False
        self._coroutine = coroutine
        self._on_end = on_end
        self._hold = hold
        self._go_on()

    def kill(self) -> None:
        """End it where it stands, as the end of a process does: nothing of it runs any more."""
        self.done = True
        if not self._running:  # else it is itself what ends the process: it is closed at its next wait
            self._coroutine.close()

    def _go_on(self) -> None:
        if self.done or (self._hold is not None and self._hold(self._go_on)):
            return
        self._running = True
        try:
            waits_for = self._coroutine.send(None)
        except StopIteration:
            self.done = True
            if self._on_end is not None:
                self._on_end()
            return
        finally:
            self._running = False
        if self.done:
            self._coroutine.close()
            return
        if not isinstance(waits_for, VirtualFuture):
            raise TypeError(f"{waits_for!r} cannot be awaited in virtual time")
        waits_for.then(self._go_on)


async def sleep(timeline: Timeline, wait_ms: float) -> None:
    """Wait for a while; for no time at all where there is none."""
    if wait_ms > 0.0:
        over = VirtualFuture[None]()
        timeline.after(wait_ms, partial(over.keep, None))
        await over
