"""Source that reads a Prometheus server: load of engines that cannot be reached, and traffic of routers.

Engines behind Prometheus are registered nowhere, so this source registers them with the agent.
"""

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from typing import Final

from msgspec.structs import replace

from loadline.adapters.http_reader import HttpReader, PageUnavailable
from loadline.adapters.logs import bounded
from loadline.client.resources import bus_of, running, wait_at_most
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.engine_metrics.engine_reader import EngineReader
from loadline.engine_metrics.engine_reading import EngineReading
from loadline.engine_metrics.process_start import START_METRIC
from loadline.engine_metrics.router_reader import RouterReader
from loadline.engine_metrics.router_tables import ROUTERS
from loadline.engine_metrics.tables import ENGINES
from loadline.errors import NotAnExposition
from loadline.ports import Bus
from loadline.sources.oddities import OddityLog
from loadline.sources.prometheus_answer import AnswerRefused, TargetPage, query, read_answer
from loadline.sources.prometheus_config import PrometheusFrontendKnobs, PrometheusKnobs, PrometheusPoolKnobs
from loadline.sources.traffic import RegisteredAddresses, TrafficReporter
from loadline.sources.upstream import Upstream
from loadline.sources.workers import LatestSamples, SourcedWorkers

# Of an engine that does not tell when it started: its pod has another name after a restart.
_INCARNATION: Final = 1

# Dynamo's and SGLang's count requests by it; of engines, it is the port that a PodMonitor or ServiceMonitor reads.
_OF_ROUTERS: Final = frozenset(("endpoint",))

_log = bounded("source")


class _Query:
    """One query of the server, and its state.

    Args:
        knobs: The configuration.
        pages: Client of the server.
        names: Metrics that are asked for.
        selector: Matchers of labels.
        label: Label that names a target.
        own: Labels that the targets write and Prometheus may write too.
    """

    def __init__(
        self,
        knobs: PrometheusKnobs,
        pages: HttpReader,
        names: Iterable[str],
        *,
        selector: str,
        label: str,
        own: frozenset[str] = frozenset(),
    ) -> None:
        self._url = f"{knobs.url.rstrip('/')}/api/v1/query"
        self._pages = pages
        self._text = query(names, selector, knobs.max_age_s)
        self._label = label
        self._own = own
        place = f"{knobs.url} {{{selector}}}"
        self.oddities = OddityLog(place)
        self._upstream = Upstream(place)
        self.has_failed = False
        """True if the last query failed, so it says nothing of its targets."""
        self._read_ms: dict[str, int] = {}

    async def ask(self) -> tuple[dict[str, TargetPage], float]:
        """Return the pages of all targets, none if the server is away, and the time to wait, in s."""
        try:
            found = read_answer(await self._pages.get(self._url, {"query": self._text}), self._label, self._own)
        except (PageUnavailable, AnswerRefused) as error:
            self.has_failed = True
            return {}, self._upstream.failed(error.reason, error.detail)
        self.has_failed = False
        if not found:
            detail = f"no series has these metrics, this selector and the label {self._label}"
            return {}, self._upstream.failed("no_series", detail)
        self._upstream.succeeded()
        self._read_ms = {target: at_ms for target, at_ms in self._read_ms.items() if target in found}
        return found, 0.0

    def is_new(self, target: str, page: TargetPage) -> bool:
        """Return True if Prometheus has read the target since the last call."""
        new = page.read_ms > self._read_ms.get(target, 0)
        self._read_ms[target] = max(page.read_ms, self._read_ms.get(target, 0))
        return new


class _PoolSource:
    """Engines of one pool.

    Args:
        pool: The pool.
        knobs: The configuration.
        pages: Client of the server.
        workers: The workers of the source.
        bus: The connected bus.
        with_series: Pools whose last answer had series, of the whole source.
    """

    def __init__(
        self,
        pool: PrometheusPoolKnobs,
        knobs: PrometheusKnobs,
        pages: HttpReader,
        workers: SourcedWorkers,
        bus: Bus,
        *,
        with_series: set[tuple[str, str]],
    ) -> None:
        names = ENGINES[pool.engine].names | {START_METRIC}
        self._query = _Query(knobs, pages, names, selector=pool.selector, label=pool.worker_label)
        self._pool = pool
        self._root = knobs.root
        self._workers = workers
        self._bus = bus
        self._with_series = with_series
        self._readers: dict[str, EngineReader] = {}
        self._readings: dict[str, tuple[EngineReading, TargetPage]] = {}
        """The newest reading of each worker, and its page."""
        self._reporters: dict[str, TrafficReporter] = {}

    async def poll(self) -> float:
        """Report what the server has; return the time to wait beyond the interval, in s."""
        found, wait_s = await self._query.ask()
        names = self._pool.model, self._pool.name
        if found:
            self._with_series.add(names)
        else:
            self._with_series.discard(names)
        # If no pool has series, Prometheus cannot scrape; a single one may have ended, and must not stay for ever.
        self._workers.set_away(*names, is_away=self._query.has_failed or not self._with_series)
        for worker, page in found.items():
            if self._query.is_new(worker, page):
                await self._read(worker, page)
            if worker in self._readings:
                # The agent counts a silent worker as stale after 5 s, and Prometheus reads every 15 s or more.
                self._report(worker, *self._readings[worker])
        self._forget(found)
        return wait_s

    async def _read(self, worker: str, page: TargetPage) -> None:
        if worker not in self._readers:
            self._readers[worker] = EngineReader(self._pool.engine)
        try:
            reading = self._readers[worker].read(page.text, page.read_ms)
        except NotAnExposition as error:
            _log.warning("worker_unreadable", worker=worker, model=self._pool.model, detail=str(error))
            return
        self._query.oddities.update(self._readers[worker].warnings)
        if worker in self._readings and not reading.restarted:
            # A pod may tell the starts of several processes, or of one of them: it began once.
            reading = replace(reading, started_ms=self._readings[worker][0].started_ms)
        self._readings[worker] = reading, page
        traffic = reading.traffic_sample(0) if self._pool.traffic else None
        if traffic is not None:
            if worker not in self._reporters:
                self._reporters[worker] = TrafficReporter(self._bus, self._root, worker)
            await self._reporters[worker].report(self._pool.model, traffic)

    def _report(self, worker: str, reading: EngineReading, page: TargetPage) -> None:
        record = _record(self._pool, worker, reading)
        self._workers.heard(record, LatestSamples)
        engine = self._workers.engine(record.names)
        if isinstance(engine, LatestSamples):
            samples = [replace(sample, timestamp_ms=page.read_ms) for sample in reading.samples()]
            engine.put(samples, page.oldest_ms)

    def _forget(self, found: Mapping[str, TargetPage]) -> None:
        """Forget targets that are no workers any more: after an outage, those that are began when they did before."""
        for worker in self._readers.keys() - found.keys():
            if self._workers.engine((self._pool.model, self._pool.name, worker)) is None:
                del self._readers[worker]
                self._readings.pop(worker, None)
                self._reporters.pop(worker, None)


