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


class Said(Struct, frozen=True):
    """Yes or no."""

    yes: bool


async def ask(port: BusConnection, subject: str, question: Struct, kind: type[A]) -> A:
    """Ask, and wait for the answer.

    Raises:
        BusUnavailable: There is none, so nobody knows what became of the question.
    """
    return msgspec.json.decode(await port.request(subject, encode(question), TIMEOUT_S), type=kind)


def answering(kind: type[Q], answer: Callable[[Q], Awaitable[Struct | None]]) -> RequestHandler:
    """Answers questions of a kind; where ``answer`` gives None, another process answers."""

    async def answered(payload: bytes) -> bytes | None:
        question = decode_as(kind, payload)
        said = None if isinstance(question, Rejected) else await answer(question)
        return None if said is None else encode(said)

    return answered
