"""Client for frontends: counts arrivals and finished requests and publishes them every interval, even if none came.

    async with FrontendClient("llama", "frontend-1", nats=NatsKnobs()) as frontend:
        frontend.arrived(isl_tokens=812)
        frontend.looked_up(isl_tokens=812, cached_tokens=512)
        frontend.in_flight += 1
        ...
        frontend.in_flight -= 1
        frontend.finished(osl_tokens=164, ttft_ms=310.0, itl_ms=18.5, ttft_met=True, itl_met=True)

Every call is O(1) and never blocks. Call from the thread of the event loop.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Self

from loadline.client.resources import bus_of, publish_now, running
from loadline.client.traffic_interval import TrafficInterval
from loadline.ports import Bus
from loadline.servers import NatsKnobs
from loadline.wire.messages import TrafficReport
from loadline.wire.subjects import Subjects


class FrontendClient:
    """Reporter of the traffic of one model at one frontend, as an async context manager.

    Args:
        model: The served model.
        frontend: Name of this process; of two with the same name, agents count only the one that started last.
        nats: Address and login of NATS; the default is this host.
        root: Prefix of every NATS subject.
        interval_ms: Time between two reports. A report that cannot be published at the end of its interval is dropped.
        bus: A connected bus to use instead of ``nats``; it stays open.
    """

    def __init__(
        self,
        model: str,
        frontend: str,
        *,
        nats: NatsKnobs | None = None,
        root: str = "loadline",
        interval_ms: int = 1_000,
        bus: Bus | None = None,
    ) -> None:
        self.queued = 0
        """Requests that wait because no worker can accept them now; keep it up to date."""
        self.in_flight = 0
        """Requests that workers process now; keep it up to date."""
        self._model = model
        self._frontend = frontend
        self._connection = (bus, nats)
        self._subject = Subjects(root).traffic(model, frontend)
        self._interval_s = interval_ms / 1_000
        self._incarnation = time.time_ns() // 1_000_000
        self._sequence = 0
        self._interval = TrafficInterval()
        self._began_s = time.monotonic()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Start to report, without waiting for NATS."""
        bus, nats = self._connection
        self._interval = TrafficInterval()
        self._began_s = time.monotonic()
        async with AsyncExitStack() as stack:
            self._bus = await stack.enter_async_context(bus_of(bus, nats, f"loadline-frontend-{self._frontend}"))
            await stack.enter_async_context(running(self._report_periodically(), f"reports of {self._frontend}"))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop reporting and disconnect."""
        await self._stack.aclose()

    def arrived(self, isl_tokens: int) -> None:
        """Count a request that arrived, with its input tokens."""
        self._interval.arrived(isl_tokens)

    def looked_up(self, isl_tokens: int, cached_tokens: int) -> None:
        """Count a prompt that was looked up in the prefix cache of its worker.

        Call it as soon as the router or the engine knows the result: an early hit rate improves the sizing.

        Args:
            isl_tokens: Tokens of the whole prompt.
            cached_tokens: Tokens of it that need not be computed.
        """
        self._interval.looked_up(isl_tokens, cached_tokens)

    def finished(
        self,
        osl_tokens: int,
        ttft_ms: float | None,
        itl_ms: float | None,
        *,
        ttft_met: bool | None = None,
        itl_met: bool | None = None,
    ) -> None:
        """Count a request that finished.

        Args:
            osl_tokens: Its output tokens.
            ttft_ms: Its time to first token; None: unknown.
            itl_ms: Its mean inter-token latency; None: unknown, or a single token.
            ttft_met: True if it met the TTFT objective. Pass it for every request or for none.
            itl_met: True if it met the ITL objective. Pass it for every request or for none.
        """
        self._interval.finished(osl_tokens, ttft_ms, itl_ms, ttft_met=ttft_met, itl_met=itl_met)

    async def report_now(self) -> bool:
        """End the interval and publish it; return True if the bus accepted it."""
        interval, self._interval = self._interval, TrafficInterval()
        began_s, self._began_s = self._began_s, time.monotonic()
        self._sequence += 1
        elapsed_ms = round((self._began_s - began_s) * 1_000)
        sample = interval.sample(self._sequence, elapsed_ms, queued=self.queued, in_flight=self.in_flight)
        report = TrafficReport(self._model, self._frontend, self._incarnation, sample)
        return await publish_now(self._bus, self._subject, report)

    async def _report_periodically(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            # Absolute due times keep intervals from drifting; missed ones are skipped.
            due_s = max(due_s + self._interval_s, loop.time())
            await asyncio.sleep(due_s - loop.time())
            await self.report_now()
