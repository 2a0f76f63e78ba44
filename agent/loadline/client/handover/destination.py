"""Destination of handovers: slots and KV cache for requests of other workers, and claims to them. Pure."""

from msgspec import Struct

from loadline.client.handover.claims import PendingClaims
from loadline.client.handover.effects import DiscardRequest, Effect, ExpireRoom, ReplyHandover, RunRequest
from loadline.client.handover.held_requests import HeldRequests
from loadline.client.handover.messages import (
    ClaimReply,
    HandedRequest,
    HandoverReply,
    HandoverRequest,
    RoomReply,
    RoomRequest,
)

_GRACE_MS = 2_000
"""Time that a reservation outlasts the deadline of its command, since a switch that began in time is completed."""


class _Reservation(Struct, frozen=True):
    number: int
    """Number of the grant, by which the timer of an earlier one is recognised."""
    kv_tokens: int


class HandoverDestination:
    """Incoming handovers of one incarnation of a worker.

    Args:
        incarnation: Incarnation of the worker.
        held: Requests that the worker holds.
        claims: Claims of the worker.
        slots_in: Maximum number of requests taken over at a time; 0: none.
    """

    def __init__(self, incarnation: int, held: HeldRequests, claims: PendingClaims, slots_in: int) -> None:
        self.draining = False
        """True once the worker drains: it reserves no room."""
        self._incarnation = incarnation
        self._held = held
        self._claims = claims
        self._slots_in = slots_in
        self._reserved: dict[str, _Reservation] = {}
        """Reservations by request; each takes a slot until the request has arrived or the reservation has expired."""
        self._reservations = 0
        """Number of the newest reservation."""
        self._claimed: dict[tuple[str, int], HandedRequest] = {}

    @property
    def free_slots(self) -> int:
        """Number of requests that the worker can take over now."""
        return 0 if self.draining else max(0, self._slots_in - len(self._reserved))

    @property
    def expected(self) -> list[str]:
        """Requests that hold a slot."""
        return list(self._reserved)

    def reserved_kv_tokens(self, request_id: str) -> int:
        """Return the KV cache that is reserved for requests other than this one, in tokens."""
        return sum(one.kv_tokens for name, one in self._reserved.items() if name != request_id)

    def is_addressed(self, incarnation: int) -> bool:
        """Return True if a message is for this incarnation of the worker; otherwise another one may answer it."""
        return incarnation == self._incarnation

    def on_room_request(self, message: RoomRequest, *, fits: bool) -> tuple[RoomReply, list[Effect]]:
        """Reserve or release a slot and room for a request.

        Args:
            message: Request of the source.
            fits: True if the engine has room for its cache in addition to ``reserved_kv_tokens``.
        """
        name = message.request_id
        if message.ttl_ms <= 0:
            self._release(name)
            return RoomReply(granted=False), []
        if not fits or not self._reserve(name, message.kv_tokens):
            return RoomReply(granted=False), []
        # A source that dies never releases it, so it expires.
        return RoomReply(granted=True), [ExpireRoom(name, self._reservations, message.ttl_ms + _GRACE_MS)]

    def on_room_expired(self, request_id: str, reservation: int) -> None:
        """Release the slot of a request, unless it was reserved again, or has arrived and its claim is pending."""
        reserved = self._reserved.get(request_id)
        if reserved is not None and reserved.number == reservation:
            self._release(request_id)

    def on_handover_request(self, message: HandoverRequest, now_ms: int) -> tuple[HandoverReply | None, list[Effect]]:
        """Claim a request that is handed over, and return the answer; None: ``ReplyHandover`` follows.

        A repeated message has the same answer, and claims nothing.
        """
        request = message.request
        name, hop = request.request_id, request.hop
        if self._held.hop(name) == hop:
            return HandoverReply(accepted=True), []
        has_slot = name in self._reserved or self._reserve(name, 0)
        if not (has_slot and self._held.expect(name, hop)):
            self._release(name)
            return HandoverReply(accepted=False), []
        if (name, hop) in self._claimed:
            return None, []
        self._claimed[name, hop] = request
        # If it runs here under an earlier hop, stop it, regardless of the answer to the claim.
        return None, [DiscardRequest(name), *self._claims.begin(request, now_ms)]

    def on_claim_reply(self, request_id: str, hop: int, reply: ClaimReply) -> list[Effect]:
        """Run or discard a request, as the frontend answered."""
        request = self._claimed.pop((request_id, hop), None)
        if request is None:
            return []
        self._release(request_id)
        action = self._held.resolve_claim(request_id, hop, granted=reply.granted)
        effects: list[Effect] = []
        if action == "run":
            effects.append(RunRequest(request))
        elif action == "drop":
            effects.append(DiscardRequest(request_id))
        return [*effects, ReplyHandover(request_id, hop, HandoverReply(accepted=action == "run"))]

    def _reserve(self, request_id: str, kv_tokens: int) -> bool:
        """Reserve a slot for a request, or the one that it has again; return False if none is free."""
        if request_id not in self._reserved and self.free_slots == 0:
            return False
        self._reservations += 1
        self._reserved[request_id] = _Reservation(self._reservations, kv_tokens)
        return True

    def _release(self, request_id: str) -> None:
        if all(name != request_id for name, _ in self._claimed):
            self._reserved.pop(request_id, None)
