"""Migrations of a worker on a bus and a store in memory: callbacks, phases, deadlines, failures, slots."""

import msgspec
import pytest
from structlog.testing import capture_logs

from loadline.client.migratable_engine import MigrationRefused
from loadline.core.migration.requests import MigratableRequest
from loadline.core.vocabulary.samples import WorkerSample
from loadline.wire.codec import encode
from loadline.wire.messages import DrainCommand, DrainReply
from tests.support.migration_driver import SUBJECTS, driver_harness
from tests.support.virtual_time import run_virtual
from tests.waiting import until


def test_a_command_migrates_two_requests() -> None:
    async def scenario() -> None:
        async with driver_harness() as harness:
            reply = await harness.command()
            assert (reply.accepted, reply.requests, reply.tokens) == (True, 2, 310)
            await until(lambda: harness.phases() == ["admitted", "copying"] * 2, "copying")
            harness.engine.copied.set()
            await until(lambda: harness.engine.stopping == ["a", "b"], "handing over")
            harness.transport.refused_handovers.add("b")
            harness.engine.stopped.set()
            await until(lambda: "done" in harness.phases(), "over")
            last = harness.reports()[-1]
            assert (last.moved, last.failed, last.tokens, last.reason) == (1, 1, 105, "destination_refused")
            assert [(one.request_id, one.hop, one.migrations) for one in harness.engine.run_requests] == [("b", 1, 0)]
            assert harness.engine.discarded == ["a"]
            assert await harness.command() == reply
            await until(lambda: harness.phases().count("done") == 3, "said three times")
            assert harness.engine.copying == ["a", "b"], "a repeated command has no effect"

    run_virtual(scenario())


def test_last_reports_are_repeated_after_the_worker_has_moved() -> None:
    async def scenario() -> None:
        async with driver_harness() as harness:
            harness.engine.copied.set()
            harness.engine.stopped.set()
            await harness.command()
            await until(lambda: "done" in harness.phases(), "over")
            await harness.worker.move("q", "decode")
            await until(lambda: harness.phases().count("done") == 3, "said three times")

    run_virtual(scenario())


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MigrationRefused(detail="no link"), "failed"),
        (MigrationRefused("finished"), "finished"),
        (RuntimeError("a bug"), "failed"),
        (TimeoutError(), "failed"),
    ],
)
def test_an_exception_of_the_engine_fails_one_request_only(error: Exception, reason: str) -> None:
    async def scenario() -> None:
        async with driver_harness() as harness:
            harness.engine.copy_errors["b"] = error
            harness.engine.copied.set()
            harness.engine.stopped.set()
            await harness.command()
            await until(lambda: "done" in harness.phases(), "over")
            last = harness.reports()[-1]
            assert (last.moved, last.failed, last.reason) == (1, 1, reason)

    with capture_logs() as lines:
        run_virtual(scenario())
    assert len([line for line in lines if line["event"] == "migration_failed"]) == (
        not isinstance(error, MigrationRefused)
    )


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_copy_that_hangs_is_withdrawn_at_the_deadline(stubborn: bool) -> None:  # noqa: FBT001
    async def scenario() -> None:
        async with driver_harness() as harness:
            harness.engine.ignores_cancellation = stubborn
            await harness.command(ttl_ms=30)
            await until(lambda: harness.phases()[-1:] == ["aborted"], "over")
            assert sorted(harness.engine.withdrawn) == ["a", "b"]
            assert harness.engine.stopping == []
            last = harness.reports()[-1]
            assert (last.moved, last.failed, last.reason) == (0, 2, "deadline")
            assert (await harness.command(command_id="d")).requests == 2, "the requests can migrate again"

    run_virtual(scenario())


def test_an_unanswered_handover_continues_after_the_deadline() -> None:
    async def scenario() -> None:
        async with driver_harness() as harness:
            harness.engine.candidates.pop()
            harness.engine.copied.set()
            await harness.command(ttl_ms=1_000)
            await until(lambda: harness.engine.stopping, "handing over")
            harness.engine.candidates.append(MigratableRequest("z", 1, 1))
            harness.engine.copied.clear()
            await harness.command(command_id="later", ttl_ms=1_001)
            await until(lambda: "aborted" in harness.phases("later"), "a deadline after its own")
            assert "aborted" not in harness.phases()
            harness.engine.stopped.set()
            await until(lambda: "done" in harness.phases(), "over")

    run_virtual(scenario())


