"""Interface of an engine whose running requests can be handed over to other workers."""

from collections.abc import Sequence
from typing import Final, Protocol, get_args

from msgspec import Struct

from loadline.client.handover.bus import HandoverTransport
from loadline.client.handover.claims import CLAIM_TIMEOUT_MS
from loadline.client.handover.held_requests import HeldRequests
from loadline.client.handover.messages import HandedRequest
from loadline.client.handover.progress import SLOTS
from loadline.client.handover.source import StoppedRequest
from loadline.core.migration.requests import MigratableRequest
from loadline.core.vocabulary.migrations import MigrationFailure
from loadline.errors import LoadlineError
from loadline.wire.messages import MigrateCommand

_FAILURES: Final = frozenset(get_args(MigrationFailure)) - {""}


class MigrationRefused(LoadlineError):
    """Refusal of an engine to migrate a request, which stays where it is.

    Args:
        reason: ``finished`` if the request is over, ``failed`` if the engine cannot migrate it.
        detail: A sentence for people.
    """

    def __init__(self, reason: MigrationFailure = "failed", detail: str = "") -> None:
        known = reason in _FAILURES
        self.reason: MigrationFailure = reason if known else "failed"
        """One of the protocol's reasons, since an unknown one would make the report unreadable."""
        self.detail = str(detail or "") if known else f"{reason}: {detail}"
        super().__init__(self.detail or self.reason)


class MigratableEngine(Protocol):
    """Engine that hands requests over to other workers, and runs theirs.

    An exception from ``copy`` or ``stop``, or a wrong result of ``stop``, fails only the migration of that request,
    which continues here. Raise ``MigrationRefused`` to give the reason; any other exception is logged.
    """

    @property
    def held_requests(self) -> HeldRequests:
        """Requests that the engine may run: ``assign`` adds those from a frontend, ``end`` removes them."""
        ...

    def migratable_requests(self) -> Sequence[MigratableRequest]:
        """Return the requests in queue order: running ones by arrival, then waiting ones.

        Must be quick. The worker chooses among them.
        """
        ...

    def has_room(self, kv_tokens: int) -> bool:
        """Return True if ``kv_tokens`` more tokens fit into the KV cache. Must be quick."""
        ...

    async def copy(self, request_id: str, command: MigrateCommand) -> None:
        """Copy the KV cache of a request to the destination while it runs; return when only a small part is left.

        The task is cancelled at the deadline.
        """
        ...

    async def stop(self, request_id: str, command: MigrateCommand) -> StoppedRequest | None:
        """Stop a request, copy the rest of its cache and return its state; None: it ended, or is about to.

        Keep the request until ``run`` or ``discard`` is called. Must be quick: no worker runs the request meanwhile,
        and the deadline does not cancel this call.
        """
        ...

    def run(self, request: HandedRequest) -> None:
        """Continue a request from its state: one of another worker, or its own again. Its output carries ``hop``."""
        ...

    def discard(self, request_id: str) -> None:
        """Drop a request and its KV cache, if present: it must not run here under an earlier hop any more.

        Do not change ``held_requests``: this worker may be about to claim the request.
        """
        ...


class MigrationOptions(Struct, frozen=True):
    """Options of a worker whose requests migrate to and from other workers."""

    engine: MigratableEngine
    transport: HandoverTransport
    """Transport of messages to other workers and to frontends."""
    slots_in: int = SLOTS
    """Maximum number of requests taken over at a time."""
    slots_out: int = SLOTS
    """Maximum number of requests handed over at a time; a draining worker hands over up to 64."""
    claim_timeout_ms: int = CLAIM_TIMEOUT_MS
    """Time after which a frontend that does not answer claims counts as gone, with its users."""
