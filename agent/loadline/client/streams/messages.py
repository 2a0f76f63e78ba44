"""Messages between gateways and workers about streams, and their subjects."""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from loadline.core.vocabulary.scalars import Count, Name
from loadline.wire.subjects import Subjects, encode_token

STREAMS_MAX: Final = 1_024
"""Streams in a report: with the longest names 230 KB, below the largest frame. Further ones stay where they are."""


class StreamProgress(Struct, frozen=True, omit_defaults=True):
    """A stream at a worker."""

    request_id: Name
    hop: Count
    prompt_tokens: Count
    output_tokens: Count
    """0 while it waits for its first token."""
    movable: bool = True
    hops: Count = 0
    """Migrations so far."""
    remaining_tokens: Count | None = None


class StreamReport(Struct, frozen=True):
    """All streams that a gateway has at a worker, by arrival."""

    gateway: Name
    worker: Name
    incarnation: Count
    streams: Annotated[list[StreamProgress], Meta(max_length=STREAMS_MAX)]


class StopStream(Struct, frozen=True):
    """Request of a worker to stop a stream that it owns. Answered by ``StopReply``; may be repeated."""

    request_id: Name
    worker: Name
    incarnation: Count
    hop: Count


class StopReply(Struct, frozen=True):
    """Answer of a gateway to ``StopStream``."""

    outcome: Literal["stopped", "later", "ended", "unmovable"]
    """``stopped``: the worker sees no more of it; ``later``: the next chunk will do; the others: it stays."""
    detail: str = ""


class StreamSubjects:
    """Subjects of the streams of one model.

    Args:
        root: Prefix of every NATS subject.
        model: The model.
    """

    def __init__(self, root: str, model: str) -> None:
        self.prefix = f"{Subjects(root).prefix}.streams.{encode_token(model)}"
        """First tokens of them, and of handovers."""

    def report(self, worker: str) -> str:
        """Return the subject of reports to a worker."""
        return f"{self.prefix}.report.{encode_token(worker)}"

    def stop(self, gateway: str) -> str:
        """Return the subject of stop requests to a gateway."""
        return f"{self.prefix}.stop.{encode_token(gateway)}"