def test_a_worker_whose_engine_cannot_hand_over_refuses_and_publishes_no_slots() -> None:
    async def scenario() -> None:
        async with driver_harness(migrates=False) as harness:
            reply = await harness.command()
            assert (reply.accepted, reply.reason) == (False, "unsupported")
            assert await harness.next_slots() == [(None, None)]
            assert harness.transport.answer_room is None

    run_virtual(scenario())


def test_slots_are_published_with_every_sample() -> None:
    async def scenario() -> None:
        async with driver_harness() as harness:
            assert await harness.next_slots() == [(2, 3)]
            assert await harness.transport.room("x")
            await harness.command()
            assert await harness.next_slots() == [(1, 1)]
            assert not await harness.transport.room("x", ttl_ms=0)
            assert await harness.next_slots() == [(2, 1)]
            await harness.drain()
            assert await harness.next_slots() == [(0, 1)], "three requests, of which two are migrating"

    run_virtual(scenario())


def test_a_worker_publishes_its_slots_at_once_when_it_drains() -> None:
    async def scenario() -> None:
        async with driver_harness(report_interval_ms=3_600_000) as harness:
            assert await harness.next_slots() == [(2, 3)]
            await harness.command()
            await harness.drain()
            await until(lambda: harness.last_slots() == [(0, 1)], "reported")

    run_virtual(scenario())


def test_ranks_share_the_slots_of_their_worker() -> None:
    async def scenario() -> None:
        ranks = [WorkerSample(0, 0, rank=rank) for rank in range(2)]
        async with driver_harness(samples=ranks) as harness:
            assert await harness.next_slots() == [(2, 3), (0, 0)]
            await harness.drain()
            assert await harness.next_slots() == [(0, 64), (0, 0)], "its number of requests is unknown"
        async with driver_harness(samples=[]) as harness:
            assert await harness.worker.report_now()

    run_virtual(scenario())


def test_slots_reported_by_the_engine_are_not_changed() -> None:
    async def scenario() -> None:
        ranks = [WorkerSample(0, 0), WorkerSample(0, 0, rank=1, migration_slots_out=9)]
        async with driver_harness(samples=ranks) as harness:
            assert await harness.next_slots() == [(None, None), (None, 9)]

    run_virtual(scenario())


def test_requests_migrate_from_a_draining_worker_without_a_lease() -> None:
    async def scenario() -> None:
        async with driver_harness() as harness:
            await harness.worker.ready()
            await harness.drain()
            harness.engine.copied.set()
            harness.engine.stopped.set()
            assert (await harness.command()).accepted
            await until(lambda: "done" in harness.phases(), "moved")
            assert not harness.worker.drained.is_set()
            harness.empty.set()
            await harness.worker.drained.wait()

    run_virtual(scenario())


def test_an_agent_that_only_migrates_does_not_fence_drain_commands_of_another() -> None:
    async def scenario() -> None:
        async with driver_harness() as harness:
            assert (await harness.command(epoch=5)).accepted
            command = DrainCommand("d", "m", "p", "w", "decode", 1_000, 4, 60_000)
            reply = await harness.bus.request(SUBJECTS.drain("m", "p", "w"), encode(command), 5)
            assert msgspec.json.decode(reply, type=DrainReply).accepted
            assert (await harness.command(command_id="older", epoch=4)).reason == "stale_epoch"

    run_virtual(scenario())


def test_an_engine_whose_requests_are_unknown_migrates_nothing() -> None:
    async def scenario() -> None:
        async with driver_harness() as harness:
            harness.engine.unresponsive = True
            assert (await harness.command()).reason == "nothing_to_move"
            assert await harness.worker._answer_migrate(b"\x00") is None

    run_virtual(scenario())
