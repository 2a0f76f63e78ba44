"""Composition of the sidecar: engine, worker client, traffic reports, and the end of all three.

The worker is registered once the engine answers, under a new incarnation for each start of the engine. While the engine
is away the worker is ``starting``: routers send it nothing, and agents wait for it as for a worker that was just
started. A drain and SIGTERM end alike: the worker leaves routing, its engine finishes what it has, and only then does
the engine get SIGTERM.
"""

import asyncio
import time
from contextlib import AsyncExitStack
from typing import Final

from msgspec.structs import replace

from loadline.adapters.backoff import backoff
from loadline.adapters.logs import bounded
from loadline.client.resources import bus_of, publish_now, running, store_of, wait_at_most
from loadline.client.streams import StreamEngine
from loadline.client.worker import WorkerClient
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.engine_metrics.engine_reading import EngineReading
from loadline.engine_metrics.tables import ENGINES
from loadline.errors import AddressTaken, EngineEnded, LoadlineError
from loadline.ports import Bus, Store
from loadline.sidecar.engine_process import EngineProcess, batch_slots
from loadline.sidecar.engine_record import check_address, is_loopback, record_of
from loadline.sidecar.engine_state import EngineState
from loadline.sidecar.options import SidecarOptions
from loadline.sidecar.pages import EnginePages, NoAnswer
from loadline.sidecar.stream_load import has_room, with_unmovable
from loadline.wire.messages import DrainCommand, TrafficReport
from loadline.wire.subjects import Subjects

# The client reports by itself every interval; here a reading is reported when it is there.
_NEVER_MS: Final = 3_600_000
# An engine ends within 30 s; the report that it is drained is sent ten times, a second apart, if NATS is away.
_REPORTED_S: Final = 45.0
_log = bounded("sidecar")


