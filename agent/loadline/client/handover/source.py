"""Source of handovers: the state machine of each request that a command selected. Pure.

Each transfer goes through these steps. Inputs that do not belong to its step are ignored, so messages may be lost, late
or repeated:

    room -> copy -> stop -> handover [-> claim] -> over

A failure before ``handover`` leaves the request running here. Afterwards the frontend decides where it runs.
"""

from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from loadline.client.handover.claims import PendingClaims
from loadline.client.handover.effects import (
    AskRoom,
    CancelCopy,
    DiscardRequest,
    Effect,
    EndTransfer,
    PublishReports,
    ReleaseRoom,
    RunRequest,
    SendHandover,
    StartCopy,
    StopRequest,
    Transfer,
)
from loadline.client.handover.held_requests import HeldRequests
from loadline.client.handover.messages import (
    ClaimReply,
    HandedRequest,
    HandoverReply,
    HandoverRequest,
    RoomReply,
    RoomRequest,
)
from loadline.client.handover.progress import MigrationProgress
from loadline.core.vocabulary.migrations import MigrationFailure
from loadline.wire.messages import MigrateCommand, MigrationReport


class StoppedRequest(Struct, frozen=True):
    """Request that the engine has stopped."""

    frontend: str
    """Name of the frontend that decides who owns it."""
    state: bytes
    """State that another engine needs to run it, in the engine's own encoding."""


class _Outgoing(Struct):
    """Transfer in progress."""

    command: MigrateCommand
    migrations: int
    """Number of migrations of the request so far."""
    step: Literal["room", "copy", "stop", "handover", "claim"] = "room"
    request: HandedRequest | None = None
    failure: MigrationFailure = ""
    """Reason to report if the frontend grants the claim of the source."""
    detail: str = ""


