"""Coroutines in virtual time, resumed by the timeline, without an event loop or threads."""

from collections.abc import Callable, Coroutine, Generator
from functools import partial
from typing import Generic, TypeVar

from loadline.sim.world.timeline import Timeline

T = TypeVar("T")


class VirtualFuture(Generic[T]):
    """A result that is available now or later.

    Annotate the variable rather than ``VirtualFuture[T]()``: that takes ten times as long to create.
    """

    __slots__ = ("_callbacks", "_error", "_result", "done")

    def __init__(self) -> None:
        self.done = False
        self._result: T | None = None
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[], None]] = []

    def set_result(self, result: T) -> None:
        """Set the result and resume the waiting tasks at once; a set result is kept."""
        if not self.done:
            self.done, self._result = True, result
            self._notify()

    def set_exception(self, error: BaseException) -> None:
        """Set an error, which is raised in the waiting tasks."""
        if not self.done:
            self.done, self._error = True, error
            self._notify()

    def add_done_callback(self, do: Callable[[], None]) -> None:
        """Call a function when the result is available."""
        self._callbacks.append(do)

    def __await__(self) -> Generator["VirtualFuture[T]", None, T]:
        if not self.done:
            yield self
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # settled without an error: it is a T

    def _notify(self) -> None:
        waiting, self._callbacks = self._callbacks, []
        for do in waiting:
            do()


class VirtualTask:
    """A running coroutine. It runs at once up to its first wait.

    Args:
        coroutine: Awaits futures only.
        on_end: Called at its end.
        hold: Called before every step; True means that it runs the step later itself.
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
        self._defer = hold
        self._resume()

    def kill(self) -> None:
        """End the coroutine at once, as the death of its process does."""
        self.done = True
        if not self._running:  # a coroutine that ends its own process is closed at its next wait
            self._coroutine.close()

    def _resume(self) -> None:
        if self.done or (self._defer is not None and self._defer(self._resume)):
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
        waits_for.add_done_callback(self._resume)


async def sleep(timeline: Timeline, wait_ms: float) -> None:
    """Wait for a time; return at once if it is not positive."""
    if wait_ms > 0.0:
        promise: VirtualFuture[None] = VirtualFuture()
        timeline.call_later(wait_ms, partial(promise.set_result, None))
        await promise
