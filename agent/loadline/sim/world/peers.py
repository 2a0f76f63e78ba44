"""Requests and replies between workers and frontends, on subjects that only the simulation uses."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from loadline.ports import RequestHandler
from loadline.sim.world.bus import BusConnection
from loadline.wire.codec import Rejected, decode_as, encode

TIMEOUT_S: Final = 2.0
"""Time limit of a reply."""

Q = TypeVar("Q", bound=Struct)
A = TypeVar("A", bound=Struct)


class Acknowledgement(Struct, frozen=True):
    """Reply that accepts or refuses a request."""

    accepted: bool


async def request(port: BusConnection, subject: str, message: Struct, kind: type[A]) -> A:
    """Send a request and return its reply.

    Raises:
        BusUnavailable: There is no reply, so the outcome of the request is unknown.
    """
    return msgspec.json.decode(await port.request(subject, encode(message), TIMEOUT_S), type=kind)


def reply_handler(kind: type[Q], answer: Callable[[Q], Awaitable[Struct | None]]) -> RequestHandler:
    """Return a handler that decodes requests of this type and encodes the reply.

    It sends no reply if ``answer`` returns None, because the request is for another process, or if it is malformed.
    """

    async def handle(payload: bytes) -> bytes | None:
        message = decode_as(kind, payload)
        reply = None if isinstance(message, Rejected) else await answer(message)
        return None if reply is None else encode(reply)

    return handle
