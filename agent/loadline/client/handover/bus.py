"""Transport of handovers over a bus, on separate subjects. Engines may implement another ``HandoverTransport``.

<prefix>.room.<worker>   <prefix>.handover.<worker>   <prefix>.claim.<frontend>
"""

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Final, Protocol, TypeVar

from msgspec import Struct

from loadline.client.handover.messages import (
    ClaimReply,
    ClaimRequest,
    HandoverReply,
    HandoverRequest,
    RoomReply,
    RoomRequest,
)
from loadline.errors import BusUnavailable
from loadline.ports import Bus, RequestHandler, Unsubscribe
from loadline.wire.codec import Rejected, decode_as, encode
from loadline.wire.subjects import encode_token

# Handovers whose claims have no answer yet. Each takes a slot of the worker, a repeated one none.
_HANDOVERS_MAX: Final = 1_024

_Q = TypeVar("_Q", bound=Struct)
_A = TypeVar("_A", bound=Struct)


class HandoverTransport(Protocol):
    """Messages between workers and frontends. A request without an answer in time returns None."""

    async def ask_room(self, worker: str, message: RoomRequest) -> RoomReply | None:
        """Send a request for room to a worker, and return its answer."""
        ...

    async def hand_over(self, worker: str, message: HandoverRequest) -> HandoverReply | None:
        """Send a request to a worker, and return its answer."""
        ...

    async def claim(self, frontend: str, message: ClaimRequest) -> ClaimReply | None:
        """Send a claim to a frontend, and return its answer."""
        ...

    async def serve_worker(
        self,
        worker: str,
        answer_room: Callable[[RoomRequest], Awaitable[RoomReply | None]],
        answer_handover: Callable[[HandoverRequest], Awaitable[HandoverReply | None]],
    ) -> Unsubscribe:
        """Start to answer messages to a worker; if a function returns None, another worker of its name answers.

        ``answer_handover`` waits for the request's frontend, which may be gone: do not let other messages wait for it.

        Returns:
            A function that ends the answers.
        """
        ...


class HandoverBus:
    """Handover messages over a bus.

    Args:
        bus: A connected bus.
        prefix: First tokens of its subjects, the same for all workers and frontends.
        timeout_s: Time limit of requests for room, and of claims.
        handover_timeout_s: Time limit of a handover, during which the destination claims the request.
    """

    def __init__(self, bus: Bus, prefix: str, *, timeout_s: float = 1.0, handover_timeout_s: float = 3.0) -> None:
        self._bus = bus
        self._prefix = prefix
        self._timeout_s = timeout_s
        self._handover_timeout_s = handover_timeout_s

    async def ask_room(self, worker: str, message: RoomRequest) -> RoomReply | None:
        """Send a request for room to a worker, and return its answer."""
        return await self._request(self._subject("room", worker), message, RoomReply, self._timeout_s)

    async def hand_over(self, worker: str, message: HandoverRequest) -> HandoverReply | None:
        """Send a request to a worker, and return its answer."""
        return await self._request(self._subject("handover", worker), message, HandoverReply, self._handover_timeout_s)

    async def claim(self, frontend: str, message: ClaimRequest) -> ClaimReply | None:
        """Send a claim to a frontend, and return its answer."""
        return await self._request(self._subject("claim", frontend), message, ClaimReply, self._timeout_s)

    async def serve_worker(
        self,
        worker: str,
        answer_room: Callable[[RoomRequest], Awaitable[RoomReply | None]],
        answer_handover: Callable[[HandoverRequest], Awaitable[HandoverReply | None]],
    ) -> Unsubscribe:
        """Start to answer messages to a worker; if a function returns None, another worker of its name answers.

        Returns:
            A function that ends the answers.
        """
        rooms, handovers = self._subject("room", worker), self._subject("handover", worker)
        answer = reply_handler(HandoverRequest, answer_handover)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(await self._bus.answer(rooms, reply_handler(RoomRequest, answer_room)))
            stack.push_async_callback(await self._bus.answer(handovers, answer, concurrent_max=_HANDOVERS_MAX))
            return stack.pop_all().aclose

    async def serve_frontend(self, frontend: str, answer_claim: Callable[[ClaimRequest], ClaimReply]) -> None:
        """Start to answer claims to requests of a frontend, for example with ``RequestOwners.answer``."""

        async def answer(message: ClaimRequest) -> ClaimReply:
            return answer_claim(message)

        await self._bus.answer(self._subject("claim", frontend), reply_handler(ClaimRequest, answer))

    def _subject(self, kind: str, name: str) -> str:
        return f"{self._prefix}.{kind}.{encode_token(name)}"

    async def _request(self, subject: str, message: Struct, kind: type[_A], timeout_s: float) -> _A | None:
        try:
            payload = await self._bus.request(subject, encode(message), timeout_s)
        except BusUnavailable:
            return None
        reply = decode_as(kind, payload, subject)
        return None if isinstance(reply, Rejected) else reply


def reply_handler(kind: type[_Q], answer: Callable[[_Q], Awaitable[Struct | None]]) -> RequestHandler:
    """Return a handler that decodes requests of this type and encodes the reply.

    It sends no reply if ``answer`` returns None, because the request is for another process, or if it is malformed.
    """

    async def handle(payload: bytes) -> bytes | None:
        message = decode_as(kind, payload)
        reply = None if isinstance(message, Rejected) else await answer(message)
        return None if reply is None else encode(reply)

    return handle
