"""Worker client on a bus and a store in memory: states, drains and refusals."""

import asyncio
from typing import Any

import msgspec
import numpy as np
import pytest
from structlog.testing import capture_logs

from loadline.client.worker import WorkerClient
from loadline.core.vocabulary.events import LoadReported, WorkerDrained
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.core.vocabulary.scalars import Role
from loadline.errors import ConfigError
from loadline.ports import StoreChange
from loadline.wire.codec import encode
from loadline.wire.messages import DrainCommand
from tests.support.client_worker import IDLE, INCARNATION, WorkerClientHarness, harness
from tests.waiting import until


def test_a_worker_registers_as_starting_then_ready_and_its_sequences_rise() -> None:
    async def scenario() -> None:
        async with harness() as client:
            await until(lambda: client.state == "starting", "registered")
            await client.worker.ready()
            await until(lambda: client.state == "ready", "ready")
            await until(lambda: len(client.received()) > 3, "reports")
            reports = [event for event in client.received() if isinstance(event, LoadReported)]
            numbers = [sample.sequence for report in reports for sample in report.samples]
            assert numbers == list(range(1, len(numbers) + 1))
            assert all(sample.timestamp_ms > 0 for report in reports for sample in report.samples)

    asyncio.run(scenario())


def test_a_worker_that_has_left_answers_no_commands_on_a_bus_of_its_caller() -> None:
    async def scenario() -> None:
        async with harness() as client:
            late = encode(DrainCommand("d", "m", "p", "w", "decode", INCARNATION, 1, 60_000))
        assert await client.worker._answer_drain(late) is None
        assert client.drains == []

    asyncio.run(scenario())


def test_many_ranks_are_split_into_frames() -> None:
    async def scenario() -> None:
        async with harness(samples=[WorkerSample(0, 7, rank=rank) for rank in range(600)]) as client:
            assert await client.worker.report_now()
            reports = [event for event in client.received() if isinstance(event, LoadReported)][:3]
            assert [len(report.samples) for report in reports] == [256, 256, 88]
            assert [sample.rank for report in reports for sample in report.samples] == list(range(600))
            assert reports[0].samples[0].timestamp_ms == 7

    asyncio.run(scenario())


def test_an_engine_that_cannot_be_sampled_sends_no_reports_and_stays_registered() -> None:
    async def scenario() -> None:
        async with harness() as client:
            client.failing = True
            assert not await client.worker.report_now()
            client.failing = False
            assert await client.worker.report_now()

    asyncio.run(scenario())


@pytest.mark.parametrize("wrong", [None, 5, [IDLE, None], {"rank": IDLE}])
def test_a_wrong_value_of_sample_costs_its_report_only(wrong: Any) -> None:
    async def scenario() -> None:
        async with harness(samples=wrong) as client:
            assert not await client.worker.report_now()
            await until(lambda: [line["event"] for line in lines].count("sampling_failed") > 1, "tried at intervals")
            assert client.received() == []
            client.samples = IDLE
            await until(client.received, "reports go on")

    with capture_logs() as lines:
        asyncio.run(scenario())
    assert {line["event"] for line in lines} == {"registered", "sampling_failed"}


@pytest.mark.parametrize(
    ("sample", "detail"),
    [
        (WorkerSample(0, 0, decode_batch_requests=5.5), "$.samples[0].decode_batch_requests"),  # type: ignore[arg-type]
        (WorkerSample(0, 0, kv_usage_ratio=80.0), "$.samples[0].kv_usage_ratio"),
        (WorkerSample(0, 0, waiting_requests=np.int64(3)), "numpy.int64"),  # type: ignore[arg-type]
        (WorkerSample(0, 0, waiting_requests=np.int64(3)), "$.samples[0].waiting_requests"),  # type: ignore[arg-type]
        (WorkerSample(0, 0, kv_usage_ratio=np.float64(0.5)), "$.samples[0].kv_usage_ratio"),
        (WorkerSample(0, 0, running_requests=10**30), "$.samples[0].running_requests"),
    ],
)
def test_an_invalid_sample_is_not_sent_and_its_field_is_logged(sample: WorkerSample, detail: str) -> None:
    async def scenario() -> None:
        async with harness(samples=sample) as client:
            assert not await client.worker.report_now()
            assert client.bus.published == []
            client.samples = IDLE
            assert await client.worker.report_now(), "the next sample is sent"

    with capture_logs() as lines:
        asyncio.run(scenario())
    logged = [line for line in lines if line["event"] == "message_invalid"]
    assert logged
    assert all(detail in line["detail"] and line["log_level"] == "error" for line in logged)


