"""Calls in threads that do not keep a process from ending."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


async def call_in_daemon(function: Callable[[], T]) -> T:
    """Return what a function returns in a thread of its own, or raise what it raises.

    Not ``asyncio.to_thread``: at its end asyncio waits for those threads, however long a disk hangs.
    """
    answer: Future[T] = Future()

    def call() -> None:
        if not answer.set_running_or_notify_cancel():
            return
        try:
            answer.set_result(function())
        except BaseException as error:  # noqa: BLE001 - raised in the caller
            answer.set_exception(error)

    threading.Thread(target=call, daemon=True).start()
    return await asyncio.wrap_future(answer)
