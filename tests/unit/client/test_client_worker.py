"""The worker client against a bus and a store in memory: states, drains and refusals."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import numpy as np
import pytest
from structlog.testing import capture_logs

from loadline.client.worker import Samples, WorkerClient
from loadline.core.vocabulary.events import LoadReported, WorkerDrained
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.core.vocabulary.scalars import Role
from loadline.ports import StoreChange, StoreEntry, Write
from loadline.wire.codec import Codec, encode
from loadline.wire.keys import Keys
from loadline.wire.messages import DrainCommand, DrainReply
from loadline.wire.subjects import Subjects
from tests.support.memory import MemoryBus, MemoryStore
from tests.waiting import until

SUBJECTS = Subjects("loadline")
CODEC = Codec(SUBJECTS, 262_144)
KEY = Keys("default").worker("m", "p", "w")
INCARNATION = 1_000
IDLE = WorkerSample(0, 0)


class WorkerClientHarness:
    """A worker, its surroundings, and an engine that empties when it is told to."""

    def __init__(self, role: Role, samples: Samples) -> None:
        self.bus = MemoryBus()
        self.store = MemoryStore()
        self.samples = samples
        self.drains: list[DrainCommand] = []
        self.empty = asyncio.Event()
        self.failing = False
        self.worker = WorkerClient(
            WorkerRecord("m", "p", "w", role, INCARNATION),
            bus=self.bus,
            store=self.store,
            sample=self.sample,
            on_drain=self.on_drain,
            report_interval_ms=5,
            lease_ttl_s=1,
        )

    def sample(self) -> Samples:
        if self.failing:
            raise RuntimeError("the engine does not answer")
        return self.samples

    async def on_drain(self, command: DrainCommand) -> None:
        self.drains.append(command)
        if self.failing:
            raise RuntimeError("the engine does not empty")
        await self.empty.wait()

    @property
    def state(self) -> str | None:
        held = self.held
        return msgspec.json.decode(held.value, type=WorkerRecord).state if held else None

    @property
    def held(self) -> StoreEntry | None:
        return self.store.server.keys.get(KEY)

    def lose_lease(self) -> int:
        """The lease of what is registered runs out; gives its id."""
        held = self.held
        assert held is not None
        self.store.server.revoke(held.lease_id)
        return held.lease_id

    def heard(self) -> list[LoadReported | WorkerDrained]:
        decoded = [CODEC.decode(subject, payload) for subject, payload in self.bus.published]
        return [event for event in decoded if isinstance(event, LoadReported | WorkerDrained)]

    async def command(
        self, drain_id: str = "d", *, epoch: int = 1, incarnation: int = INCARNATION, ttl_ms: int = 60_000
    ) -> DrainReply:
        command = DrainCommand(drain_id, "m", "p", "w", "decode", incarnation, epoch, ttl_ms)
        reply = await self.bus.request(SUBJECTS.drain("w"), encode(command), 5)
        return msgspec.json.decode(reply, type=DrainReply)


@asynccontextmanager
async def harness(role: Role = "decode", samples: Samples = IDLE) -> AsyncIterator[WorkerClientHarness]:
    made = WorkerClientHarness(role, samples)
    async with asyncio.timeout(60), made.worker:
        yield made
    assert made.state is None, "a worker that left is no longer registered"


def test_registers_starting_then_ready_and_reports_risen_numbers() -> None:
    async def scenario() -> None:
        async with harness() as made:
            await until(lambda: made.state == "starting", "registered")
            await made.worker.ready()
            await until(lambda: made.state == "ready", "ready")
            await until(lambda: len(made.heard()) > 3, "reports")
            reports = [event for event in made.heard() if isinstance(event, LoadReported)]
            numbers = [sample.sequence for report in reports for sample in report.samples]
            assert numbers == list(range(1, len(numbers) + 1))
            assert all(sample.timestamp_ms > 0 for report in reports for sample in report.samples)

    asyncio.run(scenario())


def test_many_ranks_are_split_into_frames() -> None:
    async def scenario() -> None:
        async with harness(samples=[WorkerSample(0, 7, rank=rank) for rank in range(600)]) as made:
            assert await made.worker.report_now()
            reports = [event for event in made.heard() if isinstance(event, LoadReported)][:3]
            assert [len(report.samples) for report in reports] == [256, 256, 88]
            assert [sample.rank for report in reports for sample in report.samples] == list(range(600))
            assert reports[0].samples[0].timestamp_ms == 7

    asyncio.run(scenario())


def test_an_engine_that_cannot_be_sampled_costs_reports_only() -> None:
    async def scenario() -> None:
        async with harness() as made:
            made.failing = True
            assert not await made.worker.report_now()
            made.failing = False
            assert await made.worker.report_now()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("sample", "detail"),
    [
        (WorkerSample(0, 0, decode_batch_requests=5.5), "$.samples[0].decode_batch_requests"),  # type: ignore[arg-type]
        (WorkerSample(0, 0, kv_usage_ratio=80.0), "$.samples[0].kv_usage_ratio"),
        (WorkerSample(0, 0, waiting_requests=np.int64(3)), "numpy.int64"),  # type: ignore[arg-type]
    ],
)
def test_a_sample_that_agents_would_refuse_is_not_sent_and_its_field_is_logged(
    sample: WorkerSample, detail: str
) -> None:
    async def scenario() -> None:
        async with harness(samples=sample) as made:
            assert not await made.worker.report_now()
            assert made.bus.published == []
            made.samples = IDLE
            assert await made.worker.report_now(), "the next one is"

    with capture_logs() as lines:
        asyncio.run(scenario())
    told = [line for line in lines if line["event"] == "message_invalid"]
    assert told
    assert all(detail in line["detail"] and line["log_level"] == "error" for line in told)


def test_decode_leaves_the_registry_at_once_and_reports_until_it_is_empty() -> None:
    async def scenario() -> None:
        async with harness("decode") as made:
            await made.worker.ready()
            await until(lambda: made.state == "ready", "ready")
            assert (await made.command()).accepted
            await until(lambda: made.state is None, "out of the routers' sight")
            assert not made.worker.drained.is_set()
            reported = len(made.heard())
            await until(lambda: len(made.heard()) > reported, "still reporting")
            assert not any(isinstance(event, WorkerDrained) for event in made.heard())
            made.empty.set()
            await made.worker.drained.wait()
            assert WorkerDrained("m", "p", "w", INCARNATION) in made.heard()
            await made.worker.ready()
            assert made.state is None

    asyncio.run(scenario())


@pytest.mark.parametrize("role", ["prefill", "aggregated"])
def test_others_register_as_draining_until_they_are_empty(role: Role) -> None:
    async def scenario() -> None:
        async with harness(role) as made:
            await made.worker.ready()
            await made.command()
            await until(lambda: made.state == "draining", "draining")
            await made.worker.ready()
            assert made.worker.record.state == "draining", "a drain is not taken back"
            made.empty.set()
            await made.worker.drained.wait()
            assert made.state is None

    asyncio.run(scenario())


def test_a_drain_is_begun_once_and_says_the_newest_command() -> None:
    async def scenario() -> None:
        async with harness() as made:
            replies = [await made.command("a"), await made.command("a"), await made.command("b", epoch=2)]
            assert [(reply.drain_id, reply.accepted) for reply in replies] == [("a", True), ("a", True), ("b", True)]
            made.empty.set()
            await made.worker.drained.wait()
            assert [command.drain_id for command in made.drains] == ["a"]
            assert (await made.command("b", epoch=2)).accepted
            late = await made.command("c", epoch=2)
            assert (late.accepted, late.detail) == (False, "drained already")

    asyncio.run(scenario())


def test_old_leaders_and_commands_for_an_earlier_life_are_refused() -> None:
    async def scenario() -> None:
        async with harness() as made:
            gone = await made.command(incarnation=INCARNATION - 1)
            assert (gone.accepted, gone.detail) == (False, f"gone already: this is incarnation {INCARNATION}")
            assert (await made.command("a", epoch=5)).accepted
            assert not (await made.command("b", epoch=4)).accepted
            assert len(made.drains) <= 1

    asyncio.run(scenario())


def test_what_concerns_another_worker_is_left_to_it() -> None:
    async def scenario() -> None:
        async with harness() as made:
            answer = made.worker._answer_drain
            for other in (
                DrainCommand("d", "other", "p", "w", "decode", INCARNATION, 1, 1),
                DrainCommand("d", "m", "other", "w", "decode", INCARNATION, 1, 1),
                DrainCommand("d", "m", "p", "w", "decode", INCARNATION + 1, 1, 1),
            ):
                assert await answer(encode(other)) is None
            assert await answer(b"\x00") is None
            assert made.drains == []

    asyncio.run(scenario())


def test_an_overdue_drain_is_not_reported_as_done() -> None:
    async def scenario() -> None:
        async with harness() as made:
            await made.command(ttl_ms=1)
            reported = len(made.heard())
            await until(lambda: len(made.heard()) > reported + 20, "20 intervals past the deadline")
            assert not any(isinstance(event, WorkerDrained) for event in made.heard())
            made.empty.set()
            await made.worker.drained.wait()

    asyncio.run(scenario())


def test_a_drain_that_failed_is_tried_again_by_the_next_command() -> None:
    async def scenario() -> None:
        async with harness() as made:
            made.failing = True
            await made.command()
            await until(lambda: len(made.drains) == 1, "first try")
            made.failing = False
            made.empty.set()
            assert not made.worker.drained.is_set()
            assert (await made.command()).accepted
            await made.worker.drained.wait()
            assert len(made.drains) == 2

    asyncio.run(scenario())


def test_who_leaves_says_so_before_its_key_goes() -> None:
    states: list[str] = []

    def written(changes: list[StoreChange]) -> None:
        records = [msgspec.json.decode(one.entry.value, type=WorkerRecord) for one in changes if one.entry is not None]
        states.extend(record.state for record in records)

    async def scenario() -> None:
        async with harness() as made:
            made.store.server.on_write = written
            await made.worker.ready()
            await until(lambda: made.state == "ready", "ready")

    asyncio.run(scenario())
    assert states[-2:] == ["ready", "draining"]


def test_a_lost_lease_is_replaced_unless_the_worker_drains() -> None:
    async def scenario() -> None:
        async with harness("prefill") as made:
            await until(lambda: made.state == "starting", "registered")
            made.lose_lease()
            await until(lambda: made.state == "starting", "registered again")
            await made.command()
            await until(lambda: made.state == "draining", "draining")
            made.lose_lease()
            await until(made.worker._registration.gone.is_set, "the loss was noticed")
            assert made.held is None
            assert not made.worker.drained.is_set()
            made.empty.set()
            await made.worker.drained.wait()
            assert made.held is None

    asyncio.run(scenario())


def registered(made: WorkerClientHarness, value: bytes) -> StoreEntry:
    """Another worker of the same name registers, as if this one had been frozen for a while."""
    made.store.server.commit([], [Write(KEY, value, made.store.server.grant(10))])
    assert made.held is not None
    return made.held


@pytest.mark.parametrize("lease_lost", [True, False])
def test_a_worker_that_was_replaced_leaves_the_key_to_its_replacement(lease_lost: bool) -> None:  # noqa: FBT001
    async def scenario() -> None:
        made = WorkerClientHarness("decode", IDLE)
        async with asyncio.timeout(60), made.worker:
            await until(lambda: made.state == "starting")
            assert made.held is not None
            own = made.lose_lease() if lease_lost else made.held.lease_id
            later = registered(made, encode(WorkerRecord("m", "p", "w", "decode", INCARNATION + 1)))
            await made.worker.ready()
            await made.worker._registration.gone.wait()
            assert made.held == later
            await made.worker.ready()
        assert made.held == later
        assert made.store.server.keep_alive(own) == 0, "its own lease is given back"

    asyncio.run(scenario())


@pytest.mark.parametrize("value", [encode(WorkerRecord("m", "p", "w", "decode", INCARNATION - 1)), b"rubbish"])
def test_what_an_earlier_life_left_behind_is_replaced(value: bytes) -> None:
    async def scenario() -> None:
        made = WorkerClientHarness("decode", IDLE)
        before = registered(made, value)
        async with asyncio.timeout(60), made.worker:
            await until(lambda: made.held != before)
            assert made.state == "starting"

    asyncio.run(scenario())


def test_the_store_may_be_away_when_the_worker_starts() -> None:
    async def scenario() -> None:
        made = WorkerClientHarness("decode", IDLE)
        made.store.set_partitioned(partitioned=True)
        async with asyncio.timeout(60), made.worker:
            await made.worker.ready()
            assert made.heard()
            made.store.set_partitioned(partitioned=False)
            await until(lambda: made.state == "ready", "registered")

    asyncio.run(scenario())


def test_a_worker_drains_even_while_the_store_is_away() -> None:
    async def scenario() -> None:
        made = WorkerClientHarness("decode", IDLE)
        async with asyncio.timeout(60), made.worker:
            await until(lambda: made.state == "starting", "registered")
            made.store.set_partitioned(partitioned=True)
            made.empty.set()
            assert (await made.command()).accepted
            await made.worker.drained.wait()
            await until(made.worker._registration.gone.is_set, "the lease has run out by itself")

    asyncio.run(scenario())
