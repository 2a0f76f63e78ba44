"""Ownership of requests, decided by the frontend, which alone knows what the user has received. Pure.

Two workers cannot agree on the owner of a request by messages that may be lost. The frontend decides instead, in one
place, with one number. Each ownership of a request has a *hop*, one higher than the one before, and a worker takes it
by a *claim*, a compare-and-set on that number:

1. A source that hands a request over stops it, and sends the destination its state and the next hop, ``h + 1``.
2. The destination claims ``h + 1``. It runs the request only after the frontend has granted the claim.
3. A source that does not learn the outcome claims ``h + 1`` *for itself*, again and again until it gets an answer. If
   the claim is granted, that of the destination can never be granted, and the source resumes the request under
   ``h + 1``. If it is refused, the destination owns the request and the source discards it. If the frontend is gone, so
   is the user, and no worker runs the request.

Of the two claims to one hop exactly one is granted, and the other worker learns it. Meanwhile no worker runs the
request. Both may repeat their claims without limit, because the owner's claim is always granted again. An answer may
come late or twice: it counts only for a worker that has not given up that hop since. Output tokens carry the hop under
which they were generated, and those of an earlier owner are dropped (``accepts``). Where a claim can overtake the
tokens of the source, the frontend should answer it with the number of tokens that the user has, and the destination
should continue there.
"""

from msgspec import Struct

from loadline.client.handover.messages import ClaimReply, ClaimRequest


class RequestOwner(Struct, frozen=True):
    """Incarnation of a worker that owns a request."""

    worker: str
    incarnation: int
    hop: int
    """Number of owners that the request had before."""


class RequestOwners:
    """Owners of the open requests of one frontend. Call ``end`` for each request, or the table grows."""

    def __init__(self) -> None:
        self._owners: dict[str, RequestOwner] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def assign(self, request_id: str, worker: str, incarnation: int) -> int:
        """Assign a request to a worker, for the first time or because its owner died, and return the new hop.

        No pending claim to the request can be granted any more.
        """
        before = self._owners.get(request_id)
        hop = 0 if before is None else before.hop + 1
        self._owners[request_id] = RequestOwner(worker, incarnation, hop)
        return hop

    def answer(self, claim: ClaimRequest) -> ClaimReply:
        """Grant or refuse a claim, and return the answer to send."""
        granted = self.claim(claim.request_id, claim.worker, claim.incarnation, claim.hop)
        owner = self._owners.get(claim.request_id)
        return ClaimReply(granted) if owner is None else ClaimReply(granted, owner.worker, owner.incarnation)

    def claim(self, request_id: str, worker: str, incarnation: int, hop: int) -> bool:
        """Grant a claim to the next hop; return True if the worker owns the request under that hop now."""
        before = self._owners.get(request_id)
        if before is None:
            return False
        claimed = RequestOwner(worker, incarnation, hop)
        if hop == before.hop + 1:
            self._owners[request_id] = claimed
            return True
        return before == claimed

    def owner(self, request_id: str) -> RequestOwner | None:
        """Return the owner of a request; None: it ended, or is unknown."""
        return self._owners.get(request_id)

    def accepts(self, request_id: str, hop: int) -> bool:
        """Return True if output generated under that hop comes from the owner."""
        owner = self._owners.get(request_id)
        return owner is not None and owner.hop == hop

    def end(self, request_id: str) -> None:
        """End a request: it has no owner, and no claim to it is granted any more."""
        self._owners.pop(request_id, None)