class HandoverSource:
    """Outgoing handovers of one incarnation of a worker.

    Args:
        progress: Commands of the worker, and its reports.
        held: Requests that the worker holds.
        claims: Claims of the worker.
    """

    def __init__(self, progress: MigrationProgress, held: HeldRequests, claims: PendingClaims) -> None:
        self._progress = progress
        self._held = held
        self._claims = claims
        self._outgoing: dict[Transfer, _Outgoing] = {}
        self._claimed: dict[tuple[str, int], Transfer] = {}

    def begin(self, command_id: str) -> list[Effect]:
        """Begin an accepted command after its reply was sent; a repeated call has no effect."""
        effects: list[Effect] = []
        for transfer in self._progress.begin(command_id):
            command, request = self._progress.command(transfer), self._progress.request(transfer)
            self._outgoing[transfer] = _Outgoing(command, request.hops)
            remaining = request.remaining_tokens
            message = RoomRequest(
                request.request_id,
                command.destination.incarnation,
                0 if request.waiting else request.tokens,
                command.ttl_ms,
                None if remaining is None else request.tokens + remaining,
            )
            effects.append(AskRoom(transfer, command.destination.worker, message))
        return effects

    def on_room_reply(self, transfer: Transfer, reply: RoomReply | None, now_ms: int) -> list[Effect]:
        """Copy the cache if the destination has room; None: it did not answer."""
        one = self._at(transfer, "room")
        if one is None:
            return []
        if reply is None:
            return self._fail(transfer, "destination_lost", now_ms, f"{one.command.destination.worker} does not answer")
        if not reply.granted:
            return self._fail(transfer, "destination_refused", now_ms, f"{one.command.destination.worker} has no room")
        admitted = self._progress.record_admitted(transfer, now_ms)
        if not admitted:
            return self._fail(transfer, "deadline", now_ms)
        one.step = "copy"
        copying = self._progress.record_copying(transfer, now_ms)
        return [PublishReports(admitted), PublishReports(copying), StartCopy(transfer, one.command)]

    def on_copied(self, transfer: Transfer, now_ms: int) -> list[Effect]:
        """Stop the request, whose cache is copied except for the last part; withdraw it after the deadline."""
        one = self._at(transfer, "copy")
        if one is None:
            return []
        if not self._progress.begin_switch(transfer, now_ms):
            return self._fail(transfer, "deadline", now_ms, _late(one.command))
        one.step = "stop"
        return [StopRequest(transfer, one.command)]

    def on_failure(self, transfer: Transfer, reason: MigrationFailure, now_ms: int, detail: str = "") -> list[Effect]:
        """End a transfer that the engine could not copy or stop: the request continues here, or ended."""
        one = self._outgoing.get(transfer)
        if one is None or one.step not in ("copy", "stop"):
            return []
        if self._progress.is_withdrawn(transfer):
            reason, detail = "deadline", _late(one.command)
        return self._fail(transfer, reason, now_ms, detail)

    def on_stopped(self, transfer: Transfer, stopped: StoppedRequest, now_ms: int) -> list[Effect]:
        """Hand over a request that has been stopped."""
        one = self._at(transfer, "stop")
        if one is None:
            return []
        hop = self._held.hand_over(transfer.request_id)
        if hop is None:
            return self._fail(transfer, "withdrawn", now_ms, "this worker does not own it any more")
        one.step = "handover"
        one.request = HandedRequest(transfer.request_id, stopped.frontend, hop, one.migrations, stopped.state)
        message = HandoverRequest(
            replace(one.request, migrations=one.migrations + 1), one.command.destination.incarnation
        )
        return [SendHandover(transfer, one.command.destination.worker, message)]

    def on_handover_reply(self, transfer: Transfer, reply: HandoverReply | None, now_ms: int) -> list[Effect]:
        """End the transfer if the destination owns the request; otherwise claim it. None: no answer."""
        one = self._at(transfer, "handover")
        if one is None or one.request is None:
            return []
        request, destination = one.request, one.command.destination.worker
        if reply is not None and reply.accepted:
            return [*self._discard(request), *self._moved(transfer, now_ms)]
        one.step = "claim"
        one.failure = "destination_lost" if reply is None else "destination_refused"
        one.detail = f"{destination} does not answer" if reply is None else f"{destination} did not take it over"
        self._claimed[request.request_id, request.hop] = transfer
        return self._claims.begin(request, now_ms)

    def has_claimed(self, request_id: str, hop: int) -> bool:
        """Return True if the claim is one of the source."""
        return (request_id, hop) in self._claimed

    def on_claim_reply(self, request_id: str, hop: int, reply: ClaimReply, now_ms: int) -> list[Effect]:
        """Resume or discard a request, as the frontend answered."""
        transfer = self._claimed.pop((request_id, hop))
        one = self._outgoing[transfer]
        destination = one.command.destination
        if one.request is None:
            raise AssertionError(f"{request_id} was claimed before it was stopped")
        if reply.granted and self._held.resolve_claim(request_id, hop, granted=True) == "run":
            return [RunRequest(one.request), *self._fail(transfer, one.failure, now_ms, one.detail)]
        effects: list[Effect] = [] if reply.granted else self._discard(one.request)
        if (reply.worker, reply.incarnation) == (destination.worker, destination.incarnation):
            return [*effects, *self._moved(transfer, now_ms)]
        detail = (
            f"its frontend has assigned it to {reply.worker}" if reply.worker else "it ended, or its frontend is gone"
        )
        return [*effects, *self._fail(transfer, "withdrawn", now_ms, detail)]

    def tick(self, now_ms: int) -> list[Effect]:
        """Withdraw transfers past their deadline, and repeat final reports that are due."""
        effects: list[Effect] = []
        for transfer in self._progress.withdraw_overdue(now_ms):
            one = self._outgoing.get(transfer)
            if one is not None and one.step == "copy":
                effects.append(CancelCopy(transfer))
            else:  # the room is released after the destination has answered
                effects += _publish(self._progress.record_failure(transfer, "deadline", now_ms))
        return [*effects, *_publish(self._progress.repeat_final(now_ms))]

    def _at(self, transfer: Transfer, step: str) -> _Outgoing | None:
        one = self._outgoing.get(transfer)
        return one if one is not None and one.step == step else None

    def _discard(self, request: HandedRequest) -> list[Effect]:
        """Discard a request, unless it has returned under a later hop."""
        action = self._held.resolve_claim(request.request_id, request.hop, granted=False)
        return [DiscardRequest(request.request_id)] if action == "drop" else []

    def _moved(self, transfer: Transfer, now_ms: int) -> list[Effect]:
        del self._outgoing[transfer]
        return [*_publish(self._progress.record_moved(transfer, now_ms)), EndTransfer(transfer)]

    def _fail(self, transfer: Transfer, reason: MigrationFailure, now_ms: int, detail: str = "") -> list[Effect]:
        """Release the room at the destination, and report the failure."""
        destination = self._outgoing.pop(transfer).command.destination
        release = RoomRequest(transfer.request_id, destination.incarnation, 0, ttl_ms=0)
        return [
            ReleaseRoom(destination.worker, release),
            *_publish(self._progress.record_failure(transfer, reason, now_ms, detail)),
            EndTransfer(transfer),
        ]


def _publish(reports: list[MigrationReport]) -> list[PublishReports]:
    return [PublishReports(reports)] if reports else []


def _late(command: MigrateCommand) -> str:
    return f"its copy did not finish within {command.ttl_ms} ms"