def test_a_draining_decode_worker_deregisters_at_once_and_reports_until_it_is_empty() -> None:
    async def scenario() -> None:
        async with harness("decode") as client:
            await client.worker.ready()
            await until(lambda: client.state == "ready", "ready")
            assert (await client.command()).accepted
            await until(lambda: client.state is None, "out of the routers' sight")
            assert not client.worker.drained.is_set()
            reported = len(client.received())
            await until(lambda: len(client.received()) > reported, "still reporting")
            assert not any(isinstance(event, WorkerDrained) for event in client.received())
            client.empty.set()
            await client.worker.drained.wait()
            assert WorkerDrained("m", "p", "w", INCARNATION) in client.received()
            await client.worker.ready()
            assert client.state is None

    asyncio.run(scenario())


@pytest.mark.parametrize("role", ["prefill", "aggregated"])
def test_other_workers_stay_registered_as_draining_until_they_are_empty(role: Role) -> None:
    async def scenario() -> None:
        async with harness(role) as client:
            await client.worker.ready()
            await client.command()
            await until(lambda: client.state == "draining", "draining")
            await client.worker.ready()
            assert client.worker.record.state == "draining", "a drain cannot be revoked"
            client.empty.set()
            await client.worker.drained.wait()
            assert client.state is None

    asyncio.run(scenario())


def test_a_repeated_drain_starts_once_and_reports_the_newest_command() -> None:
    async def scenario() -> None:
        async with harness() as client:
            replies = [await client.command("a"), await client.command("a"), await client.command("b", epoch=2)]
            assert [(reply.drain_id, reply.accepted) for reply in replies] == [("a", True), ("a", True), ("b", True)]
            client.empty.set()
            await client.worker.drained.wait()
            assert [command.drain_id for command in client.drains] == ["a"]
            assert (await client.command("b", epoch=2)).accepted
            late = await client.command("c", epoch=2)
            assert (late.accepted, late.detail) == (False, "already drained")

    asyncio.run(scenario())


def test_commands_of_old_leaders_and_for_earlier_incarnations_are_refused() -> None:
    async def scenario() -> None:
        async with harness() as client:
            refused = await client.command(incarnation=INCARNATION - 1)
            assert (refused.accepted, refused.detail) == (False, f"already gone: this is incarnation {INCARNATION}")
            assert (await client.command("a", epoch=5)).accepted
            assert not (await client.command("b", epoch=4)).accepted
            assert len(client.drains) <= 1

    asyncio.run(scenario())


def test_commands_for_other_workers_are_ignored() -> None:
    async def scenario() -> None:
        async with harness() as client:
            answer = client.worker._answer_drain
            for other in (
                DrainCommand("d", "other", "p", "w", "decode", INCARNATION, 1, 1),
                DrainCommand("d", "m", "other", "w", "decode", INCARNATION, 1, 1),
                DrainCommand("d", "m", "p", "w", "decode", INCARNATION + 1, 1, 1),
            ):
                assert await answer(encode(other)) is None
            assert await answer(b"\x00") is None
            assert client.drains == []

    asyncio.run(scenario())


def test_an_overdue_drain_is_not_reported_as_done() -> None:
    async def scenario() -> None:
        async with harness() as client:
            await client.command(ttl_ms=1)
            reported = len(client.received())
            await until(lambda: len(client.received()) > reported + 20, "20 intervals past the deadline")
            assert not any(isinstance(event, WorkerDrained) for event in client.received())
            client.empty.set()
            await client.worker.drained.wait()

    asyncio.run(scenario())


def test_a_failed_drain_is_retried_at_the_next_command() -> None:
    async def scenario() -> None:
        async with harness() as client:
            client.failing = True
            await client.command()
            await until(lambda: len(client.drains) == 1, "first try")
            client.failing = False
            client.empty.set()
            assert not client.worker.drained.is_set()
            assert (await client.command()).accepted
            await client.worker.drained.wait()
            assert len(client.drains) == 2

    asyncio.run(scenario())


async def cancelled(_command: DrainCommand) -> None:
    """Await a task of the engine that somebody has cancelled."""
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task


