"""What workers and frontends say to each other about a request that moves, on subjects of the simulation alone.

Real engines have ways of their own for this. The frontend, which holds the user's stream, is asked who owns a request.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import msgspec
from msgspec import Struct

from loadline.core.vocabulary.samples import WorkerRecord
from loadline.errors import BusUnavailable
from loadline.ports import RequestHandler
from loadline.sim.engine import Request
from loadline.sim.world.bus import BusConnection
from loadline.sim.world.tasks import sleep
from loadline.sim.world.timeline import Timeline
from loadline.wire.codec import Rejected, decode_as, encode
from loadline.wire.subjects import encode_token

TIMEOUT_S: Final = 2.0
"""How long whoever is asked may take to answer."""
_AGAIN_MS: Final = 1_000.0

Q = TypeVar("Q", bound=Struct)
A = TypeVar("A", bound=Struct)


class Room(Struct, frozen=True):
    """Is there room for a request? Asked by the worker that has it."""

    request_id: str
    incarnation: int
    """Of the worker that is asked."""
    kv_tokens: int
    """That its cache has now."""
    kv_tokens_max: int
    """That it will have in the end."""
    ttl_ms: int
    """For so long the room is kept; 0: it is not needed any more."""


class Handover(Struct, frozen=True):
    """Take this request, as it is now, under the hop that it then has."""

    request: Request
    incarnation: int
    """Of the worker that is to have it."""


class Claim(Struct, frozen=True):
    """Be it mine. Asked of the frontend by the worker that wants to run it."""

    request_id: str
    worker: str
    incarnation: int
    hop: int


class Said(Struct, frozen=True):
    """Yes or no."""

    yes: bool


class Owned(Struct, frozen=True):
    """Whether it is yours, and else whose."""

    yes: bool
    worker: str = ""
    incarnation: int = 0


def room_at(worker: str) -> str:
    """Where a worker is asked for room."""
    return f"sim.room.{encode_token(worker)}"


def handover_to(worker: str) -> str:
    """Where a worker takes requests in."""
    return f"sim.handover.{encode_token(worker)}"


def claims_of(model: str) -> str:
    """Where the frontend of a model is asked."""
    return f"sim.claim.{encode_token(model)}"


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


async def claim(timeline: Timeline, port: BusConnection, record: WorkerRecord, request_id: str, hop: int) -> Owned:
    """Ask the frontend for a request until it answers: until then nobody may run it."""
    wanted = Claim(request_id, record.worker, record.incarnation, hop)
    while True:
        try:
            return await ask(port, claims_of(record.model), wanted, Owned)
        except BusUnavailable:
            await sleep(timeline, _AGAIN_MS)
