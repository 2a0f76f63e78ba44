"""Poll a condition until it holds; a test that reaches the deadline fails."""

import asyncio
import time
from collections.abc import Awaitable, Callable

DEADLINE_S = 60.0
SCENARIO_S = 240.0
_POLL_S = 0.005


async def until(condition: Callable[[], object], what: str = "", *, deadline_s: float = DEADLINE_S) -> None:
    """Wait until the condition holds; raise TimeoutError at the deadline."""

    async def check() -> object:
        return condition()

    await until_async(check, what, deadline_s=deadline_s)


async def until_async(
    condition: Callable[[], Awaitable[object]], what: str = "", *, deadline_s: float = DEADLINE_S
) -> None:
    """Wait, as ``until`` does, for a condition that is awaited."""
    deadline = time.monotonic() + deadline_s
    while not await condition():
        _check(deadline, what)
        await asyncio.sleep(_POLL_S)


def until_true(condition: Callable[[], object], what: str = "", *, deadline_s: float = DEADLINE_S) -> None:
    """Wait, as ``until`` does, outside of an event loop."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        _check(deadline, what)
        time.sleep(_POLL_S)


def _check(deadline: float, what: str) -> None:
    if time.monotonic() > deadline:
        raise TimeoutError(f"did not happen in time: {what}" if what else "did not happen in time")
