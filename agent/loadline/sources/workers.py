"""Workers that a source registers and reports, because their engines do neither."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final, Protocol, Self

from loadline.adapters.logs import bounded
from loadline.client.resources import bus_of, publish_now, running, store_of
from loadline.client.worker import WorkerClient
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.errors import WorkerSuperseded
from loadline.ports import Bus, Store
from loadline.sources.config import RegisteringKnobs
from loadline.sources.empty_readings import EmptyReadings
from loadline.wire.messages import DrainCommand, MigrateCommand, MigrateReply, MigrationReport
from loadline.wire.subjects import Subjects

MigrateHandler = Callable[[MigrateCommand], Awaitable[MigrateReply | None]]
_SWEEP_S: Final = 1.0

_log = bounded("source")


class SourcedEngine(Protocol):
    """Newest figures of one engine."""

    def take_samples(self) -> Sequence[WorkerSample]:
        """Return the samples since the last call; empty if the engine was silent."""
        ...

    def begin_drain(self) -> None:
        """Forget what the engine has said of its requests so far."""
        ...

    def is_empty(self) -> bool:
        """Return True if each rank has said twice in a row that it has no request; what it does not say is no 0."""
        ...


class LatestSamples:
    """Newest sample of each rank of an engine."""

    def __init__(self) -> None:
        self._latest: dict[int, WorkerSample] = {}
        self._empty = EmptyReadings()
        self._new: set[int] = set()
        self._counted_ms = 0
        """Time of the newest figure of the last reading that counted, or at the start of the drain."""

    def put(self, samples: Sequence[WorkerSample], oldest_ms: int | None = None) -> None:
        """Replace all samples by those of a reading.

        It counts as another one without a request if all of it is later than the last one that counted, and than what
        was known when the drain began. Requests count at once.

        Args:
            samples: A sample for each rank, with the time of the newest.
            oldest_ms: Time of the oldest figure in them; None: that of the samples.
        """
        self._latest = {sample.rank: sample for sample in samples}
        self._new = set(self._latest)
        self._empty.keep(self._latest)
        newest_ms = self._newest_ms
        is_another = not newest_ms or (newest_ms if oldest_ms is None else oldest_ms) > self._counted_ms
        for rank, sample in self._latest.items():
            is_empty = sample.waiting_requests == 0 == sample.running_requests
            if is_another or not is_empty:
                self._empty.note(rank, is_empty=is_empty)
        if is_another:
            self._counted_ms = newest_ms

    def take_samples(self) -> Sequence[WorkerSample]:
        """Return the samples since the last call."""
        new, self._new = sorted(self._new), set()
        return [self._latest[rank] for rank in new]

    def begin_drain(self) -> None:
        """Forget what the engine has said of its requests so far."""
        self._empty.begin()
        self._counted_ms = self._newest_ms

    def is_empty(self) -> bool:
        """Return True if each rank has said twice in a row that it has no request."""
        return self._empty.are_enough

    @property
    def _newest_ms(self) -> int:
        return max((sample.timestamp_ms for sample in self._latest.values()), default=0)


class _SourcedWorker:
    """A worker and the task of its client."""

    def __init__(self, record: WorkerRecord, engine: SourcedEngine, heard_s: float, lost_after_s: int) -> None:
        self.record = record
        self.engine = engine
        self.heard_s = heard_s
        self.lost_after_s = lost_after_s
        self.is_awaited = False
        """True after an outage, until it is heard again."""
        self.heard = asyncio.Event()
        self.lost = asyncio.Event()

    async def wait_empty(self, _command: DrainCommand) -> None:
        """Wait until the engine says twice, in readings after the command, that it has no request."""
        self.engine.begin_drain()
        while not self.engine.is_empty():
            self.heard.clear()
            await self.heard.wait()


class SourcedWorkers:
    """The workers of a source, as an async context manager.

    A worker outlives the source: its key stays for ``lease_ttl_s``, and a source that starts meanwhile takes it over.

    Args:
        knobs: Servers and time limits.
        name: Name of the connection to NATS.
        bus: A connected bus to use instead of ``knobs.nats``; it stays open.
        store: A store to use instead of ``knobs.etcd``; it stays open.
        clock: Monotonic time in s.
    """

    def __init__(
        self,
        knobs: RegisteringKnobs,
        name: str,
        *,
        bus: Bus | None = None,
        store: Store | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._knobs = knobs
        self._clock = clock
        self._name = name
        self._given = (bus, store)
        self._workers: dict[tuple[str, str, str], _SourcedWorker] = {}
        self._away_since_s: dict[tuple[str, str], float] = {}
        """Models and pools whose upstream is away, and the time at which a worker was heard last."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        """Connect, without waiting for NATS or etcd."""
        bus, store = self._given
        async with AsyncExitStack() as stack:
            self._bus = await stack.enter_async_context(bus_of(bus, self._knobs.nats, self._name))
            self._store = await stack.enter_async_context(store_of(store, self._knobs.etcd))
            stack.push_async_callback(self._end_all)
            await stack.enter_async_context(running(self._sweep(), "silent workers"))
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """End all clients and disconnect; the keys stay until their leases end."""
        await self._stack.aclose()

    @property
    def names(self) -> Sequence[tuple[str, str, str]]:
        """Model, pool and name of each worker."""
        return list(self._workers)

    def heard(
        self,
        record: WorkerRecord,
        make_engine: Callable[[], SourcedEngine],
        on_migrate: MigrateHandler | None = None,
    ) -> None:
        """Register a worker unless this incarnation is known, and note that its engine was heard now.

        Args:
            record: Description of the worker, for a new one.
            make_engine: Returns the figures of a new one.
            on_migrate: Answers its migrate commands; None: they are refused as ``unsupported``.
        """
        now_s = self._clock()
        worker = self._workers.get(record.names)
        if worker is not None and worker.record.incarnation < record.incarnation:
            self.remove(record.names)
            worker = None
        if worker is None:
            if len(self._workers) >= self._knobs.workers_max:
                remedy = "raise workers_max, or find out who sends reports of so many workers"
                _log.error("workers_full", worker=record.worker, model=record.model, remedy=remedy)
                return
            worker = _SourcedWorker(record, make_engine(), now_s, self._knobs.lost_after_s)
            self._workers[record.names] = worker
            task = asyncio.create_task(self._run(worker, on_migrate), name=f"worker {record.worker}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        worker.heard_s, worker.lost_after_s, worker.is_awaited = now_s, self._knobs.lost_after_s, False
        worker.heard.set()

    def engine(self, names: tuple[str, str, str]) -> SourcedEngine | None:
        """Return the figures of a worker; None: it is not known."""
        worker = self._workers.get(names)
        return None if worker is None else worker.engine

    def remove(self, names: tuple[str, str, str]) -> None:
        """Deregister a worker whose engine has gone for certain."""
        worker = self._workers.pop(names, None)
        if worker is not None:
            worker.lost.set()

    def set_away(self, model: str, pool: str, *, is_away: bool) -> None:
        """Note whether the upstream of a pool is away: until it answers, silence says nothing of its workers.

        Short outages stop the clock of ``lost_after_s``, or one that comes again and again would keep lost workers. A
        longer one starts it again, with ``returned_after_s``, since publishers reconnect one by one; but only once
        until a worker is heard.
        """
        if is_away:
            newest_s = max((worker.heard_s for worker in self._workers.values()), default=self._clock())
            self._away_since_s.setdefault((model, pool), newest_s)
            return
        now_s = self._clock()
        outage_s = now_s - self._away_since_s.pop((model, pool), now_s)
        for names, worker in self._workers.items():
            if names[:2] != (model, pool):
                continue
            if outage_s > self._knobs.lost_after_s and not worker.is_awaited:
                worker.heard_s, worker.lost_after_s, worker.is_awaited = now_s, self._knobs.returned_after_s, True
            else:
                worker.heard_s = min(now_s, worker.heard_s + outage_s)

    def remove_silent(self) -> None:
        """Remove workers that were silent for long while another one was heard: if all are, the upstream is away."""
        judged = [(names, one) for names, one in self._workers.items() if names[:2] not in self._away_since_s]
        newest_s = max((worker.heard_s for _, worker in judged), default=0.0)
        for names, worker in judged:
            if newest_s - worker.heard_s > worker.lost_after_s:
                self.remove(names)

    async def report_migration(self, report: MigrationReport) -> None:
        """Publish a report of a migration for its source, if the bus accepts it now."""
        source = report.source
        subject = Subjects(self._knobs.root).migration(report.model, source.pool, source.worker)
        await publish_now(self._bus, subject, report)

    async def _run(self, worker: _SourcedWorker, on_migrate: MigrateHandler | None) -> None:
        """Register and report a worker until its engine is lost."""
        record = worker.record
        client = WorkerClient(
            record,
            root=self._knobs.root,
            namespace=self._knobs.namespace,
            sample=worker.engine.take_samples,
            on_drain=worker.wait_empty,
            report_interval_ms=self._knobs.report_interval_ms,
            lease_ttl_s=self._knobs.lease_ttl_s,
            bus=self._bus,
            store=self._store,
            outlives=True,
            on_migrate=on_migrate,
        )
        try:
            async with client:
                await client.ready()
                _log.info("worker_registered", worker=record.worker, pool=record.pool, model=record.model)
                await worker.lost.wait()
                await client.leave()
            _log.info("worker_removed", worker=record.worker, pool=record.pool, model=record.model)
        except WorkerSuperseded as error:  # it stays known, so that it is not registered again
            _log.error("worker_superseded", worker=record.worker, model=record.model, detail=str(error))

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.remove_silent()

    async def _end_all(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
