"""What the demo's gateway and workers say to each other, and the virtual time that they share.

A request goes to ``<root>.demo.submit.<worker>``, what becomes of it comes back on ``<root>.demo.result.<gateway>``.
One message carries everything of a tick. Messages may be lost: a worker says regularly what it holds, and what it
should hold and does not is sent again by the gateway.

A request that moves is announced on ``<root>.demo.room.<worker>``, handed over on ``<root>.demo.offer.<worker>``, and
claimed on ``<root>.demo.claim.<gateway>``; each is answered.
"""

import time
from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from loadline.core.vocabulary.scalars import Name
from loadline.sim.engine import EngineEvent, Request
from loadline.wire.subjects import encode_token

TICK_S: Final = 0.02
"""How often gateway and workers look at what came and send what is due."""
HEARTBEAT_S: Final = 0.5
"""How often a worker says what it holds."""
ITEMS_MAX: Final = 1_024
"""Most requests in one message, and most that one worker is given: at 130 bytes each half of the largest frame."""
# Engines run this far behind real time, so that a message is there before its virtual time has come, and latencies are
# exact whatever the transport takes: a tick to gather, a tick to hand out, 20 ms for the transport and the scheduler.
LAG_S: Final = 3 * TICK_S
DECODE_LAG_S: Final = 3 * LAG_S  # the hand-over comes from an engine that lags itself, through the gateway


class Submission(Struct, frozen=True):
    """A request that reaches the worker at this virtual time."""

    request: Request
    at_ms: float


class SubmitBatch(Struct, frozen=True):
    """Work for one worker."""

    gateway: Name
    submissions: Annotated[list[Submission], Meta(max_length=ITEMS_MAX)]


class ResultBatch(Struct, frozen=True):
    """What a worker did. ``held`` is everything it holds after that; ``leaving``: it will do nothing more.

    ``hops`` are those of the requests that were moved, see ``client.ownership``; the others have hop 0.
    """

    worker: Name
    incarnation: int
    events: Annotated[list[EngineEvent], Meta(max_length=2 * ITEMS_MAX)]
    held: Annotated[list[str], Meta(max_length=2 * ITEMS_MAX)] | None = None
    leaving: bool = False
    hops: Annotated[dict[str, int], Meta(max_length=2 * ITEMS_MAX)] = {}


class Room(Struct, frozen=True):
    """May a request with so many tokens of cache come within ``ttl_ms``? With 0: it will not. Answered by ``Said``."""

    request_id: str
    incarnation: int
    tokens: int
    ttl_ms: int


class Offer(Struct, frozen=True):
    """A request that was stopped, for this life of a worker to claim and run. Answered by ``Said``: it owns it."""

    gateway: Name
    incarnation: int
    submission: Submission


class Said(Struct, frozen=True):
    """The answer of a worker to ``Room`` and ``Offer``."""

    yes: bool


class Claim(Struct, frozen=True):
    """A worker wants to own a request under a hop. Answered by ``Owned``."""

    request_id: str
    worker: Name
    incarnation: int
    hop: int


class Owned(Struct, frozen=True):
    """Whether the claim was taken, and who owns the request; nobody where it is over."""

    taken: bool
    worker: str = ""
    incarnation: int = 0


_M = TypeVar("_M", bound=Struct)


def submit_subject(root: str, worker: str) -> str:
    """Where a worker takes requests."""
    return f"{root}.demo.submit.{encode_token(worker)}"


def result_subject(root: str, gateway: str) -> str:
    """Where a gateway hears what became of its requests."""
    return f"{root}.demo.result.{encode_token(gateway)}"


def room_subject(root: str, worker: str) -> str:
    """Where a worker says whether it has room for a request of another one."""
    return f"{root}.demo.room.{encode_token(worker)}"


def offer_subject(root: str, worker: str) -> str:
    """Where a worker is handed over requests of others."""
    return f"{root}.demo.offer.{encode_token(worker)}"


def claim_subject(root: str, gateway: str) -> str:
    """Where a gateway says who owns its requests."""
    return f"{root}.demo.claim.{encode_token(gateway)}"


def pack(message: Struct) -> bytes:
    """A message's bytes."""
    return msgspec.msgpack.encode(message)


def unpack(kind: type[_M], payload: bytes) -> _M | None:
    """A message of that kind; None when it is not one."""
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


class VirtualClock:
    """Time since the machine's start, ``speed`` times as fast: the same in all processes of one machine."""

    def __init__(self, speed: float) -> None:
        self.speed = speed

    def now_ms(self, behind_s: float = 0.0) -> float:
        """Virtual time in ms, of ``behind_s`` real seconds ago."""
        return (time.monotonic() - behind_s) * 1_000 * self.speed
