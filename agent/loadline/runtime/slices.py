"""Long computations in slices, between which frames are read and turns run."""

import asyncio
from collections.abc import Callable, Generator, Iterable
from typing import Final, TypeVar

SLICE_S: Final = 0.0005
"""Time after which a computation pauses."""
PAUSE_S: Final = 0.001
"""Pause between two slices. A decision takes about ten steps of the event loop, from the report to its announcement:
without a pause, each of them would wait for a slice."""

T = TypeVar("T")
Item = TypeVar("Item")

Steps = Generator[None, None, T]
"""A computation that yields wherever it may pause, and returns its result."""


def map_in_steps(function: Callable[[Item], T], items: Iterable[Item]) -> Steps[list[T]]:
    """Apply a function to each item, in one step: an item is taken only after the pause."""
    found: list[T] = []
    for item in items:
        found.append(function(item))
        yield
    return found


async def run_in_slices(steps: Steps[T]) -> tuple[T, float]:
    """Return the result of a computation, and the time in s that it took without its pauses."""
    loop = asyncio.get_running_loop()
    busy_s = 0.0
    while True:
        began_s = loop.time()
        try:
            next(steps)
            while loop.time() - began_s < SLICE_S:
                next(steps)
        except StopIteration as end:
            return end.value, busy_s + loop.time() - began_s
        busy_s += loop.time() - began_s
        await asyncio.sleep(PAUSE_S)
