"""Entry point of a worker to handovers: commands of the agent, outgoing and incoming requests. Pure."""

from collections.abc import Sequence
from typing import NamedTuple

from loadline.client.fence import EpochFence
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
    """Number of requests that a worker can take over and hand over now."""

    incoming: int
    outgoing: int


class RequestMigrator:
    """Handovers of one incarnation of a worker, in both directions.

    Inputs are methods: commands, messages and results of effects. Each returns the effects that the caller must execute
    in order. Times are of one monotonic clock, in ms.

    Args:
        record: Description of the worker.
        held: Requests that the worker holds.
        slots_in: Maximum number of requests taken over at a time.
        slots_out: Maximum number of requests handed over at a time, unless the worker drains.
        supported: False if the engine cannot migrate requests: every command and request for room is refused.
        claim_retry_ms: Pause before an unanswered claim is repeated.
        claim_timeout_ms: Time after which a frontend that does not answer counts as gone; None: never.
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
        """Inputs of outgoing requests."""
        self.destination = HandoverDestination(record.incarnation, held, self._claims, slots_in if supported else 0)
        """Inputs of incoming requests."""

    @property
    def epochs(self) -> EpochFence:
        """Fence of migrate commands."""
        return self._progress.epochs

    def move(self, record: WorkerRecord) -> None:
        """Answer commands to the worker in its other pool."""
        self._progress.record = record

    def drain(self) -> None:
        """Start to hand over all requests, and refuse incoming ones."""
        self._progress.draining = self.destination.draining = True

    def free_slots(self, requests: int) -> FreeSlots:
        """Return the free slots of a worker with this number of requests, for its samples."""
        return FreeSlots(self.destination.free_slots, self._progress.free_slots(requests))

    def answer(
        self, command: MigrateCommand, candidates: Sequence[MigratableRequest], now_ms: int
    ) -> MigrateReply | None:
        """Accept or refuse a command, given the worker's requests in queue order; ``source.begin`` begins it.

        None: another worker of this name answers. A repeated command gets the same answer and has no effect.
        """
        return self._progress.answer(command, candidates, now_ms)

    def on_claim_reply(self, request_id: str, hop: int, reply: ClaimReply | None, now_ms: int) -> list[Effect]:
        """Apply the frontend's answer to a claim; None: no answer, and the claim is repeated."""
        outcome, repeated = self._claims.on_reply(request_id, hop, reply, now_ms)
        if outcome is None:
            return repeated
        if self.source.has_claimed(request_id, hop):
            return self.source.on_claim_reply(request_id, hop, outcome, now_ms)
        return self.destination.on_claim_reply(request_id, hop, outcome)

    def tick(self, now_ms: int) -> list[Effect]:
        """Apply deadlines that have passed, and repeat reports that are due: at ``next_wake_ms`` or later."""
        return self.source.tick(now_ms)

    def next_wake_ms(self) -> int | None:
        """Return the time of the next ``tick``, unless an input comes before; None: none is due."""
        return self._progress.next_wake_ms()
