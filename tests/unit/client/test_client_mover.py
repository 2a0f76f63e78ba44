"""A worker that moves requests, against a bus and a store in memory: callbacks, phases, deadlines, failures, slots."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from loadline.client.mover import MoveRefused
from loadline.client.worker import Samples, WorkerClient
from loadline.core.migration.requests import MigratableRequest
from loadline.core.vocabulary.events import LoadReported, MigrationReported
from loadline.core.vocabulary.migrations import MigrationEndpoint
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.wire.codec import Codec, encode
from loadline.wire.messages import DrainCommand, DrainReply, MigrateCommand, MigrateReply
from loadline.wire.subjects import Subjects
from tests.support.memory import MemoryBus, MemoryStore
from tests.waiting import until

SUBJECTS = Subjects("loadline")
CODEC = Codec(SUBJECTS, 262_144)
BUSY = WorkerSample(0, 0, waiting_requests=1, running_requests=2)
COMMAND = MigrateCommand(
    "c", "m", 1, MigrationEndpoint("p", "w", 1_000), MigrationEndpoint("p", "other", 7),
    "decode_load", "NUM_REQ", "FCR", -1.0,
    requests_max=8, ttl_ms=60_000,
)  # fmt: skip


class Engine:
    """Has two requests; copies and switches when a test lets it, and fails as a test says."""

    def __init__(self) -> None:
        self.candidates = [MigratableRequest("a", 100, 5), MigratableRequest("b", 200, 5)]
        self.copied = asyncio.Event()
        self.switched = asyncio.Event()
        self.refuses: dict[str, Exception] = {}
        self.keeps: set[str] = set()
        self.blind = False
        self.stubborn = False
        self.copying: list[str] = []
        self.switching: list[str] = []
        self.withdrawn: list[str] = []

    def select(self, _command: MigrateCommand) -> Sequence[MigratableRequest]:
        if self.blind:
            raise RuntimeError("the engine does not answer")
        return self.candidates

    async def copy(self, request_id: str, _command: MigrateCommand, admitted: Callable[[], None]) -> None:
        if request_id in self.refuses:
            raise self.refuses[request_id]
        admitted()
        self.copying.append(request_id)
        try:
            await self.copied.wait()
        except asyncio.CancelledError:
            self.withdrawn.append(request_id)
            if not self.stubborn:
                raise

    async def switch(self, request_id: str, _command: MigrateCommand) -> bool:
        self.switching.append(request_id)
        await self.switched.wait()
        return request_id not in self.keeps


class Bench:
    def __init__(self, *, moves: bool, samples: Samples = BUSY, report_interval_ms: int = 5) -> None:
        self.bus = MemoryBus()
        self.engine = Engine()
        self.empty = asyncio.Event()
        self.worker = WorkerClient(
            WorkerRecord("m", "p", "w", "decode", 1_000),
            bus=self.bus,
            store=MemoryStore(),
            sample=lambda: samples,
            on_drain=self.on_drain,
            report_interval_ms=report_interval_ms,
            lease_ttl_s=1,
            mover=self.engine if moves else None,
            slots_in=2,
            slots_out=3,
        )

    async def on_drain(self, _command: DrainCommand) -> None:
        await self.empty.wait()

    async def command(self, **changed: Any) -> MigrateReply:
        reply = await self.bus.request(SUBJECTS.migrate("w"), encode(replace(COMMAND, **changed)), 5)
        return msgspec.json.decode(reply, type=MigrateReply)

    async def drain(self) -> None:
        command = DrainCommand("d", "m", "p", "w", "decode", 1_000, 1, 60_000)
        reply = await self.bus.request(SUBJECTS.drain("w"), encode(command), 5)
        assert msgspec.json.decode(reply, type=DrainReply).accepted

    def reports(self, command_id: str = "c") -> list[MigrationReported]:
        decoded = [CODEC.decode(subject, payload) for subject, payload in self.bus.published]
        return [event for event in decoded if isinstance(event, MigrationReported) and event.command_id == command_id]

    def phases(self, command_id: str = "c") -> list[str]:
        return [report.phase for report in self.reports(command_id)]

    async def slots(self) -> list[tuple[int | None, int | None]]:
        """As the next report says them."""
        assert await self.worker.report_now()
        return self.said_slots()

    def said_slots(self) -> list[tuple[int | None, int | None]]:
        """As the last report said them; it is there."""
        loads = [CODEC.decode(subject, payload) for subject, payload in self.bus.published]
        newest = [event for event in loads if isinstance(event, LoadReported)][-1]
        return [(sample.migration_slots_in, sample.migration_slots_out) for sample in newest.samples]


@asynccontextmanager
async def bench(*, moves: bool = True, samples: Samples = BUSY, report_interval_ms: int = 5) -> AsyncIterator[Bench]:
    made = Bench(moves=moves, samples=samples, report_interval_ms=report_interval_ms)
    async with asyncio.timeout(60), made.worker:
        yield made


def test_two_requests_from_command_to_end() -> None:
    async def scenario() -> None:
        async with bench() as made:
            reply = await made.command()
            assert (reply.accepted, reply.requests, reply.tokens) == (True, 2, 310)
            await until(lambda: made.phases() == ["admitted", "copying"] * 2, "copying")
            made.engine.copied.set()
            await until(lambda: made.engine.switching == ["a", "b"], "handing over")
            made.engine.keeps.add("b")
            made.engine.switched.set()
            await until(lambda: "done" in made.phases(), "over")
            last = made.reports()[-1]
            assert (last.moved, last.failed, last.tokens, last.reason) == (1, 1, 105, "withdrawn")
            assert await made.command() == reply
            await until(lambda: made.phases().count("done") == 3, "said three times")
            assert made.engine.copying == ["a", "b"], "a repeated command begins nothing"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MoveRefused(detail="full"), "destination_refused"),
        (MoveRefused("finished"), "finished"),
        (RuntimeError("a bug"), "failed"),
        (TimeoutError(), "failed"),
    ],
)
def test_what_the_engine_raises_fails_that_request_alone(error: Exception, reason: str) -> None:
    async def scenario() -> None:
        async with bench() as made:
            made.engine.refuses["b"] = error
            made.engine.copied.set()
            made.engine.switched.set()
            await made.command()
            await until(lambda: "done" in made.phases(), "over")
            last = made.reports()[-1]
            assert (last.moved, last.failed, last.reason) == (1, 1, reason)

    with capture_logs() as lines:
        asyncio.run(scenario())
    assert len([line for line in lines if line["event"] == "move_failed"]) == (not isinstance(error, MoveRefused))


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_copy_that_hangs_is_withdrawn_at_the_deadline(stubborn: bool) -> None:  # noqa: FBT001
    async def scenario() -> None:
        async with bench() as made:
            made.engine.stubborn = stubborn
            await made.command(ttl_ms=30)
            await until(lambda: made.phases()[-1:] == ["aborted"], "over")
            assert sorted(made.engine.withdrawn) == ["a", "b"]
            assert made.engine.switching == []
            last = made.reports()[-1]
            assert (last.moved, last.failed, last.reason) == (0, 2, "deadline")
            assert (await made.command(command_id="d")).requests == 2, "they can be moved again"

    asyncio.run(scenario())


def test_a_switch_in_doubt_outlives_the_deadline() -> None:
    async def scenario() -> None:
        async with bench() as made:
            made.engine.candidates.pop()
            made.engine.copied.set()
            await made.command(ttl_ms=1_000)
            await until(lambda: made.engine.switching, "handing over")
            made.engine.candidates.append(MigratableRequest("z", 1, 1))
            made.engine.copied.clear()
            await made.command(command_id="later", ttl_ms=1_001)
            await until(lambda: "aborted" in made.phases("later"), "a deadline after its own")
            assert "aborted" not in made.phases()
            made.engine.switched.set()
            await until(lambda: "done" in made.phases(), "over")

    asyncio.run(scenario())


def test_a_worker_without_a_mover_refuses_and_publishes_no_slots() -> None:
    async def scenario() -> None:
        async with bench(moves=False) as made:
            reply = await made.command()
            assert (reply.accepted, reply.reason) == (False, "unsupported")
            assert await made.slots() == [(None, None)]
            assert not made.worker.admit("x")

    asyncio.run(scenario())


def test_slots_are_published_with_every_sample() -> None:
    async def scenario() -> None:
        async with bench() as made:
            assert await made.slots() == [(2, 3)]
            assert made.worker.admit("x")
            await made.command()
            assert await made.slots() == [(1, 1)]
            made.worker.settle("x")
            assert await made.slots() == [(2, 1)]
            await made.drain()
            assert await made.slots() == [(0, 1)], "three requests, of which two are being moved"

    asyncio.run(scenario())


def test_a_worker_that_is_told_to_drain_says_its_slots_at_once() -> None:
    async def scenario() -> None:
        async with bench(report_interval_ms=3_600_000) as made:
            assert await made.slots() == [(2, 3)]
            await made.command()
            await made.drain()
            await until(lambda: made.said_slots() == [(0, 1)], "reported")

    asyncio.run(scenario())


def test_ranks_share_the_slots_of_their_worker() -> None:
    async def scenario() -> None:
        ranks = [WorkerSample(0, 0, rank=rank) for rank in range(2)]
        async with bench(samples=ranks) as made:
            assert await made.slots() == [(2, 3), (0, 0)]
            await made.drain()
            assert await made.slots() == [(0, 64), (0, 0)], "it does not say how many requests it has"
        async with bench(samples=[]) as made:
            assert await made.worker.report_now()

    asyncio.run(scenario())


def test_slots_that_the_engine_says_are_left_as_they_are() -> None:
    async def scenario() -> None:
        ranks = [WorkerSample(0, 0), WorkerSample(0, 0, rank=1, migration_slots_out=9)]
        async with bench(samples=ranks) as made:
            assert await made.slots() == [(None, None), (None, 9)]

    asyncio.run(scenario())


def test_requests_move_while_the_worker_drains_and_its_lease_is_gone() -> None:
    async def scenario() -> None:
        async with bench() as made:
            await made.worker.ready()
            await made.drain()
            made.engine.copied.set()
            made.engine.switched.set()
            assert (await made.command()).accepted
            await until(lambda: "done" in made.phases(), "moved")
            assert not made.worker.drained.is_set()
            made.empty.set()
            await made.worker.drained.wait()

    asyncio.run(scenario())


def test_an_agent_that_only_moves_requests_does_not_fence_out_the_one_that_drains() -> None:
    async def scenario() -> None:
        async with bench() as made:
            assert (await made.command(epoch=5)).accepted
            command = DrainCommand("d", "m", "p", "w", "decode", 1_000, 4, 60_000)
            reply = await made.bus.request(SUBJECTS.drain("w"), encode(command), 5)
            assert msgspec.json.decode(reply, type=DrainReply).accepted
            assert (await made.command(command_id="older", epoch=4)).reason == "stale_epoch"

    asyncio.run(scenario())


def test_an_engine_that_cannot_be_asked_has_nothing_to_move() -> None:
    async def scenario() -> None:
        async with bench() as made:
            made.engine.blind = True
            assert (await made.command()).reason == "nothing_to_move"
            assert await made.worker._moving.answer(b"\x00") is None

    asyncio.run(scenario())


def test_a_worker_that_leaves_ends_what_it_has_begun() -> None:
    async def scenario() -> None:
        async with bench() as made:
            await made.command()
            await until(lambda: len(made.engine.copying) == 2, "copying")
        assert len(made.engine.withdrawn) == 2
        assert await made.worker._moving.answer(encode(replace(COMMAND, command_id="d"))) is None
        assert made.phases()[-1] == "copying", "it says nothing of what it does not know"

    asyncio.run(scenario())


def test_candidates_that_make_no_sense_are_left_out_and_named() -> None:
    async def scenario() -> None:
        async with bench() as made:
            odd: Any = [
                MigratableRequest("numpy", np.int64(100), np.int64(5)),  # type: ignore[arg-type]
                MigratableRequest("negative", -4, 5),
                MigratableRequest("none", None, 5),  # type: ignore[arg-type]
                {"request_id": "a dict"},
                MigratableRequest("numpy", 1, 1),
            ]
            made.engine.candidates = odd
            with capture_logs() as logs:
                reply = await made.command()
            assert (reply.accepted, reply.requests, reply.tokens) == (True, 1, 105)
            assert [log["candidate"][:12] for log in logs if log["event"] == "candidate_ignored"] == [
                "'negative'",
                "MigratableRe",
                "{'request_id",
                "'numpy'",
            ]
            made.engine.copied.set()
            made.engine.switched.set()
            await until(lambda: made.phases()[-1:] == ["done"], "moved")

    asyncio.run(scenario())


@pytest.mark.parametrize("refused", [MoveRefused("my own reason"), MoveRefused("failed", None)])  # type: ignore[arg-type]
def test_reasons_that_are_not_in_the_list_are_told_as_a_detail(refused: MoveRefused) -> None:
    async def scenario() -> None:
        async with bench() as made:
            made.engine.refuses = {"a": refused, "b": refused}
            await made.command()
            await until(lambda: made.phases()[-1:] == ["aborted"], "aborted")
            assert made.reports()[-1].reason == "failed"

    asyncio.run(scenario())
