"""Load of an engine during a measurement, from its metrics."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Final

from loadline.engine_metrics.engine_reader import EngineReader
from loadline.engine_metrics.engine_reading import EngineReading
from loadline.engine_metrics.tables import detect
from loadline.errors import NotAnExposition
from loadline.profiler.endpoint import EngineEndpoint

_INTERVAL_S: Final = 0.25


Usages = list[tuple[float, float]]
"""KV usage, 0 to 1, by time of the event loop."""


class EngineWatch:
    """Reader of the metrics of one engine; without them it sees nothing."""

    def __init__(self, endpoint: EngineEndpoint) -> None:
        self._endpoint = endpoint

    async def read(self) -> EngineReading | None:
        """Return the metrics; None: the engine has none that are known."""
        page = await self._endpoint.metrics()
        engine = None if page is None else detect(page)
        if page is None or engine is None:
            return None
        with contextlib.suppress(NotAnExposition):
            return EngineReader(engine).read(page, 0)
        return None

    @contextlib.asynccontextmanager
    async def observe(self) -> AsyncIterator[Usages]:
        """Yield a list to which the KV usage is added until the end of the context."""
        found: Usages = []
        task = asyncio.create_task(self._poll(found))
        try:
            yield found
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _poll(self, found: Usages) -> None:
        while (reading := await self.read()) is not None:
            usage = [load.kv_usage_ratio for load in reading.ranks if load.kv_usage_ratio is not None]
            if usage:
                found.append((asyncio.get_running_loop().time(), sum(usage) / len(usage)))
            await asyncio.sleep(_INTERVAL_S)