class Sidecar:
    """One engine as a worker, over all of its starts.

    Args:
        options: Description of engine and worker.
        bus: A connected bus to use instead of ``options.nats``; it stays open.
        store: A store to use instead of ``options.etcd``; it stays open.
    """

    def __init__(
        self,
        options: SidecarOptions,
        *,
        bus: Bus | None = None,
        store: Store | None = None,
    ) -> None:
        self.engine = EngineState(options.engine, _now_ms())
        self._options = options
        self._streams: StreamEngine | None = None
        self._servers = bus, store
        self._stop = asyncio.Event()
        self._abort = asyncio.Event()
        self._scraped = asyncio.Event()
        self._unreported: list[WorkerSample] = []
        self._incarnation = 0
        self._traffic_sequence = 0
        self._logged = ""
        self._draining = False
        self._commanded = False
        self._emptied = False
        self._grace_over = False
        self._worker: WorkerClient | None = None
        self._process: EngineProcess | None = None

    def stop(self) -> None:
        """Drain and end; the second call ends at once."""
        if self._stop.is_set():
            self._abort.set()
        self._stop.set()
        self._scraped.set()

    async def run(self) -> None:
        """Run until the worker was drained, ``stop`` was called, or the engine that was started here ends.

        Raises:
            AddressTaken: Another worker is registered with this engine.
            EngineEnded: The engine that was started here ended by itself.
            WorkerSuperseded: Another worker of this name started later.
        """
        options = self._options
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            self._store = await enter(store_of(self._servers[1], options.etcd))
            pages = await enter(EnginePages(f"{options.url.rstrip('/')}{ENGINES[options.engine].path}"))
            await enter(running(self._scrape(pages), f"metrics of {options.worker}"))
            if options.command:
                self._process = EngineProcess(options.command, self._scraped.set)
                stack.push_async_callback(self._end_engine)
            while (reading := await self._await_engine()) is not None and await self._serve_incarnation(reading):
                pass
        if self._process is not None and not self._process.asked_to_end:
            raise EngineEnded(f"the engine ended with exit code {self._process.exit_code}")

    @property
    def _engine_ended(self) -> bool:
        return self._process is not None and self._process.ended.is_set()

    @property
    def _ending(self) -> bool:
        return self._stop.is_set() or self._engine_ended

    async def _scrape(self, pages: EnginePages) -> None:
        due_s = time.monotonic()
        try:
            while True:
                asked_ms = _now_ms()
                try:
                    page = await pages.fetch()
                except NoAnswer as error:
                    self.engine.failed(str(error), _now_ms(), refused=error.refused)
                    self._log_problem("engine_silent")
                else:
                    await self._take(page, asked_ms)
                self._scraped.set()
                due_s = max(due_s + self._options.interval_s, time.monotonic())
                await asyncio.sleep(due_s - time.monotonic())
        finally:
            self.stop()  # blind, it must not stay registered

    async def _take(self, page: bytes, asked_ms: int) -> None:
        """Report what a page says."""
        before = self.engine.warnings
        reading = self.engine.answered(page, asked_ms, _now_ms())
        if reading is None:
            self._log_problem("engine_unreadable")
            return
        self._logged = ""
        for kind, count in self.engine.warnings.items():
            if count > before.get(kind, 0):
                _log.warning("engine_metrics_odd", kind=kind, count=count)
        self._unreported = reading.samples()
        if self._streams is not None:
            self._unreported = with_unmovable(self._unreported, reading, self._streams.migratable_requests())
        worker = self._worker
        if worker is None or worker.drained.is_set():
            return
        await worker.report_now()
        traffic = reading.traffic_sample(self._traffic_sequence + 1) if self._options.report_traffic else None
        if traffic is not None:
            self._traffic_sequence += 1
            record = worker.record
            report = TrafficReport(record.model, record.worker, record.incarnation, traffic)
            await publish_now(self._bus, Subjects(self._options.root).traffic(record.model, record.worker), report)

    def _log_problem(self, event: str) -> None:
        """Log a problem once, and again when the engine is found to be away; an engine that loads is no problem."""
        place = f"{event} {self.engine.away}"
        if place != self._logged:
            self._logged = place
            log = _log.info if self.engine.reading is None else _log.warning
            log(event, error=self.engine.problem, away=self.engine.away)

    def _sample(self) -> list[WorkerSample]:
        """Return the samples of the newest page once: an engine that does not answer is silent."""
        samples, self._unreported = self._unreported, []
        return samples

    async def _await_engine(self) -> EngineReading | None:
        """Wait until the engine was read once; return the newest reading, or None if the sidecar ends."""
        while self.engine.reading is None and not self._ending:
            await self._next_scrape()
        return None if self._ending else self.engine.reading

    async def _next_scrape(self) -> None:
        self._scraped.clear()
        await self._scraped.wait()

    async def _serve_incarnation(self, reading: EngineReading) -> bool:
        """Register the engine and serve until it is started again (True), or the sidecar ends (False)."""
        # Later than the last one even if the clock was set back.
        self._incarnation = max(time.time_ns() // 1_000_000, self._incarnation + 1)
        record, starts = self._record(reading), self.engine.starts
        await self._check_address(record)
        options = self._options
        # A connection of its own: subscriptions of an incarnation that is gone would go on to answer commands.
        async with bus_of(self._servers[0], options.nats, f"loadline-sidecar-{options.worker}") as self._bus:
            streams = await self._follow_streams(record)
            client = WorkerClient(
                record,
                bus=self._bus,
                store=self._store,
                root=options.root,
                namespace=options.namespace,
                sample=self._sample,
                on_drain=self._drain,
                report_interval_ms=_NEVER_MS,
                lease_ttl_s=options.lease_ttl_s,
                migration=None if streams is None else streams.options(),
            )
            try:
                async with client as self._worker:
                    return await self._serve(client, starts)
            finally:
                self._worker = None

    async def _follow_streams(self, record: WorkerRecord) -> StreamEngine | None:
        """Follow the streams that gateways have at the engine; none serves a part of a request only."""
        if record.role == "aggregated":
            bus, root = self._bus, self._options.root
            self._streams = StreamEngine(record, bus, root, lambda tokens: has_room(self.engine.reading, tokens))
            await self._streams.start()
        return self._streams

    def _record(self, reading: EngineReading) -> WorkerRecord:
        record = record_of(self._options, reading, self._incarnation)
        slots = record.max_batch_requests or batch_slots(self._options.command)
        return replace(record, max_batch_requests=slots)

    async def _check_address(self, record: WorkerRecord) -> None:
        """Check that nobody else has registered this engine, once the store can be read."""
        if is_loopback(record.base_url):
            remedy = "name the address that routers reach: --advertise http://HOST:PORT"
            _log.warning("address_is_local", address=record.base_url, remedy=remedy)
        waits = backoff(0.2, 5.0)
        while not self._ending:
            try:
                await check_address(self._store, self._options.namespace, record)
            except AddressTaken:
                raise
            except LoadlineError as error:
                _log.warning("registry_unreadable", error=str(error))
                await wait_at_most(self._stop, next(waits))
            else:
                return

    async def _serve(self, worker: WorkerClient, starts: int) -> bool:
        """Serve one incarnation; return True if the engine has another one."""
        ready = False
        while not self._ending and not worker.drained.is_set():
            if ready and not self._draining and (self.engine.away or self.engine.starts > starts):
                return True
            if not ready and not self.engine.away and self.engine.reading is not None:
                # It may have come back with another cache or another model.
                if replace(self._record(self.engine.reading), state="starting") != worker.record:
                    return True
                ready, starts = True, self.engine.starts
                await worker.ready()
                _log.info("registered", worker=worker.record.worker, incarnation=worker.record.incarnation)
            await self._next_scrape()
        if self._stop.is_set() and not worker.drained.is_set():
            self._draining = True
            worker.retire()
            await self._until_empty_or_grace()
        if self._commanded and self._emptied:
            await wait_at_most(worker.drained, _REPORTED_S)
        if worker.drained.is_set() and self._process is None:
            # Whatever keeps this program running would start it again, and the drained worker would be back.
            _log.info("drained", worker=worker.record.worker, detail="waits for SIGTERM")
            await self._stop.wait()
        return False

    async def _drain(self, _command: DrainCommand) -> None:
        self._draining = self._commanded = True
        await self._until_empty()
        await self._end_engine()

    async def _until_empty(self) -> None:
        began_ms = _now_ms()
        while not (self.engine.empty_since(began_ms) or self._engine_ended):
            await self._next_scrape()
        self._emptied = True

    async def _until_empty_or_grace(self) -> None:
        """Wait for the requests in the engine, once, until the grace period is over or ``stop`` is called again."""
        if self._grace_over or self._emptied:
            return
        emptying, aborting = asyncio.ensure_future(self._until_empty()), asyncio.ensure_future(self._abort.wait())
        await asyncio.wait({emptying, aborting}, timeout=self._options.grace_s, return_when=asyncio.FIRST_COMPLETED)
        for task in (emptying, aborting):
            task.cancel()
        self._grace_over = True
        if not self._emptied:
            requests = None if self.engine.reading is None else self.engine.reading.requests
            _log.warning("grace_over", requests=requests, grace_s=self._options.grace_s)

    async def _end_engine(self) -> None:
        """End the engine that was started here; unless a drain has emptied it, its requests get the grace period."""
        if self._process is not None and not self._process.ended.is_set():
            await self._until_empty_or_grace()
            await self._process.end()


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
