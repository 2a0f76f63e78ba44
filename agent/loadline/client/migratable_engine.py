"""What an engine offers so that its requests can be handed over while they run."""

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
    """A request stays where it is.

    Args:
        reason: Why: ``finished`` where the request is over, ``failed`` where the engine cannot move it.
        detail: A sentence for people.
    """

    def __init__(self, reason: MigrationFailure = "failed", detail: str = "") -> None:
        known = reason in _FAILURES
        self.reason: MigrationFailure = reason if known else "failed"
        """A reason that is not in the list would make the report unreadable."""
        self.detail = str(detail or "") if known else f"{reason}: {detail}"
        super().__init__(self.detail or self.reason)


class MigratableEngine(Protocol):
    """An engine that hands requests over to other workers, and runs theirs.

    An exception of ``copy`` or ``stop`` fails the migration of that request alone: it runs on here. Name the reason
    with ``MigrationRefused``; any other exception is logged.
    """

    @property
    def held_requests(self) -> HeldRequests:
        """Requests that it may run: ``assign`` those that a frontend gives it, ``end`` those that are over."""
        ...

    def migratable_requests(self) -> Sequence[MigratableRequest]:
        """Return its requests in queue order: those that run, the first come first, then those that wait.

        Must be quick. The worker chooses among them.
        """
        ...

    def has_room(self, kv_tokens: int) -> bool:
        """Return whether KV cache of so many tokens would fit beside what there is. Must be quick."""
        ...

    async def copy(self, request_id: str, command: MigrateCommand) -> None:
        """Copy the KV cache of a request to the destination while it runs; return when only a small part is left.

        It is cancelled at the deadline.
        """
        ...

    async def stop(self, request_id: str, command: MigrateCommand) -> StoppedRequest | None:
        """Stop a request, copy the rest of its cache and return its state; None: it ended, or is about to.

        Keep the request until ``run`` or ``discard`` is called. Be quick: nobody runs the request meanwhile, and the
        deadline does not cancel this.
        """
        ...

    def run(self, request: HandedRequest) -> None:
        """Run a request from its state on: one of another worker, or its own again. Its output carries ``hop``."""
        ...

    def discard(self, request_id: str) -> None:
        """Drop a request and its KV cache, if it is there: it must not run here under an earlier hop any more.

        Leave ``held_requests`` as it is: this worker may be about to claim the request.
        """
        ...


class MigrationOptions(Struct, frozen=True):
    """How a worker hands requests over, and takes them over from others."""

    engine: MigratableEngine
    transport: HandoverTransport
    """Messages to other workers and to frontends."""
    slots_in: int = SLOTS
    """Requests that it takes over at a time."""
    slots_out: int = SLOTS
    """Requests that it hands over at a time; a worker that drains hands over up to 64."""
    claim_timeout_ms: int = CLAIM_TIMEOUT_MS
    """Time after which a frontend that does not answer claims is taken for gone, with its users."""
