"""A frontend's side: counts what arrives and what finishes, and publishes it every interval, zeros included.

    async with Frontend("llama", "frontend-1", nats=NatsKnobs()) as frontend:
        frontend.arrived(isl_tokens=812)
        frontend.in_flight += 1
        ...
        frontend.in_flight -= 1
        frontend.finished(osl_tokens=164, ttft_ms=310.0, itl_ms=18.5, ttft_met=True, itl_met=True)

Every call is O(1) and never blocks. Call them from the event loop's thread.
"""

import asyncio
import math
import time
from contextlib import AsyncExitStack
from typing import Final, Self

from loadline.client.resources import bus_of, publish_now, running
from loadline.config import NatsKnobs
from loadline.core.observed import Histogram, TrafficSample
from loadline.ports import Bus
from loadline.wire.messages import TrafficReport
from loadline.wire.subjects import Subjects

# Lengths by powers of two, 1 to 1,048,576 tokens: the longest context windows in service fit.
_POWERS: Final = 21
BOUNDS: Final = tuple(float(2**power) for power in range(_POWERS))
"""Upper bounds of the ISL and OSL histograms, in tokens; a last count is for what is above."""

_INTERVAL_MS_MAX: Final = 3_600_000


class _Mean:
    """A running mean that leaves out what is no measurement: absent, negative or not finite."""

    __slots__ = ("_count", "_total")

    def __init__(self) -> None:
        self._total = 0.0
        self._count = 0

    def add(self, value: float | None) -> None:
        if value is not None and math.isfinite(value) and value >= 0:
            self._total += value
            self._count += 1

    def value(self) -> float | None:
        return self._total / self._count if self._count else None


class _Lengths:
    """Mean and histogram of lengths in tokens."""

    __slots__ = ("_counts", "_mean")

    def __init__(self) -> None:
        self._mean = _Mean()
        self._counts = [0] * (_POWERS + 1)

    def add(self, tokens: int) -> None:
        self._mean.add(tokens)
        self._counts[min(max(tokens - 1, 0).bit_length(), _POWERS)] += 1

    def mean(self) -> float | None:
        return self._mean.value()

    def histogram(self) -> Histogram:
        return Histogram(BOUNDS, tuple(self._counts))


class _Met:
    """How many requests met an objective; None while nobody said so of any."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count: int | None = None

    def add(self, *, met: bool | None) -> None:
        if met is not None:
            self.count = (self.count or 0) + met


class _Interval:
    """What happened since the last report."""

    __slots__ = ("arrivals", "began_s", "completed", "isl", "itl", "itl_met", "osl", "ttft", "ttft_met")

    def __init__(self) -> None:
        self.began_s = time.monotonic()
        self.arrivals = 0
        self.completed = 0
        self.isl = _Lengths()
        self.osl = _Lengths()
        self.ttft = _Mean()
        self.itl = _Mean()
        self.ttft_met = _Met()
        self.itl_met = _Met()


class Frontend:
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
        self._interval = _Interval()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Begin to report; does not wait for NATS to be there."""
        bus, nats = self._given
        self._interval = _Interval()
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
        self._interval.arrivals += 1
        self._interval.isl.add(isl_tokens)

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
        interval = self._interval
        interval.completed += 1
        interval.osl.add(osl_tokens)
        interval.ttft.add(ttft_ms)
        interval.itl.add(itl_ms)
        interval.ttft_met.add(met=ttft_met)
        interval.itl_met.add(met=itl_met)

    async def report_now(self) -> bool:
        """End the interval and publish it; says whether it was handed to the bus."""
        interval, self._interval = self._interval, _Interval()
        elapsed_ms = round((self._interval.began_s - interval.began_s) * 1_000)
        self._sequence += 1
        sample = TrafficSample(
            sequence=self._sequence,
            interval_ms=min(max(elapsed_ms, 1), _INTERVAL_MS_MAX),
            arrivals=interval.arrivals,
            completed=interval.completed,
            queued=max(self.queued, 0),
            in_flight=max(self.in_flight, 0),
            isl_tokens=interval.isl.mean(),
            osl_tokens=interval.osl.mean(),
            ttft_ms=interval.ttft.value(),
            itl_ms=interval.itl.value(),
            ttft_met=interval.ttft_met.count,
            itl_met=interval.itl_met.count,
            isl_histogram=interval.isl.histogram(),
            osl_histogram=interval.osl.histogram(),
        )
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
