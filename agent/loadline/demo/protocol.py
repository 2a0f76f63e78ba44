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
"""Time between two ticks, at which gateway and workers process their inboxes and send their outboxes."""
HEARTBEAT_S: Final = 0.5
"""Time between two lists of the requests that a worker holds."""
ITEMS_MAX: Final = 1_024
"""Maximum number of requests in one message and of one worker: at 130 bytes each, half of the largest frame."""
# Engines lag real time by this, so that messages arrive before they are due in virtual time and latencies do not depend
# on the transport: one tick to send, one to receive, 20 ms for transport and scheduler.
LAG_S: Final = 3 * TICK_S
DECODE_LAG_S: Final = 3 * LAG_S  # its requests come via the gateway from prefill workers, which lag too


class Submission(Struct, frozen=True):
    """Request that reaches the worker at a virtual time."""

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
    """True: no more messages from this worker follow."""
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
    """Decode a message; None: it is invalid."""
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
