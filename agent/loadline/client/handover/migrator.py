"""Entry point of a worker to handovers: commands of the agent, requests that go and requests that come. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from loadline.client.handover.claims import CLAIM_RETRY_MS, CLAIM_TIMEOUT_MS, PendingClaims
from loadline.client.handover.destination import HandoverDestination
from loadline.client.handover.effects import Effect
from loadline.client.handover.held_requests import HeldRequests
from loadline.client.handover.messages import ClaimReply
from loadline.client.handover.progress import SLOTS, MigrationProgress
from loadline.client.handover.source import HandoverSource
from loadline.core.migration.requests import MigratableRequest
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.wire.messages import MigrateCommand, MigrateReply


class FreeSlots(NamedTuple):
    """Requests that a worker can take over and hand over now."""

    incoming: int
    outgoing: int


class RequestMigrator:
    """Handovers of one incarnation of a worker, both ways.

    Inputs are methods: commands, messages and results of effects. Each gives the effects that the caller has to execute
    in their order. Times are of one monotonic clock, in ms.

    Args:
        record: What the worker is.
        held: Requests that the worker holds.
        slots_in: Requests that it takes over at a time.
        slots_out: Requests that it hands over at a time, while it does not drain.
        supported: False where the engine can do neither: every command is refused, and no room is given.
        claim_retry_ms: Pause before an unanswered claim is repeated.
        claim_timeout_ms: Time after which a frontend that does not answer is taken for gone; None: never.
    """

    def __init__(
        self,
        record: WorkerRecord,
        held: HeldRequests,
        *,
        slots_in: int = SLOTS,
        slots_out: int = SLOTS,
        supported: bool = True,
        claim_retry_ms: int = CLAIM_RETRY_MS,
        claim_timeout_ms: int | None = CLAIM_TIMEOUT_MS,
    ) -> None:
        self._claims = PendingClaims(record, claim_retry_ms, claim_timeout_ms)
        self._progress = MigrationProgress(record, slots_out=slots_out, supported=supported)
        self.source = HandoverSource(self._progress, held, self._claims)
        """Inputs of requests that go."""
        self.destination = HandoverDestination(record.incarnation, held, self._claims, slots_in if supported else 0)
        """Inputs of requests that come."""

    def drain(self) -> None:
        """Hand all requests over from now on, and take none."""
        self._progress.draining = self.destination.draining = True

    def free_slots(self, requests: int) -> FreeSlots:
        """Return the free slots of a worker with so many requests, to publish with every sample."""
        return FreeSlots(self.destination.free_slots, self._progress.free_slots(requests))

    def answer(
        self, command: MigrateCommand, candidates: Sequence[MigratableRequest], now_ms: int
    ) -> MigrateReply | None:
        """Accept or refuse a command, given the worker's requests in queue order; ``source.begin`` begins it.

        None: another worker of this name answers. A repeated command has the same answer, and begins nothing.
        """
        return self._progress.answer(command, candidates, now_ms)

    def on_claim_reply(self, request_id: str, hop: int, reply: ClaimReply | None, now_ms: int) -> list[Effect]:
        """Apply the frontend's answer to a claim. None: there was none, and the claim is repeated."""
        outcome, again = self._claims.on_reply(request_id, hop, reply, now_ms)
        if outcome is None:
            return again
        if self.source.has_claimed(request_id, hop):
            return self.source.on_claim_reply(request_id, hop, outcome, now_ms)
        return self.destination.on_claim_reply(request_id, hop, outcome)

    def tick(self, now_ms: int) -> list[Effect]:
        """Apply deadlines that have passed, and repeat reports that are due: at ``next_wake_ms`` or later."""
        return self.source.tick(now_ms)

    def next_wake_ms(self) -> int | None:
        """Return when ``tick`` has something to do, unless something else happens before; None: never."""
        return self._progress.next_wake_ms()
