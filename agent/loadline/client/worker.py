"""Client of a worker: registers it under a lease, reports its load, and drains it on command.

    async def emptied(command: DrainCommand) -> None:
        await engine.until_idle()

    record = WorkerRecord("llama", "decode", "decode-7", "decode", incarnation=time.time_ns() // 1_000_000, gpus=2)
    async with WorkerClient(record, etcd=EtcdKnobs(), sample=engine.sample, on_drain=emptied) as worker:
        await engine.start()
        await worker.ready()
        await worker.drained.wait()

The worker runs without NATS and etcd, and reconnects as soon as they are reachable. A worker that finds its name
taken by one that started later ends: the body of the ``async with`` is cancelled, and ``WorkerSuperseded`` is raised. A
worker that drains finishes its drain first.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final, Self

from msgspec.structs import replace

from loadline.adapters.logs import bounded
from loadline.client.fence import EpochFence
from loadline.client.handover.held_requests import HeldRequests
from loadline.client.handover.migrator import FreeSlots, RequestMigrator
from loadline.client.handover.progress import DRAIN_SLOTS_MAX
from loadline.client.incarnation import DRAINED_INTERVAL_MS, DRAINED_REPEATS_MAX, WorkerIncarnation, is_for
from loadline.client.migratable_engine import MigrationOptions
from loadline.client.migration_driver import MigrationDriver
from loadline.client.registration import Registration, readable_record
from loadline.client.resources import BodyInterrupt, bus_of, publish_now, running, store_of, wait_at_most
from loadline.client.term_check import TermCheck
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.core.vocabulary.scalars import Role, WorkerPhase
from loadline.errors import WorkerSuperseded
from loadline.ports import Bus, Store, Unsubscribe
from loadline.servers import EtcdKnobs, NatsKnobs
from loadline.wire.codec import Rejected, decode_as, encode
from loadline.wire.keys import Keys
from loadline.wire.messages import DrainCommand, MigrateCommand, MigrateReply, MigrationReport
from loadline.wire.subjects import Subjects

# A sample is at most about 600 bytes of JSON, so a frame stays below the 256 KiB that agents take.
SAMPLES_IN_FRAME_MAX: Final = 256
# Without NATS the worker tries this many times before it leaves; the agent then sees the end of its lease.
DRAINED_UNDELIVERED_MAX: Final = 10
# Leaving takes one call to the store; if it does not answer, the lease expires.
LEAVE_TIMEOUT_S: Final = 3.0

_log = bounded("worker")

Samples = WorkerSample | Sequence[WorkerSample]


class WorkerClient:
    """One incarnation of a worker, as an async context manager.

    Args:
        record: Description of the worker; registered as ``starting`` until ``ready`` is called.
        nats: Servers and login of NATS; by default on this host.
        etcd: Endpoints and login of etcd; by default on this host.
        root: Prefix of every NATS subject.
        namespace: Keys live under ``/loadline/<namespace>/``.
        sample: Returns the engine's sample, or one per data-parallel rank. Called every interval and must be quick. The
            client numbers the samples, and stamps those whose ``timestamp_ms`` is 0.
        on_drain: Called once a drain was accepted; returns when the engine is empty. Cancelled when the client exits.
        report_interval_ms: Time between two load reports.
        lease_ttl_s: Time that the worker stays registered after its process died.
        bus: A connected bus to use instead of ``nats``; it stays open.
        store: A store to use instead of ``etcd``; it stays open.
        migration: Options of handovers in both directions; None: the engine cannot migrate requests.
        on_migrate: Answers migrate commands of an engine that migrates by itself, instead of ``migration``; None: the
            outcome is unknown, and the agent gets no answer.
        outlives: The engine outlives this process: its key stays at the exit until the lease ends, and samples are
            numbered from the clock, so that another process can continue with the same incarnation.

    Raises:
        ConfigError: Agents would refuse the record.
    """

    def __init__(
        self,
        record: WorkerRecord,
        *,
        nats: NatsKnobs | None = None,
        etcd: EtcdKnobs | None = None,
        root: str = "loadline",
        namespace: str = "default",
        sample: Callable[[], Samples],
        on_drain: Callable[[DrainCommand], Awaitable[None]],
        report_interval_ms: int = 1_000,
        lease_ttl_s: int = 10,
        bus: Bus | None = None,
        store: Store | None = None,
        migration: MigrationOptions | None = None,
        on_migrate: Callable[[MigrateCommand], Awaitable[MigrateReply | None]] | None = None,
        outlives: bool = False,
    ) -> None:
        self.record = readable_record(replace(record, state="starting"))
        self.drained = asyncio.Event()
        """Set once the worker is empty, has reported it and revoked its lease: the process may exit."""
        self._connections = (bus, nats, store, etcd)
        self._subjects = Subjects(root)
        self._keys = Keys(namespace)
        self._unsubscribe: list[Unsubscribe] = []
        """Ends of the subscriptions to commands."""
        self._sample = sample
        self._on_drain = on_drain
        self._report_interval_s = report_interval_ms / 1_000
        self._lease_ttl_s = lease_ttl_s
        self._outlives = outlives
        self._incarnation_state = WorkerIncarnation(record, time.time_ns() // 1_000_000 if outlives else 0)
        self._on_migrate = on_migrate
        self._migrator, self._driver = self._migration(migration)
        self._commands: asyncio.Queue[DrainCommand] = asyncio.Queue(maxsize=1)
        self._stack = AsyncExitStack()
        self._entered = False
        self._exited = False
        """True from the exit on: a bus of the caller still delivers commands, which nobody would carry out."""

    async def __aenter__(self) -> Self:
        """Register as ``starting`` and start to report, without waiting for NATS or etcd.

        Raises:
            RuntimeError: It was entered before.
        """
        record = self.record
        if self._entered:
            text = f"the client of worker {record.worker}, incarnation {record.incarnation}, was started before"
            raise RuntimeError(f"{text}. Make another WorkerClient, with a later incarnation, for each start.")
        bus, nats, store, etcd = self._connections
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            self._bus = await enter(bus_of(bus, nats, f"loadline-worker-{record.worker}"))
            opened = await enter(store_of(store, etcd))
            self._term_check = TermCheck(opened, self._keys, self._fences(), record.worker)
            self._registration = Registration(
                opened,
                self._keys.worker(*record.names),
                encode(record),
                self._lease_ttl_s,
                self._incarnation_state.is_later,
            )
            # Subscribe before registering: a reader of the record must be able to reach the worker.
            if self._driver is not None:
                await enter(self._driver)
            stack.push_async_callback(self._ignore_commands)
            await self._answer_commands()
            await enter(running(self._registration.run(), f"registration of {record.worker}"))
            await enter(running(self._term_check.run(), f"epochs of {record.worker}"))
            if not self._outlives:
                stack.push_async_callback(self.leave)
            await enter(running(self._report_periodically(), f"reports of {record.worker}"))
            await enter(running(self._run_drain(), f"drain of {record.worker}"))
            self._interrupt = BodyInterrupt()
            await enter(running(self._end_when_superseded(), f"successor of {record.worker}"))
            self._stack = stack.pop_all()
        self._entered = True
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Stop reporting, revoke the lease (within 3 s) unless the engine outlives this process, and disconnect.

        Raises:
            WorkerSuperseded: The body was ended because a worker of this name started later.
        """
        self._interrupt.leave()
        self._exited = True
        await self._stack.aclose()
        self._interrupt.raise_error(kind)

    async def ready(self) -> None:
        """Register as ``ready`` as soon as the store is reachable, and report at once: the engine can serve."""
        if not self._incarnation_state.drain_id:
            self._register("ready")
        await self.report_now()

    async def move(self, pool: str, role: Role) -> None:
        """Serve in another pool, in its role, as soon as the store is reachable; the engine must be empty.

        The scaler of the pool in which it started counts and ends it as before.

        Raises:
            ValueError: The worker drains.
            ConfigError: Agents would refuse the record.
        """
        if self._incarnation_state.drain_id or self.record.state == "draining":
            text = f"worker {self.record.worker} drains, so it cannot move to pool {pool}"
            raise ValueError(f"{text}. Start another worker there.")
        home = self.record.home
        moved = replace(self.record, pool=pool, role=role, home_pool="" if pool == home else home)
        self.record = readable_record(moved)
        self._incarnation_state.record = self.record
        self._migrator.move(self.record)
        await self._ignore_commands()
        await self._answer_commands()
        self._registration.move(self._keys.worker(*self.record.names), encode(self.record))
        await self.report_now()

    async def report_now(self) -> bool:
        """Sample and publish now; return True if the bus accepted it. A sample that cannot be sent now is dropped."""
        try:
            samples = self._with_slots(_checked(self._sample()))
        except Exception as error:  # noqa: BLE001 - the engine's code: its failure costs one report
            _log.error("sampling_failed", worker=self.record.worker, exc_info=error)
            return False
        sent = True
        for start in range(0, len(samples), SAMPLES_IN_FRAME_MAX):
            sent &= await self._report(samples[start : start + SAMPLES_IN_FRAME_MAX])
        return sent

    def retire(self) -> None:
        """Leave routing, as a drain command does: register as ``draining``, and in role decode not at all.

        The worker keeps reporting. Exit the context once the engine is empty.
        """
        self._migrator.drain()
        self._register("draining")
        if self.record.role == "decode":
            self._registration.withdraw()

    @property
    def expected_requests(self) -> int:
        """Number of requests of other workers that have a slot here and have not arrived yet."""
        return len(self._migrator.destination.expected)

    def _migration(self, options: MigrationOptions | None) -> tuple[RequestMigrator, MigrationDriver | None]:
        if options is None:
            return RequestMigrator(self.record, HeldRequests(), supported=False), None
        migrator = RequestMigrator(
            self.record,
            options.engine.held_requests,
            slots_in=options.slots_in,
            slots_out=options.slots_out,
            claim_timeout_ms=options.claim_timeout_ms,
        )
        return migrator, MigrationDriver(migrator, options, self.record.worker, self._publish_migration)

    def _fences(self) -> dict[str, EpochFence]:
        return {"drain": self._incarnation_state.epochs, "migrate": self._migrator.epochs}

    async def _answer_commands(self) -> None:
        """Answer commands under the names of the record."""
        subjects, names = self._subjects, self.record.names
        self._unsubscribe.append(await self._bus.answer(subjects.drain(*names), self._answer_drain))
        self._unsubscribe.append(await self._bus.answer(subjects.migrate(*names), self._answer_migrate))

    async def _ignore_commands(self) -> None:
        while self._unsubscribe:
            await self._unsubscribe.pop()()

    async def _answer_migrate(self, payload: bytes) -> bytes | None:
        if self._exited:
            return None
        command = decode_as(MigrateCommand, payload, self._subjects.migrate(*self.record.names))
        if isinstance(command, Rejected):
            _log.warning("migrate_command_ignored", worker=self.record.worker, detail=command.detail)
            return None
        if self._on_migrate is not None:
            source = command.source
            mine = is_for(self.record, command.model, source.pool, source.worker, source.incarnation)
            own_reply = await self._on_migrate(command) if mine else None
            return None if own_reply is None else encode(own_reply)
        reply = self._migrator.answer(command, (), 0) if self._driver is None else self._driver.answer(command)
        self._term_check.request()
        return None if reply is None else encode(reply)

    def _with_slots(self, samples: Sequence[WorkerSample]) -> Sequence[WorkerSample]:
        """Add the worker's free slots to the first rank, unless the engine gives them, or migrates nothing."""
        has_slots = any(one.migration_slots_in is not None or one.migration_slots_out is not None for one in samples)
        if has_slots or self._driver is None:
            return samples
        counts = [number for one in samples for number in (one.waiting_requests, one.running_requests)]
        known = [number for number in counts if number is not None]
        free = self._migrator.free_slots(sum(known) if len(known) == len(counts) else DRAIN_SLOTS_MAX)
        each = [free, *[FreeSlots(0, 0)] * (len(samples) - 1)]
        return [
            replace(one, migration_slots_in=slots.incoming, migration_slots_out=slots.outgoing)
            for one, slots in zip(samples, each, strict=False)
        ]

    async def _publish_migration(self, report: MigrationReport) -> None:
        source = report.source  # the worker may have moved to another pool since
        await publish_now(self._bus, self._subjects.migration(report.model, source.pool, source.worker), report)

    async def _report(self, samples: Sequence[WorkerSample]) -> bool:
        record = self.record
        report = self._incarnation_state.report(samples, time.time_ns() // 1_000_000)
        return await publish_now(self._bus, self._subjects.load(record.model, record.pool, record.worker), report)

    async def _report_periodically(self) -> None:
        while not await wait_at_most(self.drained, self._report_interval_s):
            await self.report_now()

    def _register(self, state: WorkerPhase) -> None:
        self.record = replace(self.record, state=state)
        self._registration.write(encode(self.record), replace_lost=state != "draining")

    async def _end_when_superseded(self) -> None:
        await self._registration.gone.wait()
        if self._registration.superseded and self.record.state != "draining":
            record = self.record
            text = f"worker {record.worker} of pool {record.pool} was started again, so incarnation"
            remedy = "Give each worker a name of its own."
            self._interrupt.interrupt(WorkerSuperseded(f"{text} {record.incarnation} ends. {remedy}"))

    async def _answer_drain(self, payload: bytes) -> bytes | None:
        if self._exited:
            return None
        command = decode_as(DrainCommand, payload, self._subjects.drain(*self.record.names))
        if isinstance(command, Rejected):
            _log.warning("drain_command_ignored", worker=self.record.worker, detail=command.detail)
            return None
        reply = self._incarnation_state.answer(command, drained=self.drained.is_set())
        self._term_check.request()
        if reply is None:
            return None
        if reply.accepted:
            self._migrator.drain()
        if reply.accepted and self._commands.empty():
            self._commands.put_nowait(command)
        return encode(reply)

    async def _run_drain(self) -> None:
        """Wait for a drain command; hide from routers, wait until the engine is empty, then report it."""
        emptied = False
        while not emptied:
            command = await self._commands.get()
            self.retire()
            if self._driver is not None:
                await self.report_now()  # slots have changed; the next report is 0.5 s away on average
            emptied = await self._empty_engine(command)
        await self._report_drained()

    async def _empty_engine(self, command: DrainCommand) -> bool:
        """Empty the engine, even past the deadline; return False if ``on_drain`` failed."""

        async def empty() -> None:
            # Called within the task: what the call itself raises, as with a wrong signature, fails the drain too.
            await self._on_drain(command)

        emptying = asyncio.create_task(empty(), name=f"on_drain of {command.worker}")
        try:
            done, _ = await asyncio.wait({emptying}, timeout=command.ttl_ms / 1_000)
            if not done:
                _log.warning("drain_overdue", worker=command.worker, ttl_ms=command.ttl_ms)
                await asyncio.wait({emptying})
        finally:
            emptying.cancel()
        # Not of this task, but of something that the engine awaited.
        error = asyncio.CancelledError() if emptying.cancelled() else emptying.exception()
        if error is not None:  # the engine's code: the next drain command tries again
            _log.error("drain_failed", worker=command.worker, exc_info=error)
        return error is None

    async def _report_drained(self) -> None:
        subject = self._subjects.drained(self.record.model, self.record.home, self.record.worker)
        delivered = False
        for repeat in range(DRAINED_REPEATS_MAX):
            delivered |= await publish_now(self._bus, subject, self._incarnation_state.drain_report())
            if (delivered or repeat >= DRAINED_UNDELIVERED_MAX) and not self.drained.is_set():
                await self.leave()
                self.drained.set()
            await asyncio.sleep(DRAINED_INTERVAL_MS / 1_000)

    async def leave(self) -> None:
        """Revoke the lease, within 3 s: the engine has gone."""
        self._register("draining")
        self._registration.withdraw()
        await wait_at_most(self._registration.gone, LEAVE_TIMEOUT_S)


def _checked(sampled: Samples) -> Sequence[WorkerSample]:
    """Return the samples of all ranks.

    Raises:
        TypeError: One of them is no sample.
    """
    samples = [sampled] if isinstance(sampled, WorkerSample) else list(sampled)
    for one in samples:
        found: object = one
        if not isinstance(found, WorkerSample):
            raise TypeError(f"sample returned {type(found).__name__}, not WorkerSample")
    return samples
