"""Composition of the sidecar: engine, worker client, reports, and the end of all three.

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
from loadline.adapters.outage_reasons import OutageReasons
from loadline.client.resources import bus_of, running, store_of, wait_at_most
from loadline.client.streams import StreamEngine
from loadline.client.worker import WorkerClient
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.engine_metrics.engine_reading import EngineReading
from loadline.engine_metrics.tables import ENGINES
from loadline.errors import AddressTaken, EngineEnded, LoadlineError
from loadline.ports import Bus, Store
from loadline.servers import is_loopback
from loadline.sidecar.engine_end import EngineEnd
from loadline.sidecar.engine_process import FoundEngine, StartedEngine
from loadline.sidecar.engine_record import check_address, record_of
from loadline.sidecar.engine_scraper import EngineScraper
from loadline.sidecar.options import SidecarOptions
from loadline.sidecar.pages import EnginePages
from loadline.sidecar.reports import EngineReports
from loadline.sidecar.stream_load import has_room
from loadline.wire.messages import DrainCommand

# The client reports by itself every interval; here a reading is reported when it is there.
_NEVER_MS: Final = 3_600_000
# An engine ends within 30 s; the report that it is drained is sent ten times, a second apart, if NATS is away.
_REPORTED_S: Final = 45.0
_REMOVAL_S: Final = 60.0
"""Time in which a scaler removes a worker after the time limit of its drain."""
_EXPIRY_LEASES: Final = 3
"""Lease times in which the entry of a worker that ended expires: a new leader of etcd begins them anew."""
_REGISTRY_REMEDY: Final = "Start the server, or correct etcd.endpoints or the login in --config; there is --etcd too"

_log = bounded("sidecar")


class Sidecar:
    """One engine as a worker, over all of its starts.

    Args:
        options: Description of engine and worker.
        bus: A connected bus to use instead of ``options.nats``; it stays open.
        store: A store to use instead of ``options.etcd``; it stays open.
    """

    def __init__(self, options: SidecarOptions, *, bus: Bus | None = None, store: Store | None = None) -> None:
        self._options = options
        self._servers = bus, store
        self._scraper = EngineScraper(options.engine, options.interval_s)
        self._reports = EngineReports(options.root, with_traffic=options.report_traffic)
        self._end = EngineEnd(self._scraper, options.grace_s)
        self._stop = asyncio.Event()
        self._incarnation = 0
        self._draining = False
        self._commanded = False
        self._removed_by_s = 0.0

    def stop(self) -> None:
        """Drain and end; the second call ends at once."""
        if self._stop.is_set():
            self._end.abort()
        self._stop.set()
        self._scraper.wake()

    async def run(self) -> None:
        """Run until the worker was drained, ``stop`` was called, or the process of the engine ends.

        Raises:
            AddressTaken: Another worker is registered with this engine.
            EngineEnded: The process of the engine ended by itself.
            WorkerSuperseded: Another worker of this name started later.
        """
        options = self._options
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            self._store = await enter(store_of(self._servers[1], options.etcd))
            pages = await enter(EnginePages(f"{options.url.rstrip('/')}{ENGINES[options.engine].path}"))
            await enter(running(self._run_scraper(pages), f"metrics of {options.worker}"))
            if options.command:
                self._end.process = StartedEngine(options.command, self._scraper.wake)
                stack.push_async_callback(self._end.end_process)
            elif options.pid is not None:
                self._end.process = found = FoundEngine(options.pid, self._scraper.wake)
                stack.callback(found.forget)
            while (reading := await self._await_engine()) is not None and await self._serve_incarnation(reading):
                pass
        process = self._end.process
        if process is not None and process.ended.is_set() and not process.asked_to_end:
            raise EngineEnded(process.ending)

    async def _run_scraper(self, pages: EnginePages) -> None:
        try:
            await self._scraper.run(pages, self._reports.report)
        finally:
            self.stop()  # blind, it must not stay registered

    @property
    def _ending(self) -> bool:
        return self._stop.is_set() or self._end.has_ended

    async def _await_engine(self) -> EngineReading | None:
        """Wait until the engine was read once; return the newest reading, or None if the sidecar ends."""
        while self._scraper.engine.reading is None and not self._ending:
            await self._scraper.next_scrape()
        return None if self._ending else self._scraper.engine.reading

    async def _serve_incarnation(self, reading: EngineReading) -> bool:
        """Register the engine and serve until it is started again (True), or the sidecar ends (False)."""
        # Later than the last one even if the clock was set back.
        self._incarnation = max(time.time_ns() // 1_000_000, self._incarnation + 1)
        record, starts = self._record(reading), self._scraper.engine.starts
        await self._check_address(record)
        options = self._options
        # A connection of its own: subscriptions of an incarnation that is gone would go on to answer commands.
        async with bus_of(self._servers[0], options.nats, f"loadline-sidecar-{options.worker}") as bus:
            streams = self._reports.streams = await self._follow_streams(record, bus)
            client = WorkerClient(
                record,
                bus=bus,
                store=self._store,
                root=options.root,
                namespace=options.namespace,
                sample=self._reports.samples,
                on_drain=self._drain,
                report_interval_ms=_NEVER_MS,
                lease_ttl_s=options.lease_ttl_s,
                migration=None if streams is None else streams.options(),
            )
            try:
                async with client as worker:
                    self._reports.begin(worker, bus)
                    return await self._serve(worker, starts)
            finally:
                self._reports.end()

    async def _follow_streams(self, record: WorkerRecord, bus: Bus) -> StreamEngine | None:
        """Follow the streams that gateways have at the engine; none serves a part of a request only."""
        if record.role != "aggregated":
            return None
        root, engine = self._options.root, self._scraper.engine
        streams = StreamEngine(record, bus, root, lambda tokens: has_room(engine.reading, tokens))
        await streams.start()
        return streams

    def _record(self, reading: EngineReading) -> WorkerRecord:
        record = record_of(self._options, reading, self._incarnation)
        process = self._end.process
        slots = record.max_batch_requests or (None if process is None else process.batch_slots)
        return replace(record, max_batch_requests=slots)

    async def _check_address(self, record: WorkerRecord) -> None:
        """Check that nobody else has registered this engine, once the store can be read.

        An engine that was started here has its address to itself, so the entry of another worker is of one that ended.

        Raises:
            AddressTaken: Another worker is registered with it, and remains so.
        """
        if is_loopback(record.base_url):
            remedy = "name the address that routers reach: --advertise http://HOST:PORT"
            _log.warning("address_is_local", address=record.base_url, remedy=remedy)
        waits, reasons, now_s = backoff(0.2, 5.0), OutageReasons(), asyncio.get_running_loop().time
        expired_s: float | None = None
        """Time by which the entry of a worker that ended has expired, once it was seen."""
        while not self._ending:
            try:
                await check_address(self._store, self._options.namespace, record)
            except LoadlineError as error:
                if isinstance(error, AddressTaken):
                    leases = _EXPIRY_LEASES if self._options.command else 0
                    expired_s = now_s() + leases * self._options.lease_ttl_s if expired_s is None else expired_s
                    if now_s() >= expired_s:
                        raise
                else:
                    expired_s = None  # while etcd is away no lease ends, and its new leader begins all anew
                if reasons.is_new(str(error)):
                    self._log_unchecked(error)
                await wait_at_most(self._stop, next(waits))
            else:
                return

    def _log_unchecked(self, error: LoadlineError) -> None:
        if isinstance(error, AddressTaken):
            _log.warning("address_taken", detail=f"{error} It is tried again until then.")
            return
        servers = ", ".join(self._options.etcd.endpoints)
        detail = f"no answer from etcd at {servers}: {error}. It is tried again until there is one."
        _log.warning("registry_unreadable", detail=detail, remedy=_REGISTRY_REMEDY)

    async def _serve(self, worker: WorkerClient, starts: int) -> bool:
        """Serve one incarnation; return True if the engine has another one."""
        ready = False
        while not self._ending and not worker.drained.is_set():
            if ready and not self._draining and self._has_changed(worker.record, starts):
                return True
            if not ready and not self._scraper.engine.away and self._scraper.engine.reading is not None:
                # It may have come back with another cache or another model.
                if replace(self._record(self._scraper.engine.reading), state="starting") != worker.record:
                    return True
                ready, starts = True, self._scraper.engine.starts
                await worker.ready()
                _log.info("registered", worker=worker.record.worker, incarnation=worker.record.incarnation)
            await self._scraper.next_scrape()
        if self._stop.is_set() and not worker.drained.is_set():
            self._draining = True
            worker.retire()
            await self._end.until_empty_or_grace()
        if self._commanded and self._end.emptied:
            await wait_at_most(worker.drained, _REPORTED_S)
        if worker.drained.is_set() and (self._end.process is None or self._options.wait_after_drain):
            # Whatever keeps this program running would start it again, and the drained worker would be back.
            _log.info("drained", worker=worker.record.worker, detail="waits for SIGTERM")
            await self._await_removal()
        return False

    def _has_changed(self, record: WorkerRecord, starts: int) -> bool:
        """Return True if the engine is away, was started again, or has ranks that it did not tell of at first."""
        engine = self._scraper.engine
        ranks = 0 if engine.reading is None else 1 + max(load.rank for load in engine.reading.ranks)
        return engine.away or engine.starts > starts or ranks > record.data_parallel_size

    async def _await_removal(self) -> None:
        """Wait for SIGTERM; a worker that is restarted at its end returns if nobody has removed it in time."""
        if not self._options.wait_after_drain:
            await self._stop.wait()
            return
        left_s = self._removed_by_s - asyncio.get_running_loop().time()
        if not await wait_at_most(self._stop, max(0.0, left_s)):
            # A newer decision may have kept it: its pod counts as a replica and would never serve again.
            _log.warning("not_removed", worker=self._options.worker, detail="ends, so that it is started again")

    async def _drain(self, command: DrainCommand) -> None:
        self._draining = self._commanded = True
        self._removed_by_s = asyncio.get_running_loop().time() + command.ttl_ms / 1_000 + _REMOVAL_S
        await self._end.until_empty()
        await self._end.end_process()
