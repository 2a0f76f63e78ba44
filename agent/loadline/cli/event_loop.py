"""Event loop of a command, which SIGTERM ends as Ctrl-C does."""

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

from loadline.cli.exit_codes import TERMINATED

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T], runner: asyncio.Runner | None = None) -> T:
    """Run a coroutine until it ends; SIGTERM cancels it as SIGINT does, and the program exits with ``TERMINATED``.

    A handler that raises does so within or between any two steps of the loop. A task whose wake-up is lost by that
    never ends, not even when it is cancelled: ``loadline view`` outlived SIGTERM. However the coroutine ends, the
    program exits, since some take a cancellation for their normal end. A second SIGTERM does not cancel its clean-up.

    Args:
        main: The coroutine.
        runner: A runner of several coroutines, whose loop this one shares.
    """
    before, terminated = signal.getsignal(signal.SIGTERM), False

    async def cancellable() -> T:
        task = asyncio.create_task(main)

        def terminate() -> None:
            nonlocal terminated
            if not terminated:
                task.cancel()
            terminated = True

        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, terminate)
        try:
            return await task
        finally:
            if runner is not None:  # its loop keeps running, and would restore the default when it is closed
                loop.remove_signal_handler(signal.SIGTERM)

    try:
        return asyncio.run(cancellable()) if runner is None else runner.run(cancellable())
    finally:
        signal.signal(signal.SIGTERM, before)  # the loop has left the default
        if terminated:
            sys.exit(TERMINATED)