class _FrontendSource:
    """Replicas of one router."""

    def __init__(
        self,
        frontend: PrometheusFrontendKnobs,
        knobs: PrometheusKnobs,
        pages: HttpReader,
        addresses: RegisteredAddresses,
        bus: Bus,
    ) -> None:
        self._table = ROUTERS[frontend.router]
        names = self._table.traffic.names | (self._table.workers.names if self._table.workers else frozenset())
        selector, label = frontend.selector, frontend.replica_label
        self._query = _Query(knobs, pages, names, selector=selector, label=label, own=_OF_ROUTERS)
        self._frontend = frontend
        self._knobs = knobs
        self._addresses = addresses
        self._bus = bus
        self._replicas: dict[str, tuple[RouterReader, TrafficReporter]] = {}

    async def poll(self) -> float:
        """Report what the server has; return the time to wait beyond the interval, in s."""
        found, wait_s = await self._query.ask()
        for replica, page in found.items():
            if not self._query.is_new(replica, page):
                continue
            reader, reporter = self._replicas.get(replica) or self._add(replica)
            try:
                traffic = reader.read(page.text, page.read_ms)
            except NotAnExposition as error:
                _log.warning("frontend_unreadable", frontend=replica, detail=str(error))
                continue
            self._query.oddities.update(reader.warnings, reader.unknown_model)
            for model, sample in traffic.items():
                await reporter.report(model, sample)
        if found:
            self._replicas = {replica: one for replica, one in self._replicas.items() if replica in found}
        return wait_s

    def _add(self, replica: str) -> tuple[RouterReader, TrafficReporter]:
        models, default = self._knobs.models, self._frontend.model
        reader = RouterReader(self._table, models, default, self._addresses.model_of)
        name = f"{self._frontend.name}-{replica}"[:100]
        self._replicas[replica] = reader, TrafficReporter(self._bus, self._knobs.root, name)
        return self._replicas[replica]


def _record(pool: PrometheusPoolKnobs, worker: str, reading: EngineReading) -> WorkerRecord:
    """Return the record of a worker: what the engine tells counts, then the configuration."""
    described = pool.record(worker, reading.started_ms or _INCARNATION)
    return replace(
        described,
        data_parallel_size=max(described.data_parallel_size, 1 + max(load.rank for load in reading.ranks)),
        kv_blocks_total=reading.kv_blocks_total or described.kv_blocks_total,
        block_size_tokens=reading.block_size_tokens or described.block_size_tokens,
        max_batch_requests=reading.max_batch_requests or described.max_batch_requests,
    )


async def _poll(source: _PoolSource | _FrontendSource, interval_s: float, stop: asyncio.Event) -> None:
    while True:
        wait_s = await source.poll()
        if await wait_at_most(stop, max(interval_s, wait_s)):
            return


async def run_prometheus(knobs: PrometheusKnobs, stop: asyncio.Event) -> None:
    """Bring what a Prometheus server has to the agent until ``stop`` is set."""
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        pages = await enter(HttpReader(knobs.timeout_ms / 1_000, token_file=knobs.token_file, ca_file=knobs.ca_file))
        bus = await enter(bus_of(None, knobs.nats, "loadline-source-prometheus"))
        workers = await enter(SourcedWorkers(knobs, "loadline-source-prometheus", bus=bus))
        addresses = RegisteredAddresses()
        if any(ROUTERS[one.router].workers for one in knobs.frontends):
            models = {*knobs.models.values(), *(one.model for one in knobs.frontends if one.model)}
            await addresses.follow(stack, knobs, sorted(models))
        with_series = set[tuple[str, str]]()
        sources: list[_PoolSource | _FrontendSource] = [
            *(_PoolSource(pool, knobs, pages, workers, bus, with_series=with_series) for pool in knobs.pools),
            *(_FrontendSource(one, knobs, pages, addresses, bus) for one in knobs.frontends),
        ]
        for number, source in enumerate(sources):
            await enter(running(_poll(source, knobs.report_interval_ms / 1_000, stop), f"query {number}"))
        await stop.wait()
