"""Readings of an engine, one an interval, and the wait for the next one."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from loadline.adapters.logs import bounded
from loadline.engine_metrics.engine_reading import EngineReading
from loadline.sidecar.engine_state import EngineState
from loadline.sidecar.pages import EnginePages, NoAnswer

_log = bounded("sidecar")


class EngineScraper:
    """Scraper of one engine.

    Args:
        engine: Its name in the table of engines.
        interval_s: Time between two readings.
    """

    def __init__(self, engine: str, interval_s: float) -> None:
        self.engine = EngineState(engine, _now_ms())
        self._interval_s = interval_s
        self._asked = asyncio.Event()
        self._logged = ""

    def wake(self) -> None:
        """End the wait for the next attempt: something else has changed."""
        self._asked.set()

    async def next_scrape(self) -> None:
        """Wait until the engine was asked once more, with whatever result."""
        self._asked.clear()
        await self._asked.wait()

    async def until_empty(self, has_ended: Callable[[], bool]) -> None:
        """Wait until the engine has no requests, or has ended."""
        began_ms = _now_ms()
        while not (self.engine.empty_since(began_ms) or has_ended()):
            await self.next_scrape()

    async def run(self, pages: EnginePages, on_reading: Callable[[EngineReading], Awaitable[None]]) -> None:
        """Read the engine until cancelled; call ``on_reading`` with each reading."""
        due_s = time.monotonic()
        while True:
            reading = await self._read(pages)
            if reading is not None:
                await on_reading(reading)
            self.wake()
            due_s = max(due_s + self._interval_s, time.monotonic())
            await asyncio.sleep(due_s - time.monotonic())

    async def _read(self, pages: EnginePages) -> EngineReading | None:
        asked_ms, before = _now_ms(), self.engine.warnings
        try:
            page = await pages.fetch()
        except NoAnswer as error:
            self.engine.failed(str(error), _now_ms(), refused=error.refused, heard=error.heard)
            self._log_problem("engine_silent")
            return None
        reading = self.engine.answered(page, asked_ms, _now_ms())
        if reading is None:
            self._log_problem("engine_unreadable")
            return None
        if self.engine.away:
            self._log_problem("engine_stands_still")
        else:
            self._logged = ""
        for kind, count in self.engine.warnings.items():
            if count > before.get(kind, 0):
                _log.warning("engine_metrics_odd", kind=kind, count=count)
        return reading

    def _log_problem(self, event: str) -> None:
        """Log a problem once, and again when the engine is found to be away; an engine that loads is no problem."""
        place = f"{event} {self.engine.away}"
        if place != self._logged:
            self._logged = place
            log = _log.info if self.engine.reading is None else _log.warning
            log(event, detail=self.engine.problem, away=self.engine.away)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
