"""A worker that moves requests, against a bus and a store in memory: callbacks, phases, deadlines, failures, slots."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from structlog.testing import capture_logs

from loadline.client.handover import destination
from loadline.client.handover.held_requests import HeldRequests
from loadline.client.handover.messages import (
    ClaimReply,
    ClaimRequest,
    HandedRequest,
    HandoverReply,
    HandoverRequest,
    RoomReply,
    RoomRequest,
)
from loadline.client.handover.source import StoppedRequest
from loadline.client.migratable_engine import MigrationOptions, MigrationRefused
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
    """Has two requests; copies and stops when a test lets it, and fails as a test says."""

    def __init__(self) -> None:
        self.candidates = [MigratableRequest("a", 100, 5), MigratableRequest("b", 200, 5)]
        self.held_requests = HeldRequests()
        for name in "abz":
            self.held_requests.assign(name, 0)
        self.copied = asyncio.Event()
        self.stopped = asyncio.Event()
        self.refuses: dict[str, Exception] = {}
        self.blind = False
        self.stubborn = False
        self.copying: list[str] = []
        self.stopping: list[str] = []
        self.withdrawn: list[str] = []
        self.ran: list[HandedRequest] = []
        self.discarded: list[str] = []

    def migratable_requests(self) -> Sequence[MigratableRequest]:
        if self.blind:
            raise RuntimeError("the engine does not answer")
        return self.candidates

    def has_room(self, kv_tokens: int) -> bool:
        if self.blind:
            raise RuntimeError("the engine does not answer")
        return kv_tokens <= 1_000

    async def copy(self, request_id: str, _command: MigrateCommand) -> None:
        if request_id in self.refuses:
            raise self.refuses[request_id]
        self.copying.append(request_id)
        try:
            await self.copied.wait()
        except asyncio.CancelledError:
            self.withdrawn.append(request_id)
            if not self.stubborn:
                raise

    async def stop(self, request_id: str, _command: MigrateCommand) -> StoppedRequest | None:
        self.stopping.append(request_id)
        await self.stopped.wait()
        return StoppedRequest("f", request_id.encode()) if self.held_requests.hop(request_id) is not None else None

    def run(self, request: HandedRequest) -> None:
        if request.state == b"broken":
            raise ValueError("it cannot be read")
        self.ran.append(request)

    def discard(self, request_id: str) -> None:
        self.discarded.append(request_id)


class Transport:
    """Other workers and the frontend, which answer as a test says."""

    def __init__(self) -> None:
        self.keeps: set[str] = set()
        """Requests that the destination does not take over."""
        self.silent: list[str] = []
        """Kinds of messages that are not answered; each once."""
        self.raises = False
        self.asked: list[RoomRequest] = []
        self.claims: list[ClaimRequest] = []
        self.granted = True
        self.answer_room: Callable[[RoomRequest], Awaitable[RoomReply | None]] | None = None
        self.answer_handover: Callable[[HandoverRequest], Awaitable[HandoverReply | None]] | None = None

    def _is_silent(self, kind: str) -> bool:
        if self.raises:
            raise OSError("the way is gone")
        if kind in self.silent:
            self.silent.remove(kind)
            return True
        return False

    async def ask_room(self, _worker: str, message: RoomRequest) -> RoomReply | None:
        self.asked.append(message)
        return None if self._is_silent("room") else RoomReply(granted=message.ttl_ms > 0)

    async def hand_over(self, _worker: str, message: HandoverRequest) -> HandoverReply | None:
        if self._is_silent("handover"):
            return None
        return HandoverReply(accepted=message.request.request_id not in self.keeps)

    async def claim(self, _frontend: str, message: ClaimRequest) -> ClaimReply | None:
        self.claims.append(message)
        return None if self._is_silent("claim") else ClaimReply(self.granted)

    async def serve_worker(
        self,
        _worker: str,
        answer_room: Callable[[RoomRequest], Awaitable[RoomReply | None]],
        answer_handover: Callable[[HandoverRequest], Awaitable[HandoverReply | None]],
    ) -> None:
        self.answer_room, self.answer_handover = answer_room, answer_handover

    async def room(self, name: str, kv_tokens: int = 10, *, incarnation: int = 1_000, ttl_ms: int = 1_000) -> Any:
        """What the worker answers another one."""
        assert self.answer_room is not None
        reply = await self.answer_room(RoomRequest(name, incarnation, kv_tokens, ttl_ms))
        return None if reply is None else reply.granted

    async def handover(self, name: str, hop: int = 1, state: bytes = b"", *, incarnation: int = 1_000) -> Any:
        """What the worker answers another one."""
        assert self.answer_handover is not None
        reply = await self.answer_handover(HandoverRequest(HandedRequest(name, "f", hop, 1, state), incarnation))
        return None if reply is None else reply.accepted


class Bench:
    def __init__(self, *, moves: bool, samples: Samples = BUSY, report_interval_ms: int = 5) -> None:
        self.bus = MemoryBus()
        self.engine = Engine()
        self.transport = Transport()
        self.empty = asyncio.Event()
        self.worker = WorkerClient(
            WorkerRecord("m", "p", "w", "decode", 1_000),
            bus=self.bus,
            store=MemoryStore(),
            sample=lambda: samples,
            on_drain=self.on_drain,
            report_interval_ms=report_interval_ms,
            lease_ttl_s=1,
            migration=MigrationOptions(self.engine, self.transport, slots_in=2, slots_out=3) if moves else None,
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
            await until(lambda: made.engine.stopping == ["a", "b"], "handing over")
            made.transport.keeps.add("b")
            made.engine.stopped.set()
            await until(lambda: "done" in made.phases(), "over")
            last = made.reports()[-1]
            assert (last.moved, last.failed, last.tokens, last.reason) == (1, 1, 105, "destination_refused")
            assert [(one.request_id, one.hop, one.migrations) for one in made.engine.ran] == [("b", 1, 0)]
            assert made.engine.discarded == ["a"]
            assert await made.command() == reply
            await until(lambda: made.phases().count("done") == 3, "said three times")
            assert made.engine.copying == ["a", "b"], "a repeated command begins nothing"

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MigrationRefused(detail="no link"), "failed"),
        (MigrationRefused("finished"), "finished"),
        (RuntimeError("a bug"), "failed"),
        (TimeoutError(), "failed"),
    ],
)
def test_what_the_engine_raises_fails_that_request_alone(error: Exception, reason: str) -> None:
    async def scenario() -> None:
        async with bench() as made:
            made.engine.refuses["b"] = error
            made.engine.copied.set()
            made.engine.stopped.set()
            await made.command()
            await until(lambda: "done" in made.phases(), "over")
            last = made.reports()[-1]
            assert (last.moved, last.failed, last.reason) == (1, 1, reason)

    with capture_logs() as lines:
        asyncio.run(scenario())
    assert len([line for line in lines if line["event"] == "migration_failed"]) == (
        not isinstance(error, MigrationRefused)
    )


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_copy_that_hangs_is_withdrawn_at_the_deadline(stubborn: bool) -> None:  # noqa: FBT001
    async def scenario() -> None:
        async with bench() as made:
            made.engine.stubborn = stubborn
            await made.command(ttl_ms=30)
            await until(lambda: made.phases()[-1:] == ["aborted"], "over")
            assert sorted(made.engine.withdrawn) == ["a", "b"]
            assert made.engine.stopping == []
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
            await until(lambda: made.engine.stopping, "handing over")
            made.engine.candidates.append(MigratableRequest("z", 1, 1))
            made.engine.copied.clear()
            await made.command(command_id="later", ttl_ms=1_001)
            await until(lambda: "aborted" in made.phases("later"), "a deadline after its own")
            assert "aborted" not in made.phases()
            made.engine.stopped.set()
            await until(lambda: "done" in made.phases(), "over")

    asyncio.run(scenario())


def test_a_worker_whose_engine_cannot_hand_over_refuses_and_publishes_no_slots() -> None:
    async def scenario() -> None:
        async with bench(moves=False) as made:
            reply = await made.command()
            assert (reply.accepted, reply.reason) == (False, "unsupported")
            assert await made.slots() == [(None, None)]
            assert made.transport.answer_room is None

    asyncio.run(scenario())


def test_slots_are_published_with_every_sample() -> None:
    async def scenario() -> None:
        async with bench() as made:
            assert await made.slots() == [(2, 3)]
            assert await made.transport.room("x")
            await made.command()
            assert await made.slots() == [(1, 1)]
            assert not await made.transport.room("x", ttl_ms=0)
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
            made.engine.stopped.set()
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
            assert await made.worker._answer_migrate(b"\x00") is None

    asyncio.run(scenario())


def test_a_worker_that_leaves_ends_what_it_has_begun() -> None:
    async def scenario() -> None:
        async with bench() as made:
            await made.command()
            await until(lambda: len(made.engine.copying) == 2, "copying")
        assert len(made.engine.withdrawn) == 2
        assert await made.worker._answer_migrate(encode(replace(COMMAND, command_id="d"))) is None
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
            made.engine.held_requests.assign("numpy", 0)
            with capture_logs() as logs:
                reply = await made.command()
            assert (reply.accepted, reply.requests, reply.tokens) == (True, 1, 105)
            assert [log["request"][:12] for log in logs if log["event"] == "request_ignored"] == [
                "'negative'",
                "MigratableRe",
                "{'request_id",
                "'numpy'",
            ]
            made.engine.copied.set()
            made.engine.stopped.set()
            await until(lambda: made.phases()[-1:] == ["done"], "moved")

    asyncio.run(scenario())


@pytest.mark.parametrize("refused", [MigrationRefused("my own reason"), MigrationRefused("failed", None)])  # type: ignore[arg-type]
def test_reasons_that_are_not_in_the_list_are_told_as_a_detail(refused: MigrationRefused) -> None:
    async def scenario() -> None:
        async with bench() as made:
            made.engine.refuses = {"a": refused, "b": refused}
            await made.command()
            await until(lambda: made.phases()[-1:] == ["aborted"], "aborted")
            assert made.reports()[-1].reason == "failed"

    asyncio.run(scenario())


def test_a_handover_that_is_not_answered_is_claimed_until_the_frontend_answers() -> None:
    async def scenario() -> None:
        async with bench() as made:
            made.transport.silent = ["handover", "claim"]
            made.engine.candidates.pop()
            made.engine.copied.set()
            made.engine.stopped.set()
            await made.command()
            await until(lambda: made.phases()[-1:] == ["aborted"], "over")
            assert [(one.request_id, one.hop) for one in made.transport.claims] == [("a", 1)] * 2
            assert [(one.hop, one.migrations, one.state) for one in made.engine.ran] == [(1, 0, b"a")]
            assert made.reports()[-1].reason == "destination_lost"
            assert [one.ttl_ms for one in made.transport.asked] == [60_000, 0], "its room is released"

    asyncio.run(scenario())


def test_a_transport_that_fails_is_as_one_that_is_silent() -> None:
    async def scenario() -> None:
        async with bench() as made:
            made.transport.raises = True
            await made.command()
            await until(lambda: made.phases()[-1:] == ["aborted"], "over")
            assert made.reports()[-1].reason == "destination_lost"

    with capture_logs() as lines:
        asyncio.run(scenario())
    assert {line["event"] for line in lines} == {"message_failed"}


def test_a_request_that_is_handed_over_runs_once_the_claim_is_granted() -> None:
    async def scenario() -> None:
        async with bench() as made:
            made.transport.silent = ["claim"]
            assert await made.transport.room("x")
            assert made.worker.expected_requests == 1
            answers = await asyncio.gather(made.transport.handover("x"), made.transport.handover("x"))
            assert all(answers)
            assert len(made.transport.claims) == 2, "the second after the first was not answered"
            assert [(one.request_id, one.hop) for one in made.engine.ran] == [("x", 1)]
            assert made.engine.held_requests.hop("x") == 1
            assert made.worker.expected_requests == 0
            assert await made.transport.handover("x"), "said again"
            made.transport.granted = False
            assert not await made.transport.handover("y")
            assert made.engine.discarded == ["x", "y", "y"]

    asyncio.run(scenario())


def test_a_worker_gives_room_only_for_what_fits_beside_what_is_to_come() -> None:
    async def scenario() -> None:
        async with bench() as made:
            assert await made.transport.room("x", 600)
            assert not await made.transport.room("y", 600)
            assert await made.transport.room("x", 900), "its own reservation does not count"
            assert await made.transport.room("x", 10, incarnation=999) is None, "another one of its name answers"
            assert await made.transport.handover("x", incarnation=999) is None
            made.engine.blind = True
            assert not await made.transport.room("z", 1)

    asyncio.run(scenario())


def test_room_that_nobody_comes_for_is_given_back_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(destination, "_GRACE_MS", 10)

    async def scenario() -> None:
        async with bench() as made:
            assert await made.transport.room("x", ttl_ms=10)
            await until(lambda: made.worker.expected_requests == 0, "it is free")

    asyncio.run(scenario())


def test_a_request_that_the_engine_cannot_run_is_left_to_its_frontend() -> None:
    async def scenario() -> None:
        async with bench() as made:
            assert await made.transport.handover("x", state=b"broken")
            assert made.engine.held_requests.hop("x") is None

    with capture_logs() as lines:
        asyncio.run(scenario())
    assert [line["request"] for line in lines if line["event"] == "engine_failed"] == ["x"]
