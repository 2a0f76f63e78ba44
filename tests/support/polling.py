"""Waiting for what must come true: it is looked at often, up to a deadline that only a failure reaches."""

import asyncio
import time
from collections.abc import Awaitable, Callable

DEADLINE_S = 30.0
_LOOK_S = 0.02


async def until(condition: Callable[[], object], what: str) -> None:
    """Wait until a condition holds."""

    async def look() -> object:
        return condition()

    await until_async(look, what)


async def until_async(condition: Callable[[], Awaitable[object]], what: str) -> None:
    """Wait until a condition that must be awaited holds."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not await condition():
        assert time.monotonic() < deadline_s, f"did not happen within {DEADLINE_S:g} s: {what}"
        await asyncio.sleep(_LOOK_S)
