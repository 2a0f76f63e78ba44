"""Cyclic garbage of a process whose collector hardly runs by itself."""

import asyncio
import gc
import weakref

from loadline.adapters.garbage import COLLECTION_INTERVAL_S, collect_periodically
from tests.support.virtual_time import run_virtual


class Connection:
    """Something that a lost connection leaves: it refers to itself."""

    def __init__(self) -> None:
        self.itself = self


def test_cycles_are_freed_although_the_collector_does_not_run_by_itself() -> None:
    async def leave_a_cycle_and_wait() -> list[bool]:
        collecting = asyncio.create_task(collect_periodically())
        left = weakref.ref(Connection())
        alive = []
        for wait_s in (COLLECTION_INTERVAL_S - 1.0, 2.0):
            await asyncio.sleep(wait_s)
            alive.append(left() is not None)
        collecting.cancel()
        return alive

    gc.disable()
    try:
        assert run_virtual(leave_a_cycle_and_wait()) == [True, False]
    finally:
        gc.enable()
