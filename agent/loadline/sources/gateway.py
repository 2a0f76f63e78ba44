"""Source of the traffic that routers and gateways count: a frontend of the agent for each of their replicas."""

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Final

from loadline.adapters.http_reader import HttpReader, PageUnavailable
from loadline.client.resources import bus_of, running, wait_at_most
from loadline.engine_metrics.router_reader import RouterReader
from loadline.errors import NotAnExposition
from loadline.sources.gateway_config import GatewayKnobs
from loadline.sources.oddities import OddityLog
from loadline.sources.traffic import RegisteredAddresses, TrafficReporter
from loadline.sources.upstream import Upstream

# Pages of one burst are a burst of reports; spread over the interval they are a stream.
_GOLDEN: Final = 0.618_033_988_75


class _Replica:
    """One replica of a router."""

    def __init__(self, url: str, pages: HttpReader, reader: RouterReader, reporter: TrafficReporter) -> None:
        self._url = url
        self._pages = pages
        self._reader = reader
        self._reporter = reporter
        self._upstream = Upstream(url)
        self._oddities = OddityLog(url)

    async def poll(self) -> float:
        """Read the page and report what it says; return a time to wait beyond the interval, in s."""
        try:
            page = await self._pages.get(self._url)
            traffic = self._reader.read(page, time.monotonic_ns() // 1_000_000)
        except PageUnavailable as error:
            return self._upstream.failed(error.reason, error.detail)
        except NotAnExposition as error:
            return self._upstream.failed("no_metrics", str(error))
        self._upstream.succeeded()
        self._oddities.update(self._reader.warnings, self._reader.unknown_model)
        for model, sample in traffic.items():
            await self._reporter.report(model, sample)
        return 0.0

    async def run(self, stop: asyncio.Event, interval_s: float, phase: float) -> None:
        """Poll every interval until ``stop`` is set."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + interval_s * phase
        while not await wait_at_most(stop, max(due_s - loop.time(), 0.0)):
            wait_s = await self.poll()
            # Absolute due times keep intervals from drifting; missed ones are skipped.
            due_s = max(due_s + interval_s, loop.time() + wait_s)


async def run_gateway(knobs: GatewayKnobs, stop: asyncio.Event) -> None:
    """Bring the traffic of routers to the agent until ``stop`` is set."""
    async with AsyncExitStack() as stack:
        bus = await stack.enter_async_context(bus_of(None, knobs.nats, "loadline-source-gateway"))
        addresses = RegisteredAddresses()
        if any(one.table.workers for one in knobs.frontends):
            models = {*knobs.models.values(), *(one.model for one in knobs.frontends if one.model)}
            await addresses.follow(stack, knobs, sorted(models))
        replicas = []
        for frontend in knobs.frontends:
            pages = HttpReader(knobs.timeout_ms / 1_000, token_file=frontend.token_file, ca_file=frontend.ca_file)
            await stack.enter_async_context(pages)
            for url in frontend.urls:
                reader = RouterReader(frontend.table, knobs.models, frontend.model, addresses.model_of)
                reporter = TrafficReporter(bus, knobs.root, frontend.frontend(url))
                replicas.append(_Replica(url, pages, reader, reporter))
        interval_s = knobs.report_interval_ms / 1_000
        runs = [one.run(stop, interval_s, number * _GOLDEN % 1) for number, one in enumerate(replicas)]
        for number, run in enumerate(runs):
            await stack.enter_async_context(running(run, f"frontend {number}"))
        await stop.wait()
