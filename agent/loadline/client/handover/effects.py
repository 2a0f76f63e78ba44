"""Effects of a handover, each with the input that reports its result."""

from typing import NamedTuple

from msgspec import Struct

from loadline.client.handover.messages import (
    ClaimRequest,
    HandedRequest,
    HandoverReply,
    HandoverRequest,
    RoomRequest,
)
from loadline.wire.messages import MigrateCommand, MigrationReport


class Transfer(NamedTuple):
    """One request of one migrate command."""

    command_id: str
    request_id: str


class AskRoom(Struct, frozen=True):
    """Send ``message`` to a destination. Result: ``HandoverSource.on_room_reply``."""

    transfer: Transfer
    worker: str
    message: RoomRequest


class ReleaseRoom(Struct, frozen=True):
    """Send ``message`` to a destination once. The answer does not matter, since the reservation expires anyway."""

    worker: str
    message: RoomRequest


class StartCopy(Struct, frozen=True):
    """Copy the KV cache while the request runs. Result: ``on_copied`` or ``on_failure`` of ``HandoverSource``."""

    transfer: Transfer
    command: MigrateCommand


class CancelCopy(Struct, frozen=True):
    """Cancel a copy. Result: ``on_copied`` or ``on_failure`` of ``HandoverSource``, once it has ended."""

    transfer: Transfer


class StopRequest(Struct, frozen=True):
    """Stop a request and copy the rest of its cache. Result: ``HandoverSource.on_stopped`` or ``on_failure``."""

    transfer: Transfer
    command: MigrateCommand


class SendHandover(Struct, frozen=True):
    """Send ``message`` to a destination. Result: ``HandoverSource.on_handover_reply``."""

    transfer: Transfer
    worker: str
    message: HandoverRequest


class SendClaim(Struct, frozen=True):
    """Send ``message`` to a frontend after ``delay_ms``. Result: ``RequestMigrator.on_claim_reply``."""

    frontend: str
    message: ClaimRequest
    delay_ms: int = 0


class RunRequest(Struct, frozen=True):
    """Run a request that this worker owns: one that was handed to it, or its own again."""

    request: HandedRequest


class DiscardRequest(Struct, frozen=True):
    """Drop a request and its KV cache, if present: another worker owns it, or it ended."""

    request_id: str


class ExpireRoom(Struct, frozen=True):
    """Report ``HandoverDestination.on_room_expired`` after ``delay_ms``."""

    request_id: str
    reservation: int
    """Number of the reservation."""
    delay_ms: int


class ReplyHandover(Struct, frozen=True):
    """Send the outcome of a handover to all sources that wait for it."""

    request_id: str
    hop: int
    message: HandoverReply


class PublishReports(Struct, frozen=True):
    """Publish reports of a migration, in this order."""

    reports: list[MigrationReport]


class EndTransfer(Struct, frozen=True):
    """End of a transfer: no further input for it is expected."""

    transfer: Transfer


Effect = (
    AskRoom
    | ReleaseRoom
    | StartCopy
    | CancelCopy
    | StopRequest
    | SendHandover
    | SendClaim
    | RunRequest
    | DiscardRequest
    | ExpireRoom
    | ReplyHandover
    | PublishReports
    | EndTransfer
)
