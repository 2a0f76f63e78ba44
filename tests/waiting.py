"""Waiting for what must come true: it is looked at often, up to a deadline that only a failure reaches."""

import asyncio
import time
from collections.abc import Awaitable, Callable

DEADLINE_S = 60.0
SCENARIO_S = 240.0
_LOOK_S = 0.005


async def until(condition: Callable[[], object], what: str = "", *, deadline_s: float = DEADLINE_S) -> None:
    """Come back once the condition holds; TimeoutError when it does not in time."""

    async def check() -> object:
        return condition()

    await until_async(check, what, deadline_s=deadline_s)


async def until_async(
    condition: Callable[[], Awaitable[object]], what: str = "", *, deadline_s: float = DEADLINE_S
) -> None:
    """The same for a condition that must be awaited."""
    deadline = time.monotonic() + deadline_s
    while not await condition():
        _check(deadline, what)
        await asyncio.sleep(_LOOK_S)


def until_true(condition: Callable[[], object], what: str = "", *, deadline_s: float = DEADLINE_S) -> None:
    """The same outside of a loop."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        _check(deadline, what)
        time.sleep(_LOOK_S)


def _check(deadline: float, what: str) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError(f"did not happen in time: {what}" if what else "did not happen in time")
