"""Event loop of a command, which SIGTERM ends as Ctrl-C does."""

import asyncio
import signal
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

from loadline.cli.exit_codes import TERMINATED

T = TypeVar("T")


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine until it ends. SIGTERM cancels it, as ``asyncio.run`` has it for SIGINT, and ends the program.

    A handler that raises does so between any two steps of the loop. A task whose wake-up is lost by that never ends,
    not even when it is cancelled: ``loadline view`` outlived SIGTERM.
    """
    before, terminated = signal.getsignal(signal.SIGTERM), False

    async def cancellable() -> T:
        task = asyncio.create_task(main)

        def terminate() -> None:
            nonlocal terminated
            terminated = True
            task.cancel()

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, terminate)
        return await task

    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError:
        if terminated:
            sys.exit(TERMINATED)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)  # the loop has left the default
