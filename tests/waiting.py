"""Waiting for real processes: by looking, with a deadline, never by sleeping for luck."""

import asyncio
import time
from collections.abc import Callable

_LOOK_S = 0.005


async def until(condition: Callable[[], bool], deadline_s: float = 30.0) -> None:
    """Come back once the condition holds; TimeoutError when it does not in time."""
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in another process and sets no event
            await asyncio.sleep(_LOOK_S)


def until_true(condition: Callable[[], bool], deadline_s: float = 30.0) -> None:
    """The same outside of a loop."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(_LOOK_S)
