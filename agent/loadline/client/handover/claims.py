"""Pending ownership claims of a worker, without I/O.

A worker that receives a migrated request claims it from the request's frontend. An unanswered claim is repeated until a
time limit.
"""

from typing import Final

from msgspec import Struct

from loadline.client.handover.effects import Effect, SendClaim
from loadline.client.handover.messages import ClaimReply, ClaimRequest, HandedRequest
from loadline.core.vocabulary.samples import WorkerRecord

CLAIM_RETRY_MS: Final = 100
"""Pause before an unanswered claim is repeated."""
CLAIM_TIMEOUT_MS: Final = 30_000
"""Time after which a frontend that does not answer claims is considered dead; its requests are dropped."""


class _PendingClaim(Struct):
    frontend: str
    message: ClaimRequest
    begun_ms: int


class PendingClaims:
    """Unanswered claims of one incarnation of a worker.

    Args:
        record: Description of the worker.
        retry_ms: Pause before an unanswered claim is repeated.
        timeout_ms: Time after which the frontend is considered dead; None: never.
    """

    def __init__(self, record: WorkerRecord, retry_ms: int, timeout_ms: int | None) -> None:
        self._record = record
        self._retry_ms = retry_ms
        self._timeout_ms = timeout_ms
        self._pending: dict[tuple[str, int], _PendingClaim] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def begin(self, request: HandedRequest, now_ms: int) -> list[Effect]:
        """Claim ownership of a request; its hop counts the migrations so far, and an older hop cannot claim it."""
        message = ClaimRequest(request.request_id, self._record.worker, self._record.incarnation, request.hop)
        self._pending[request.request_id, request.hop] = _PendingClaim(request.frontend, message, now_ms)
        return [SendClaim(request.frontend, message)]

    def on_reply(
        self, request_id: str, hop: int, reply: ClaimReply | None, now_ms: int
    ) -> tuple[ClaimReply | None, list[Effect]]:
        """Return the outcome of a claim and the effects.

        Without a reply (None) the claim is repeated, or counts as refused after the time limit. A claim that is not
        pending has no outcome and no effects.
        """
        claim = self._pending.get((request_id, hop))
        if claim is None:
            return None, []
        if reply is None:
            if self._timeout_ms is None or now_ms - claim.begun_ms <= self._timeout_ms:
                return None, [SendClaim(claim.frontend, claim.message, self._retry_ms)]
            reply = ClaimReply(granted=False)
        del self._pending[request_id, hop]
        return reply, []
