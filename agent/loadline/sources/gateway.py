"""Source of the traffic that routers and gateways count: a frontend of the agent for each of their replicas."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final
from urllib.parse import urlsplit

from msgspec.structs import replace

from loadline.adapters.http_reader import HttpReader, PageUnavailable
from loadline.adapters.logs import bounded
from loadline.client.resources import bus_of, publish_now, running, store_of, wait_at_most
from loadline.client.worker_registry import WorkerRegistry
from loadline.core.vocabulary.samples import TrafficSample, WorkerRecord
from loadline.engine_metrics.router_reader import RouterReader
from loadline.errors import NotAnExposition
from loadline.ports import Bus
from loadline.sources.gateway_config import GatewayKnobs
from loadline.sources.upstream import Upstream
from loadline.wire.messages import TrafficReport
from loadline.wire.subjects import Subjects

# Pages of one burst are a burst of reports; spread over the interval they are a stream.
_GOLDEN: Final = 0.618_033_988_75

_log = bounded("source")


class RegisteredAddresses:
    """Models of the registered workers, by the names under which routers know them."""

    def __init__(self) -> None:
        self._models: dict[str, dict[str, str]] = {}

    def update(self, model: str, records: Sequence[WorkerRecord]) -> None:
        """Replace the workers of a model."""
        names = {name: model for record in records for name in (record.worker, record.address, _host(record.address))}
        names.pop("", None)
        self._models[model] = names

    def model_of(self, worker: str) -> str | None:
        """Return the model of a worker's name or address in a router's metrics; None: it is not registered."""
        for name in (worker, worker.rstrip("/"), _host(worker)):
            for models in self._models.values():
                if name in models:
                    return models[name]
        return None


class TrafficReporter:
    """Publisher of the traffic of one frontend.

    Args:
        bus: The connected bus.
        root: Prefix of every NATS subject.
        frontend: Name of the frontend.
    """

    def __init__(self, bus: Bus, root: str, frontend: str) -> None:
        self._bus = bus
        self._subjects = Subjects(root)
        self._frontend = frontend
        self._incarnation = time.time_ns() // 1_000_000
        self._sequence = 0

    async def report(self, model: str, sample: TrafficSample) -> None:
        """Publish the traffic of a model, if the bus accepts it now."""
        self._sequence += 1
        numbered = replace(sample, sequence=self._sequence)
        report = TrafficReport(model, self._frontend, self._incarnation, numbered)
        await publish_now(self._bus, self._subjects.traffic(model, self._frontend), report)


class _Replica:
    """One replica of a router."""

    def __init__(self, url: str, pages: HttpReader, reader: RouterReader, reporter: TrafficReporter) -> None:
        self._url = url
        self._pages = pages
        self._reader = reader
        self._reporter = reporter
        self._upstream = Upstream(url)

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
        models = {*knobs.models.values(), *(one.model for one in knobs.frontends if one.model)}
        if any(one.table.workers for one in knobs.frontends):
            store = await stack.enter_async_context(store_of(None, knobs.etcd))
            for model in sorted(models):
                follow = WorkerRegistry(partial(addresses.update, model)).follow(store, knobs.namespace, model)
                await stack.enter_async_context(running(follow, f"registry of {model}"))
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


def _host(address: str) -> str:
    """Return host and port of a URL; of anything else, the text."""
    return urlsplit(address).netloc or address
