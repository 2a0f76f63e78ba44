"""Requests that are to move from one worker to another, and how far they have got. Sent to workers as it is."""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from loadline.core.vocabulary.scalars import Count, Name

MigrationRule = Literal["NUM_REQ", "TOKEN", "RATIO"]
"""What ``value`` counts: requests, their tokens, or their share (0..1) of the KV cache."""
MigrationOrder = Literal["LCR", "FCR", "LR", "SR", "FCW", "FCWSR"]
"""Who goes first: of those that run the last come, the first come, the longest, the shortest; of those that wait the
first come, alone or followed by the shortest that run."""
MigrationReportPhase = Literal["admitted", "copying", "switched", "done", "aborted"]
MigrationRefusal = Literal[
    "stale_epoch", "gone", "expired", "unsupported", "no_slots", "nothing_to_move", "destination_unknown"
]
"""Why a worker does not begin a move."""
MigrationFailure = Literal["", "destination_refused", "destination_lost", "deadline", "finished", "withdrawn", "failed"]
"""Why a request that was chosen stayed where it was; empty: none did. ``finished``: it ended first."""
ALL_REQUESTS: Final = -1.0
"""A ``value`` of the rule ``NUM_REQ``: as many as may."""


class MigrationEndpoint(Struct, frozen=True):
    """The worker at one end of a move. A later life of that name is another one."""

    pool: Name
    worker: Name
    incarnation: Count


class Migration(Struct, frozen=True, omit_defaults=True):
    """Move some requests from one worker to another of the same model. The source chooses which, by rule and order."""

    command_id: Annotated[str, Meta(min_length=1, max_length=64, description="Hash of model, epoch and number.")]
    model: Name
    epoch: Annotated[Count, Meta(description="The leader's term: a worker obeys none that is older than one it heard.")]
    source: MigrationEndpoint
    destination: MigrationEndpoint
    trigger: Annotated[Name, Meta(description="The policy that wants it, or `drain`.")]
    rule: MigrationRule
    order: MigrationOrder
    value: Annotated[float, Meta(ge=-1, le=1e12, description="Requests (-1: all), tokens or a ratio, by the rule.")]
    requests_max: Annotated[Count, Meta(description="Most requests: as many as the destination has slots.")] = 1
    tokens_max: Annotated[Count | None, Meta(description="Most tokens: as many as the destination has room.")] = None
    hops_max: Annotated[Count, Meta(description="A request that was moved so often stays.")] = 3
