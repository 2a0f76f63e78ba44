"""Requests and replies between workers and frontends, on subjects of the simulation alone."""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from loadline.ports import RequestHandler
from loadline.sim.world.bus import BusConnection
from loadline.wire.codec import Rejected, decode_as, encode

TIMEOUT_S: Final = 2.0
"""Time to answer a request."""

Q = TypeVar("Q", bound=Struct)
A = TypeVar("A", bound=Struct)


class Acknowledgement(Struct, frozen=True):
    """Reply of yes or no."""

    accepted: bool


async def request(port: BusConnection, subject: str, message: Struct, kind: type[A]) -> A:
    """Send a request and return its reply.

    Raises:
        BusUnavailable: There is no reply, so the outcome of the request is unknown.
    """
    return msgspec.json.decode(await port.request(subject, encode(message), TIMEOUT_S), type=kind)


def reply_handler(kind: type[Q], answer: Callable[[Q], Awaitable[Struct | None]]) -> RequestHandler:
    """Return a handler for requests of this type; if ``answer`` returns None, another process may reply."""

    async def handle(payload: bytes) -> bytes | None:
        message = decode_as(kind, payload)
        reply = None if isinstance(message, Rejected) else await answer(message)
        return None if reply is None else encode(reply)

    return handle
