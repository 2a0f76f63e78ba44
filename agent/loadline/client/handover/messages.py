"""Messages between the source, the destination and the frontend of a request that is handed over."""

from msgspec import Struct

from loadline.core.vocabulary.scalars import Name


class RoomRequest(Struct, frozen=True):
    """Request of a source to reserve a slot and KV cache for a request. Answered by ``RoomReply``."""

    request_id: str
    incarnation: int
    """Incarnation of the destination."""
    kv_tokens: int
    """KV cache of the request now, in tokens."""
    ttl_ms: int
    """Time for which the reservation holds; 0 releases it."""
    kv_tokens_max: int | None = None
    """KV cache of the request at its end, in tokens; None: unknown."""


class RoomReply(Struct, frozen=True):
    """Answer of a destination to ``RoomRequest``."""

    granted: bool


class HandedRequest(Struct, frozen=True):
    """Stopped request, with all that another worker needs to run it."""

    request_id: str
    frontend: Name
    """Name of the frontend that decides who owns it."""
    hop: int
    """Number of the ownership under which it runs next; its output carries it."""
    migrations: int
    """Number of migrations so far, this one included."""
    state: bytes
    """State of the request, in the engine's own encoding."""


class HandoverRequest(Struct, frozen=True):
    """Request of a source to claim and run a request. Answered by ``HandoverReply``."""

    request: HandedRequest
    incarnation: int
    """Incarnation of the destination."""


class HandoverReply(Struct, frozen=True):
    """Answer of a destination to ``HandoverRequest``."""

    accepted: bool
    """True: the frontend has granted the destination's claim."""


class ClaimRequest(Struct, frozen=True):
    """Claim of a worker to the ownership of a request under a hop. Answered by ``ClaimReply``."""

    request_id: str
    worker: Name
    incarnation: int
    hop: int


class ClaimReply(Struct, frozen=True):
    """Answer of a frontend to ``ClaimRequest``, with the owner of the request."""

    granted: bool
    worker: str = ""
    """Empty: the request has no owner, because it ended or was never known."""
    incarnation: int = 0
