"""Messages between the gateway and the workers of the demo.

The gateway sends requests to ``<root>.demo.submit.<worker>`` and receives their events on
``<root>.demo.result.<gateway>``. One message carries everything of a tick. Messages may be lost: a worker regularly
lists the requests that it holds, and the gateway restarts those that are missing. Requests that migrate are handed over
by ``client.handover``, on subjects below ``<root>.demo``.
"""

from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from loadline.core.vocabulary.scalars import Name
from loadline.sim.engine import EngineEvent, Request
from loadline.wire.subjects import encode_token

TICK_S: Final = 0.02
"""Time between two ticks, in which gateway and workers process what came and send what is due."""
HEARTBEAT_S: Final = 0.5
"""Time between two lists of the requests that a worker holds."""
ITEMS_MAX: Final = 1_024
"""Requests in one message, and of one worker, at most: at 130 bytes each half of the largest frame."""
# Engines run this far behind real time, so that a message is there before its virtual time has come, and latencies are
# exact whatever the transport takes: a tick to gather, a tick to hand out, 20 ms for the transport and the scheduler.
LAG_S: Final = 3 * TICK_S
DECODE_LAG_S: Final = 3 * LAG_S  # its requests come through the gateway from prefill workers, which lag themselves


class Submission(Struct, frozen=True):
    """A request that reaches the worker at a virtual time."""

    request: Request
    at_ms: float


class SubmitBatch(Struct, frozen=True):
    """Requests for one worker."""

    gateway: Name
    submissions: Annotated[list[Submission], Meta(max_length=ITEMS_MAX)]


class ResultBatch(Struct, frozen=True):
    """Events of a worker's requests."""

    worker: Name
    incarnation: int
    events: Annotated[list[EngineEvent], Meta(max_length=2 * ITEMS_MAX)]
    held: Annotated[list[str], Meta(max_length=2 * ITEMS_MAX)] | None = None
    """All requests that the worker holds after these events; None: this message does not list them."""
    leaving: bool = False
    """True: nothing more will come from this worker."""
    hops: Annotated[dict[str, int], Meta(max_length=2 * ITEMS_MAX)] = {}
    """Hops of the requests that were migrated, see ``client.handover.ownership``; the others have hop 0."""


_M = TypeVar("_M", bound=Struct)


def handover_prefix(root: str) -> str:
    """Return the first tokens of the subjects on which requests are handed over."""
    return f"{root}.demo"


def submit_subject(root: str, worker: str) -> str:
    """Return the subject of requests for a worker."""
    return f"{root}.demo.submit.{encode_token(worker)}"


def result_subject(root: str, gateway: str) -> str:
    """Return the subject of events for a gateway."""
    return f"{root}.demo.result.{encode_token(gateway)}"


def pack(message: Struct) -> bytes:
    """Encode a message."""
    return msgspec.msgpack.encode(message)


def unpack(kind: type[_M], payload: bytes) -> _M | None:
    """Decode a message of that kind; None: it is none."""
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
