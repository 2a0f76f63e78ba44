"""Rails over any proposal."""

from typing import Annotated

from msgspec import Meta, Struct

NotNegative = Annotated[int, Meta(ge=0)]


class GuardKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """The rails of one model."""

    step_up_max: Annotated[int, Meta(ge=1, description="Most workers added to a pool by one decision.")] = 8
    step_down_max: Annotated[int, Meta(ge=1, description="Most workers taken from a pool by one decision.")] = 1
    stabilisation_ms: Annotated[
        NotNegative, Meta(description="A shrink is never below the highest proposal of this window.")
    ] = 60_000
    cooldown_up_ms: Annotated[
        NotNegative, Meta(description="Least time between a change of a pool and its next growth.")
    ] = 0
    cooldown_down_ms: Annotated[
        NotNegative, Meta(description="Least time between a change of a pool and its next shrink.")
    ] = 0
    warm_up_ms: Annotated[
        NotNegative, Meta(description="No shrink before data was complete for this long, after a start or a gap.")
    ] = 60_000
