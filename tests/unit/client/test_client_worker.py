"""Worker client on a bus and a store in memory: states, drains and refusals."""

import asyncio

import msgspec
import numpy as np
import pytest
from structlog.testing import capture_logs

from loadline.core.vocabulary.events import LoadReported, WorkerDrained
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.core.vocabulary.scalars import Role
from loadline.ports import StoreChange
from loadline.wire.codec import encode
from loadline.wire.messages import DrainCommand
from tests.support.client_worker import IDLE, INCARNATION, WorkerClientHarness, harness
from tests.waiting import until


def test_a_worker_registers_as_starting_then_ready_and_its_sequences_rise() -> None:
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


def test_an_engine_that_cannot_be_sampled_sends_no_reports_and_stays_registered() -> None:
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
def test_an_invalid_sample_is_not_sent_and_its_field_is_logged(sample: WorkerSample, detail: str) -> None:
    async def scenario() -> None:
        async with harness(samples=sample) as made:
            assert not await made.worker.report_now()
            assert made.bus.published == []
            made.samples = IDLE
            assert await made.worker.report_now(), "the next sample is sent"

    with capture_logs() as lines:
        asyncio.run(scenario())
    told = [line for line in lines if line["event"] == "message_invalid"]
    assert told
    assert all(detail in line["detail"] and line["log_level"] == "error" for line in told)


def test_a_draining_decode_worker_deregisters_at_once_and_reports_until_it_is_empty() -> None:
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
def test_other_workers_stay_registered_as_draining_until_they_are_empty(role: Role) -> None:
    async def scenario() -> None:
        async with harness(role) as made:
            await made.worker.ready()
            await made.command()
            await until(lambda: made.state == "draining", "draining")
            await made.worker.ready()
            assert made.worker.record.state == "draining", "a drain cannot be revoked"
            made.empty.set()
            await made.worker.drained.wait()
            assert made.state is None

    asyncio.run(scenario())


def test_a_repeated_drain_starts_once_and_reports_the_newest_command() -> None:
    async def scenario() -> None:
        async with harness() as made:
            replies = [await made.command("a"), await made.command("a"), await made.command("b", epoch=2)]
            assert [(reply.drain_id, reply.accepted) for reply in replies] == [("a", True), ("a", True), ("b", True)]
            made.empty.set()
            await made.worker.drained.wait()
            assert [command.drain_id for command in made.drains] == ["a"]
            assert (await made.command("b", epoch=2)).accepted
            late = await made.command("c", epoch=2)
            assert (late.accepted, late.detail) == (False, "already drained")

    asyncio.run(scenario())


def test_commands_of_old_leaders_and_for_earlier_incarnations_are_refused() -> None:
    async def scenario() -> None:
        async with harness() as made:
            gone = await made.command(incarnation=INCARNATION - 1)
            assert (gone.accepted, gone.detail) == (False, f"already gone: this is incarnation {INCARNATION}")
            assert (await made.command("a", epoch=5)).accepted
            assert not (await made.command("b", epoch=4)).accepted
            assert len(made.drains) <= 1

    asyncio.run(scenario())


def test_commands_for_other_workers_are_ignored() -> None:
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


def test_a_failed_drain_is_retried_at_the_next_command() -> None:
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


def test_a_leaving_worker_reports_drained_before_it_deregisters() -> None:
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


def test_a_worker_starts_while_the_store_is_unreachable() -> None:
    async def scenario() -> None:
        made = WorkerClientHarness("decode", IDLE)
        made.store.set_partitioned(partitioned=True)
        async with asyncio.timeout(60), made.worker:
            await made.worker.ready()
            assert made.heard()
            made.store.set_partitioned(partitioned=False)
            await until(lambda: made.state == "ready", "registered")

    asyncio.run(scenario())


def test_a_worker_drains_while_the_store_is_unreachable() -> None:
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
