"""Waits of clients: a cancellation is never lost."""

import asyncio

import pytest

from loadline.client.resources import wait_at_most


@pytest.mark.parametrize("turns", range(4))
def test_a_wait_that_is_cancelled_as_its_event_is_set_ends(turns: int) -> None:
    async def scenario() -> None:
        event, waits = asyncio.Event(), 0

        async def work() -> None:
            nonlocal waits
            while waits < 10:
                waits += 1
                await wait_at_most(event, 0.01)
                event.clear()

        task = asyncio.create_task(work())
        await asyncio.sleep(0)
        event.set()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()

    asyncio.run(scenario())


def test_a_wait_tells_if_its_event_was_set() -> None:
    async def scenario() -> None:
        event = asyncio.Event()
        assert not await wait_at_most(event, 0.0)
        event.set()
        assert await wait_at_most(event, 0.0)

    asyncio.run(scenario())
