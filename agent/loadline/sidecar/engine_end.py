"""End of an engine: of its requests, and then of its process, if that is known."""

import asyncio

from loadline.adapters.logs import bounded
from loadline.sidecar.engine_process import EngineProcess
from loadline.sidecar.engine_scraper import EngineScraper

_log = bounded("sidecar")


class EngineEnd:
    """End of one engine. Its requests get one grace period, unless a drain waits for them.

    Args:
        scraper: Scraper of the engine.
        grace_s: Time for its requests to end.
    """

    def __init__(self, scraper: EngineScraper, grace_s: float) -> None:
        self.process: EngineProcess | None = None
        """The process of the engine; None: it is left alone."""
        self.emptied = False
        """True once the engine was found without requests."""
        self._scraper = scraper
        self._grace_s = grace_s
        self._grace_over = False
        self._abort = asyncio.Event()

    @property
    def has_ended(self) -> bool:
        """True if the process of the engine is known and has ended."""
        return self.process is not None and self.process.ended.is_set()

    def abort(self) -> None:
        """End the grace period."""
        self._abort.set()

    async def until_empty(self) -> None:
        """Wait until the engine has no requests."""
        await self._scraper.until_empty(lambda: self.has_ended)
        self.emptied = True

    async def until_empty_or_grace(self) -> None:
        """Wait for the requests in the engine, once, until the grace period is over or ``abort`` is called."""
        if self._grace_over or self.emptied:
            return
        emptying, aborting = asyncio.ensure_future(self.until_empty()), asyncio.ensure_future(self._abort.wait())
        await asyncio.wait({emptying, aborting}, timeout=self._grace_s, return_when=asyncio.FIRST_COMPLETED)
        for task in (emptying, aborting):
            task.cancel()
        self._grace_over = True
        if not self.emptied:
            reading = self._scraper.engine.reading
            requests = None if reading is None else reading.requests
            _log.warning("grace_over", requests=requests, grace_s=self._grace_s)

    async def end_process(self) -> None:
        """End the process of the engine; unless a drain has emptied it, its requests get the grace period."""
        if self.process is not None and not self.has_ended:
            await self.until_empty_or_grace()
            await self.process.end()
