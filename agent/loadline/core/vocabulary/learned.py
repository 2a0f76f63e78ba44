"""What a model has taught its agents, as it is kept in the store: a new leader need not learn it again."""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from loadline.core.vocabulary.scalars import Name

DATA_BYTES_MAX: Final = 262_144
"""A planner that has learned more keeps it to itself: a value of etcd is 1.5 MiB at most."""
START_UPS: Final = 8
"""Start-ups of a pool that are remembered."""

_StartUp = Annotated[int, Meta(ge=0, le=2**53)]


class LearnedState(Struct, frozen=True):
    """What is known of a model's pools and engines, and by which planner."""

    version: Annotated[Literal[1], Meta(description="That of this layout: what says another one is ignored.")] = 1
    start_ups_ms: Annotated[
        dict[Name, Annotated[list[_StartUp], Meta(max_length=START_UPS)]],
        Meta(max_length=256, description="By pool: the last few times from a growth until all its workers were ready."),
    ] = {}
    planner: Annotated[str, Meta(max_length=64, description="Whose `data` it is; no other planner reads it.")] = ""
    data: Annotated[bytes, Meta(max_length=DATA_BYTES_MAX, description="What that planner says of itself, base64.")] = (
        b""
    )
