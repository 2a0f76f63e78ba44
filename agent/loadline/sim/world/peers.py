"""Requests and replies between workers and frontends, on subjects that only the simulation uses."""

from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from loadline.sim.world.bus import BusConnection
from loadline.wire.codec import encode

TIMEOUT_S: Final = 2.0
"""Time limit of a reply."""

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