async def without_command() -> None:
    """Lack the parameter."""


@pytest.mark.parametrize("on_drain", [cancelled, without_command, lambda _command: None])
def test_a_handler_of_drains_that_is_cancelled_or_none_is_called_again_at_the_next_command(on_drain: Any) -> None:
    async def scenario() -> None:
        async with harness() as client:
            right, client.worker._on_drain = client.worker._on_drain, on_drain
            assert (await client.command()).accepted
            await until(lambda: any(line["event"] == "drain_failed" for line in lines), "the failure is logged")
            client.worker._on_drain = right
            client.empty.set()
            assert (await client.command()).accepted
            async with asyncio.timeout(10):
                await client.worker.drained.wait()

    with capture_logs() as lines:
        asyncio.run(scenario())


def test_a_client_that_has_ended_is_not_started_again() -> None:
    """It would answer no command."""

    async def scenario() -> None:
        async with harness() as client:
            pass
        with pytest.raises(RuntimeError, match=r"worker w, incarnation 1000, was started before.*Make another"):
            async with client.worker:
                pass

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("record", "place"),
    [
        (WorkerRecord("m", "p", "w", "decoder", 1), r"\$.role"),  # type: ignore[arg-type]
        (WorkerRecord("m", "p", "", "decode", 1), r"\$.worker"),
        (WorkerRecord("m", "p", "w", "decode", 1.5), r"\$.incarnation"),  # type: ignore[arg-type]
        (WorkerRecord("m", "p", "w", "decode", 1, kv_blocks_total=np.int64(9)), r"\$.kv_blocks_total"),  # type: ignore[arg-type]
        (WorkerRecord("m", "p", "w\ud800", "decode", 1), "surrogates"),
    ],
)
def test_a_record_that_agents_would_refuse_is_an_error_at_the_start(record: WorkerRecord, place: str) -> None:
    async def on_drain(_command: DrainCommand) -> None:
        """Do nothing."""

    with pytest.raises(ConfigError, match=f"record of worker 'w?.*{place}.*Correct the WorkerRecord"):
        WorkerClient(record, sample=lambda: IDLE, on_drain=on_drain)


def test_a_leaving_worker_reports_drained_before_it_deregisters() -> None:
    states: list[str] = []

    def written(changes: list[StoreChange]) -> None:
        records = [msgspec.json.decode(one.entry.value, type=WorkerRecord) for one in changes if one.entry is not None]
        states.extend(record.state for record in records)

    async def scenario() -> None:
        async with harness() as client:
            client.store.server.on_write = written
            await client.worker.ready()
            await until(lambda: client.state == "ready", "ready")

    asyncio.run(scenario())
    assert states[-2:] == ["ready", "draining"]


def test_a_lost_lease_is_replaced_unless_the_worker_drains() -> None:
    async def scenario() -> None:
        async with harness("prefill") as client:
            await until(lambda: client.state == "starting", "registered")
            client.lose_lease()
            await until(lambda: client.state == "starting", "registered again")
            await client.command()
            await until(lambda: client.state == "draining", "draining")
            client.lose_lease()
            await until(client.worker._registration.gone.is_set, "the loss was noticed")
            assert client.held is None
            assert not client.worker.drained.is_set()
            client.empty.set()
            await client.worker.drained.wait()
            assert client.held is None

    asyncio.run(scenario())


def test_a_worker_starts_while_the_store_is_unreachable() -> None:
    async def scenario() -> None:
        client = WorkerClientHarness("decode", IDLE)
        client.store.set_partitioned(partitioned=True)
        async with asyncio.timeout(60), client.worker:
            await client.worker.ready()
            assert client.received()
            client.store.set_partitioned(partitioned=False)
            await until(lambda: client.state == "ready", "registered")

    asyncio.run(scenario())


def test_a_worker_drains_while_the_store_is_unreachable() -> None:
    async def scenario() -> None:
        client = WorkerClientHarness("decode", IDLE)
        async with asyncio.timeout(60), client.worker:
            await until(lambda: client.state == "starting", "registered")
            client.store.set_partitioned(partitioned=True)
            client.empty.set()
            assert (await client.command()).accepted
            await client.worker.drained.wait()
            await until(client.worker._registration.gone.is_set, "the lease has run out by itself")

    asyncio.run(scenario())
