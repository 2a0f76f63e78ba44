"""What the demo's gateway and workers say to each other, and the virtual time that they share.

A request goes to ``<root>.demo.submit.<worker>``, what becomes of it comes back on ``<root>.demo.result.<gateway>``.
One message carries everything of a tick. Messages may be lost: a worker says regularly what it holds, and what it
should hold and does not is sent again by the gateway.
"""

import time
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from loadline.core.scalars import Name
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
    """What a worker did. ``held`` is everything it holds after that; ``leaving``: it will do nothing more."""

    worker: Name
    incarnation: int
    events: Annotated[list[EngineEvent], Meta(max_length=2 * ITEMS_MAX)]
    held: Annotated[list[str], Meta(max_length=2 * ITEMS_MAX)] | None = None
    leaving: bool = False


_submissions = msgspec.msgpack.Decoder(SubmitBatch)
_results = msgspec.msgpack.Decoder(ResultBatch)


def submit_subject(root: str, worker: str) -> str:
    """Where a worker takes requests."""
    return f"{root}.demo.submit.{encode_token(worker)}"


def result_subject(root: str, gateway: str) -> str:
    """Where a gateway hears what became of its requests."""
    return f"{root}.demo.result.{encode_token(gateway)}"


def pack(message: SubmitBatch | ResultBatch) -> bytes:
    """A message's bytes."""
    return msgspec.msgpack.encode(message)


def unpack_submissions(payload: bytes) -> SubmitBatch | None:
    """A batch of work; None when it is not one."""
    try:
        return _submissions.decode(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


def unpack_results(payload: bytes) -> ResultBatch | None:
    """A batch of results; None when it is not one."""
    try:
        return _results.decode(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None


class VirtualClock:
    """Time since the machine's start, ``speed`` times as fast: the same in all processes of one machine."""

    def __init__(self, speed: float) -> None:
        self.speed = speed

    def now_ms(self, behind_s: float = 0.0) -> float:
        """Virtual time in ms, of ``behind_s`` real seconds ago."""
        return (time.monotonic() - behind_s) * 1_000 * self.speed
