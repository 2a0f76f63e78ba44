"""A frontend's side: counts what arrives and what finishes, and publishes it every interval, zeros included.

    async with FrontendClient("llama", "frontend-1", nats=NatsKnobs()) as frontend:
        frontend.arrived(isl_tokens=812)
        frontend.looked_up(isl_tokens=812, cached_tokens=512)
        frontend.in_flight += 1
        ...
        frontend.in_flight -= 1
        frontend.finished(osl_tokens=164, ttft_ms=310.0, itl_ms=18.5, ttft_met=True, itl_met=True)

Every call is O(1) and never blocks. Call them from the event loop's thread.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Self

from loadline.client.resources import bus_of, publish_now, running
from loadline.client.traffic_interval import TrafficInterval
from loadline.config import NatsKnobs
from loadline.ports import Bus
from loadline.wire.messages import TrafficReport
from loadline.wire.subjects import Subjects


class FrontendClient:
    """What one frontend sees of one model, as an async context manager.

    Args:
        model: The served model.
        frontend: This frontend's name.
        nats: Where NATS is; the default is this host.
        root: First tokens of every subject.
        interval_ms: Time between two reports. What cannot be published when its interval ends is never published.
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
        """Requests held because no worker can take them now; keep it up to date."""
        self.in_flight = 0
        """Requests that workers hold now; keep it up to date."""
        self._model = model
        self._frontend = frontend
        self._given = (bus, nats)
        self._subject = Subjects(root).traffic(model, frontend)
        self._interval_s = interval_ms / 1_000
        self._incarnation = time.time_ns() // 1_000_000
        self._sequence = 0
        self._interval = TrafficInterval()
        self._began_s = time.monotonic()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Begin to report; does not wait for NATS to be there."""
        bus, nats = self._given
        self._interval = TrafficInterval()
        self._began_s = time.monotonic()
        async with AsyncExitStack() as stack:
            self._bus = await stack.enter_async_context(bus_of(bus, nats, f"loadline-frontend-{self._frontend}"))
            await stack.enter_async_context(running(self._report_on(), f"reports of {self._frontend}"))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop reporting and disconnect."""
        await self._stack.aclose()

    def arrived(self, isl_tokens: int) -> None:
        """A request arrived, with so many input tokens."""
        self._interval.arrived(isl_tokens)

    def looked_up(self, isl_tokens: int, cached_tokens: int) -> None:
        """A prompt was looked up in the prefix cache of its worker.

        Say it when a router knows, or when the engine does: the sooner, the better the fleet fits.

        Args:
            isl_tokens: Tokens of the whole prompt.
            cached_tokens: Those of them that need not be computed.
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
        """A request finished.

        Args:
            osl_tokens: Tokens that it got.
            ttft_ms: Its time to first token; None: unknown.
            itl_ms: Its mean inter-token latency; None: unknown, or a single token.
            ttft_met: Whether it met the TTFT objective. Say it of every request or of none.
            itl_met: Whether it met the ITL objective. Say it of every request or of none.
        """
        self._interval.finished(osl_tokens, ttft_ms, itl_ms, ttft_met=ttft_met, itl_met=itl_met)

    async def report_now(self) -> bool:
        """End the interval and publish it; says whether it was handed to the bus."""
        interval, self._interval = self._interval, TrafficInterval()
        began_s, self._began_s = self._began_s, time.monotonic()
        self._sequence += 1
        elapsed_ms = round((self._began_s - began_s) * 1_000)
        sample = interval.sample(self._sequence, elapsed_ms, queued=self.queued, in_flight=self.in_flight)
        report = TrafficReport(self._model, self._frontend, self._incarnation, sample)
        return await publish_now(self._bus, self._subject, report)

    async def _report_on(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time()
        while True:
            # From due time to due time, so that intervals do not drift; those that were slept through are not made up.
            due_s = max(due_s + self._interval_s, loop.time())
            await asyncio.sleep(due_s - loop.time())
            await self.report_now()
