"""Tasks of an agent beside its turns."""

import asyncio
from collections.abc import Callable, Coroutine

from loadline.adapters.logs import bounded

_log = bounded("agent")


class Helpers:
    """Tasks beside the turns. One that fails is logged at once: nothing awaits it until the agent ends.

    Args:
        stop: Requests the end of the agent.
    """

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._tasks: list[asyncio.Task[None]] = []
        self._failure: BaseException | None = None

    def start(self, name: str, work: Coroutine[object, object, None], *, vital: bool = False) -> None:
        """Start a task; the failure of a ``vital`` one ends the agent."""

        def on_end(task: asyncio.Task[None]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is None:
                return
            remedy = "The agent ends." if vital else "Restart the agent; it runs on without this task."
            _log.error("task_failed", task=name, detail=repr(error), remedy=remedy, exc_info=error)
            if vital:
                self._failure = self._failure or error
                self._stop()

        task = asyncio.create_task(work, name=name)
        task.add_done_callback(on_end)
        self._tasks.append(task)

    def check(self) -> None:
        """Raise the exception of the vital task that has ended the agent, if one has."""
        if self._failure is not None:
            raise self._failure

    async def cancel(self) -> None:
        """End all tasks."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
