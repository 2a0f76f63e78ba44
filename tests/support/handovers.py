"""A handover between two workers, driven without I/O."""

from collections.abc import Iterable
from typing import Any

from loadline.client.handover.effects import (
    AskRoom,
    Effect,
    EndTransfer,
    PublishReports,
    ReleaseRoom,
    Transfer,
)
from loadline.client.handover.held_requests import HeldRequests
from loadline.client.handover.messages import (
    ClaimReply,
    HandoverReply,
    RoomReply,
)
from loadline.client.handover.migrator import RequestMigrator
from loadline.client.handover.source import StoppedRequest
from loadline.core.migration.requests import MigratableRequest
from loadline.core.vocabulary.migrations import MigrationEndpoint
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.wire.messages import MigrateCommand, MigrationReport

COMMAND = MigrateCommand(
    "c", "m", 1, MigrationEndpoint("p", "a", 1), MigrationEndpoint("p", "b", 2),
    "decode_load", "NUM_REQ", "FCR", -1.0,
    requests_max=8, ttl_ms=1_000,
)  # fmt: skip
R = Transfer("c", "r")
YES, NO = RoomReply(granted=True), RoomReply(granted=False)
TAKEN, NOT_TAKEN = HandoverReply(accepted=True), HandoverReply(accepted=False)
STOPPED = StoppedRequest("f", b"state")


def worker(name: str, incarnation: int, **limits: Any) -> tuple[RequestMigrator, HeldRequests]:
    held = HeldRequests()
    return RequestMigrator(WorkerRecord("m", "p", name, "decode", incarnation), held, **limits), held


class Source:
    """Worker ``a`` with the request ``r``, and the results of its handovers."""

    def __init__(self, **limits: Any) -> None:
        self.migrator, self.held = worker("a", 1, **limits)
        self.held.assign("r", 0)
        self.source = self.migrator.source
        reply = self.migrator.answer(COMMAND, [MigratableRequest("r", 100, 5, hops=2, remaining_tokens=20)], 0)
        assert reply is not None
        assert reply.accepted
        (self.asked,) = self.source.begin("c")
        assert isinstance(self.asked, AskRoom)

    def to_copy(self, now_ms: int = 10) -> list[Effect]:
        return self.source.on_room_reply(R, YES, now_ms)

    def to_stop(self, now_ms: int = 20) -> list[Effect]:
        self.to_copy()
        return self.source.on_copied(R, now_ms)

    def to_handover(self) -> list[Effect]:
        self.to_stop()
        return self.source.on_stopped(R, STOPPED, 30)

    def to_claim(self, reply: HandoverReply | None = None) -> list[Effect]:
        self.to_handover()
        return self.source.on_handover_reply(R, reply, 40)

    def claim(self, reply: ClaimReply | None, now_ms: int = 50) -> list[Effect]:
        return self.migrator.on_claim_reply("r", 1, reply, now_ms)


def reports(effects: Iterable[Effect]) -> list[MigrationReport]:
    return [report for effect in effects if isinstance(effect, PublishReports) for report in effect.reports]


def phases(effects: Iterable[Effect]) -> list[str]:
    return [report.phase for report in reports(effects)]


def kinds(effects: Iterable[Effect]) -> list[type[Effect]]:
    return [type(effect) for effect in effects]


def assert_rolled_back(effects: list[Effect], reason: str, *first: type[Effect]) -> None:
    """Assert that the room is released, the failure reported and the transfer ended."""
    assert kinds(effects) == [*first, ReleaseRoom, PublishReports, EndTransfer]
    release = effects[len(first)]
    assert isinstance(release, ReleaseRoom)
    assert release.worker == "b"
    assert (release.message.request_id, release.message.incarnation, release.message.ttl_ms) == ("r", 2, 0)
    (report,) = reports(effects)
    assert (report.phase, report.reason, report.moved, report.failed) == ("aborted", reason, 0, 1)
