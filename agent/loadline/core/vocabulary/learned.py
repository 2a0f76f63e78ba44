"""Learned state of a model, stored in etcd so that a new leader starts with it."""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from loadline.core.vocabulary.decisions import VictimRule
from loadline.core.vocabulary.scalars import Name

DATA_BYTES_MAX: Final = 262_144
"""Largest planner state that is stored; etcd limits a request to 1.5 MiB."""
START_UPS_MAX: Final = 8
"""Number of startup times kept for each pool."""

_StartUp = Annotated[int, Meta(ge=0, le=2**53)]


class LearnedState(Struct, frozen=True):
    """Facts about the pools of a model, and the state of its planner."""

    version: Annotated[Literal[1], Meta(description="Version of this layout; other versions are ignored.")] = 1
    start_ups_ms: Annotated[
        dict[Name, Annotated[list[_StartUp], Meta(max_length=START_UPS_MAX)]],
        Meta(max_length=256, description="Latest times from a scale-up until all workers of the pool were ready."),
    ] = {}
    victims: Annotated[
        dict[Name, VictimRule],
        Meta(max_length=256, description="Rules by which the platforms of pools select the workers to remove."),
    ] = {}
    planner: Annotated[str, Meta(max_length=64, description="Planner that wrote `data`; other planners ignore it.")] = (
        ""
    )
    data: Annotated[bytes, Meta(max_length=DATA_BYTES_MAX, description="State of that planner, base64.")] = b""
