"""The page of a running agent beside whoever publishes its status."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec

from loadline.web.event_streams import EventStreams
from loadline.web.history import HistoryPage
from loadline.web.live_page import LivePage
from tests.support.statuses import START_MS, agent, model, state_of
from tests.waiting import SCENARIO_S, until


class FailingStreams(EventStreams):
    """Streams whose first frame raises, as an unforeseen error in the page would."""

    def __init__(self) -> None:
        super().__init__()
        self.failures = 0

    def watched(self) -> list[str]:
        if not self.failures:
            self.failures += 1
            raise RuntimeError("the frame cannot be sent")
        return super().watched()


class HangingPage(LivePage):
    """Page that never finishes its first status."""

    taken = 0

    async def frame(self, model: str) -> bytes:
        self.taken += 1
        await asyncio.Event().wait()
        return model.encode()


class WatchedStreams(EventStreams):
    def watched(self) -> list[str]:
        return ["llama"]


def run(page: LivePage, scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(SCENARIO_S):
            running = asyncio.create_task(page.run())
            try:
                await scenario()
                assert not running.done()
            finally:
                running.cancel()

    asyncio.run(bounded())


def test_a_status_that_cannot_be_shown_is_left_out_and_the_next_is_shown() -> None:
    streams = FailingStreams()
    page = LivePage(lambda: 1, lambda: [state_of(page.status)], streams)

    async def scenario() -> None:
        page.offer(agent(model()))
        await until(lambda: streams.failures == 1)
        page.offer(agent(model(), at_ms=START_MS + 1_000))
        await until(lambda: page.status is not None and page.status.at_ms == START_MS + 1_000)

    run(page, scenario)


def test_statuses_are_taken_from_the_publisher_while_the_page_hangs_and_one_is_kept() -> None:
    page = HangingPage(lambda: 1, lambda: [state_of(page.status)], WatchedStreams())

    async def scenario() -> None:
        page.offer(agent(model()))
        await until(lambda: page.taken == 1)
        for second in range(1, 100):
            page.offer(agent(model(), at_ms=START_MS + 1_000 * second))
        assert page._offered.qsize() == 1
        assert page._offered.get_nowait().at_ms == START_MS + 99_000
        assert page.taken == 1

    run(page, scenario)


def test_the_bounds_follow_the_number_of_models() -> None:
    models = [1]
    page = LivePage(lambda: models[0], lambda: [state_of(page.status)], EventStreams())

    async def interval_ms(at_ms: int) -> int:
        page.offer(agent(model(), at_ms=at_ms))
        await until(lambda: page.status is not None and page.status.at_ms == at_ms)
        return msgspec.json.decode(page.history("llama"), type=HistoryPage).interval_ms

    async def scenario() -> None:
        assert await interval_ms(START_MS) == 5_000
        models[0] = 1_000
        assert await interval_ms(START_MS + 1_000) == 50_000

    run(page, scenario)
