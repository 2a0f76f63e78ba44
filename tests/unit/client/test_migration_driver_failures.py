"""Migrations of a worker that leaves, gets invalid answers or receives requests."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from loadline.client.handover import destination
from loadline.client.handover.bus import HandoverBus
from loadline.client.handover.messages import RoomReply, RoomRequest
from loadline.client.handover.source import HandoverSource, StoppedRequest
from loadline.client.migratable_engine import MigrationRefused
from loadline.core.migration.requests import MigratableRequest
from loadline.wire.codec import encode
from loadline.wire.messages import MigrateCommand
from tests.support.memory import MemoryBus
from tests.support.migration_driver import COMMAND, DriverHarness, driver_harness
from tests.support.virtual_time import run_virtual
from tests.waiting import until


def test_a_leaving_worker_ends_its_migrations() -> None:
    async def scenario() -> None:
        async with driver_harness() as harness:
            await harness.command()
            await until(lambda: len(harness.engine.copying) == 2, "copying")
        assert len(harness.engine.withdrawn) == 2
        assert await harness.worker._answer_migrate(encode(replace(COMMAND, command_id="d"))) is None
        assert harness.phases()[-1] == "copying", "the report omits unknown requests"

    run_virtual(scenario())


def test_invalid_candidates_are_ignored_and_logged() -> None:
    async def scenario() -> None:
        async with driver_harness() as harness:
            invalid: Any = [
                MigratableRequest("numpy", np.int64(100), np.int64(5)),  # type: ignore[arg-type]
                MigratableRequest("negative", -4, 5),
                MigratableRequest("none", None, 5),  # type: ignore[arg-type]
                {"request_id": "a dict"},
                MigratableRequest("numpy", 1, 1),
            ]
            harness.engine.candidates = invalid
            harness.engine.held_requests.assign("numpy", 0)
            with capture_logs() as logs:
                reply = await harness.command()
            assert (reply.accepted, reply.requests, reply.tokens) == (True, 1, 105)
            assert [log["request"][:12] for log in logs if log["event"] == "request_ignored"] == [
                "'negative'",
                "MigratableRe",
                "{'request_id",
                "'numpy'",
            ]
            harness.engine.copied.set()
            harness.engine.stopped.set()
            await until(lambda: harness.phases()[-1:] == ["done"], "moved")

    run_virtual(scenario())


def test_numbers_of_numpy_and_huge_ones_are_sent() -> None:
    async def scenario() -> None:
        async with driver_harness() as harness:
            numbers: Any = [
                MigratableRequest("a", 100, 5, hops=np.int64(2), remaining_tokens=np.int64(50)),  # type: ignore[arg-type]
                MigratableRequest("b", 100, 5, remaining_tokens=2**70),
                MigratableRequest("z", float("inf"), 5),  # type: ignore[arg-type]
            ]
            harness.engine.candidates = numbers
            harness.engine.copied.set()
            harness.engine.stopped.set()
            assert (await harness.command(hops_max=9)).requests == 2
            await until(lambda: harness.phases()[-1:] == ["done"], "moved")
            assert harness.reports()[-1].moved == 2
            rooms = [encode(one) for one in harness.transport.room_requests]
            assert [msgspec.json.decode(one)["kv_tokens_max"] for one in rooms] == [10_000_105, 155]
            handed = [encode(one) for one in harness.transport.handovers]
            assert sorted(msgspec.json.decode(one)["request"]["migrations"] for one in handed) == [1, 3]

    with capture_logs() as lines:
        run_virtual(scenario())
    ignored = [line["request"][:33] for line in lines if line["event"] == "request_ignored"]
    assert ignored == ["MigratableRequest(request_id='z',"]


@pytest.mark.parametrize("refused", [MigrationRefused("my own reason"), MigrationRefused("failed", None)])  # type: ignore[arg-type]
def test_unknown_reasons_are_reported_as_details(refused: MigrationRefused) -> None:
    async def scenario() -> None:
        async with driver_harness() as harness:
            harness.engine.copy_errors = {"a": refused, "b": refused}
            await harness.command()
            await until(lambda: harness.phases()[-1:] == ["aborted"], "aborted")
            assert harness.reports()[-1].reason == "failed"

    run_virtual(scenario())


@pytest.mark.parametrize("wrong", [lambda _request_id: None, lambda _request_id, _command: None])
def test_a_copy_that_cannot_be_awaited_fails_and_deadlines_go_on(
    wrong: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with driver_harness() as harness:
            with monkeypatch.context() as patch:
                patch.setattr(harness.engine, "copy", wrong)
                await harness.command(ttl_ms=30)
                await until(lambda: harness.phases()[-1:] == ["aborted"], "aborted")
                assert harness.reports()[-1].reason == "failed"
            await harness.command(command_id="d", ttl_ms=30)
            await until(lambda: harness.phases("d")[-1:] == ["aborted"], "the clock runs")
            assert harness.reports("d")[-1].reason == "deadline"

    with capture_logs() as lines:
        run_virtual(scenario())
    assert {line["event"] for line in lines} == {"registered", "migration_failed"}


@pytest.mark.parametrize(
    ("stopped", "problem"),
    [
        ((b"state",), "stop returned tuple"),
        (StoppedRequest("", b""), "the frontend is no name"),
        (StoppedRequest(5, b""), "the frontend is no name: 5"),  # type: ignore[arg-type]
        (StoppedRequest("f", {"tokens": []}), "the state is dict"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_result_of_stop_fails_and_the_request_stays(
    stopped: object, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async def stop(request_id: str, command: MigrateCommand) -> Any:
            return stopped if request_id == "a" else await stop_well(request_id, command)

        async with driver_harness() as harness:
            stop_well = harness.engine.stop
            monkeypatch.setattr(harness.engine, "stop", stop)
            harness.engine.copied.set()
            harness.engine.stopped.set()
            await harness.command()
            await until(lambda: harness.phases()[-1:] == ["done"], "over")
            last = harness.reports()[-1]
            assert (last.moved, last.failed, last.reason, problem in last.detail) == (1, 1, "failed", True)
            assert (harness.engine.held_requests.hop("a"), harness.transport.claims) == (0, [])

    with capture_logs() as lines:
        run_virtual(scenario())
    assert [line["request"] for line in lines if line["event"] == "migration_failed"] == ["a"]


async def cancelled(*_: object) -> Any:
    """Await a task that somebody has cancelled."""
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task


def test_a_stop_that_is_cancelled_fails_and_the_request_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with driver_harness() as harness:
            monkeypatch.setattr(harness.engine, "stop", cancelled)
            harness.engine.copied.set()
            await harness.command()
            await until(lambda: harness.phases()[-1:] == ["aborted"], "over")
            last = harness.reports()[-1]
            assert (last.failed, last.reason, last.detail) == (2, "failed", "its stop was cancelled")
            assert harness.engine.held_requests.hop("a") == 0

    run_virtual(scenario())


def test_a_cancelled_call_of_the_transport_counts_as_a_missing_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with driver_harness() as harness:
            monkeypatch.setattr(harness.transport, "hand_over", cancelled)
            harness.engine.candidates.pop()
            harness.engine.copied.set()
            harness.engine.stopped.set()
            await harness.command()
            await until(lambda: harness.phases()[-1:] == ["aborted"], "over")
            assert [(one.request_id, one.hop) for one in harness.transport.claims] == [("a", 1)]
            assert [one.hop for one in harness.engine.run_requests] == [1], "it runs here again"

    with capture_logs() as lines:
        run_virtual(scenario())
    assert "message_failed" in {line["event"] for line in lines}


async def not_reachable(*_: object) -> Any:
    """Fail as a transport whose server is away."""
    raise OSError("not reachable")


def test_a_start_that_failed_leaves_nothing_and_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        harness = DriverHarness(migrates=True)
        for failing in [(harness.transport, "serve_worker"), (harness.worker, "_answer_commands")]:
            with monkeypatch.context() as patched:
                patched.setattr(*failing, not_reachable)
                with pytest.raises(OSError, match="not reachable"):
                    await harness.worker.__aenter__()
            assert [task.get_name() for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []
        async with harness.worker:
            assert (await harness.command()).accepted
            await until(lambda: len(harness.engine.copying) == 2, "copying")

    run_virtual(scenario())


def test_a_worker_whose_start_is_cancelled_grants_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        bus, asked = MemoryBus(), list[RoomRequest]()
        answer = bus.answer

        async def answer_rooms_only(subject: str, handler: Any, **options: Any) -> Any:
            return await (cancelled() if ".handover." in subject else answer(subject, handler, **options))

        async def grant(message: RoomRequest) -> RoomReply:
            asked.append(message)
            return RoomReply(granted=True)

        monkeypatch.setattr(bus, "answer", answer_rooms_only)
        handovers = HandoverBus(bus, "handovers")
        with pytest.raises(asyncio.CancelledError):
            await handovers.serve_worker("w", grant, cancelled)
        assert await handovers.ask_room("w", RoomRequest("a", 1, 10, 1_000)) is None
        assert asked == []

    run_virtual(scenario())


def test_a_crash_of_the_driver_is_logged(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(HandoverSource, "on_room_reply", crash)

    async def scenario() -> None:
        async with driver_harness() as harness:
            await harness.command()
            await until(lambda: len([line for line in lines if line["event"] == "task_crashed"]) == 2)

    with capture_logs() as lines:
        run_virtual(scenario())


def test_an_unanswered_handover_is_claimed_until_the_frontend_answers() -> None:
    async def scenario() -> None:
        async with driver_harness() as harness:
            harness.transport.silent = ["handover", "claim"]
            harness.engine.candidates.pop()
            harness.engine.copied.set()
            harness.engine.stopped.set()
            await harness.command()
            await until(lambda: harness.phases()[-1:] == ["aborted"], "over")
            assert [(one.request_id, one.hop) for one in harness.transport.claims] == [("a", 1)] * 2
            assert [(one.hop, one.migrations, one.state) for one in harness.engine.run_requests] == [(1, 0, b"a")]
            assert harness.reports()[-1].reason == "destination_lost"
            assert [one.ttl_ms for one in harness.transport.room_requests] == [60_000, 0], (
                "the room at the destination is released"
            )

    run_virtual(scenario())


def test_an_exception_of_the_transport_counts_as_a_missing_answer() -> None:
    async def scenario() -> None:
        async with driver_harness() as harness:
            harness.transport.fails = True
            await harness.command()
            await until(lambda: harness.phases()[-1:] == ["aborted"], "over")
            assert harness.reports()[-1].reason == "destination_lost"

    with capture_logs() as lines:
        run_virtual(scenario())
    assert {line["event"] for line in lines} == {"registered", "message_failed"}


def test_a_received_request_runs_after_its_claim_is_granted() -> None:
    async def scenario() -> None:
        async with driver_harness() as harness:
            harness.transport.silent = ["claim"]
            assert await harness.transport.room("x")
            assert harness.worker.expected_requests == 1
            answers = await asyncio.gather(harness.transport.handover("x"), harness.transport.handover("x"))
            assert all(answers)
            assert len(harness.transport.claims) == 2, "the first claim was not answered"
            assert [(one.request_id, one.hop) for one in harness.engine.run_requests] == [("x", 1)]
            assert harness.engine.held_requests.hop("x") == 1
            assert harness.worker.expected_requests == 0
            assert await harness.transport.handover("x"), "the report is repeated"
            harness.transport.granted = False
            assert not await harness.transport.handover("y")
            assert harness.engine.discarded == ["x", "y", "y"]

    run_virtual(scenario())


def test_a_leaving_worker_leaves_no_handover_waiting() -> None:
    async def scenario() -> None:
        async with driver_harness() as harness:
            harness.transport.silent = ["claim"] * 1_000
            pending = [asyncio.create_task(harness.transport.handover("x")) for _ in range(2)]
            await until(lambda: harness.transport.claims, "claimed")
        assert await asyncio.gather(*pending) == [None, None]

    run_virtual(scenario())


def test_room_is_granted_only_within_slots_and_cache_that_are_not_reserved() -> None:
    async def scenario() -> None:
        async with driver_harness() as harness:
            assert await harness.transport.room("x", 600)
            assert not await harness.transport.room("y", 600)
            assert await harness.transport.room("x", 900), "its own reservation does not count"
            assert await harness.transport.room("x", 10, incarnation=999) is None, (
                "another incarnation of the destination answers"
            )
            assert await harness.transport.handover("x", incarnation=999) is None
            harness.engine.unresponsive = True
            assert not await harness.transport.room("z", 1)

    run_virtual(scenario())


def test_unused_room_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(destination, "_GRACE_MS", 10)

    async def scenario() -> None:
        async with driver_harness() as harness:
            assert await harness.transport.room("x", ttl_ms=10)
            await until(lambda: harness.worker.expected_requests == 0, "it is free")

    run_virtual(scenario())


def test_a_request_that_the_engine_cannot_run_is_returned_to_its_frontend() -> None:
    async def scenario() -> None:
        async with driver_harness() as harness:
            assert await harness.transport.handover("x", state=b"broken")
            assert harness.engine.held_requests.hop("x") is None

    with capture_logs() as lines:
        run_virtual(scenario())
    assert [line["request"] for line in lines if line["event"] == "engine_failed"] == ["x"]
