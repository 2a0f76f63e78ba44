"""Settings of the guardrails of one model."""

from typing import Annotated, Final

from msgspec import Meta, Struct

from loadline.core.vocabulary.scalars import WORKERS_MAX

NotNegative = Annotated[int, Meta(ge=0)]


class GuardrailKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Guardrails of one model. With the planner auto, which paces itself, keys that are not set limit nothing."""

    step_up_max: Annotated[int, Meta(ge=1, description="Maximum workers added to a pool by one decision.")] = 8
    step_down_max: Annotated[int, Meta(ge=1, description="Maximum workers removed from a pool by one decision.")] = 1
    stabilisation_ms: Annotated[
        NotNegative, Meta(description="A pool never shrinks below the highest recommendation of this window.")
    ] = 60_000
    cooldown_up_ms: Annotated[
        NotNegative,
        Meta(
            description="Minimum time between a change of a pool and its next growth; 0: a further step follows as "
            "soon as the last one is committed."
        ),
    ] = 0
    cooldown_down_ms: Annotated[
        NotNegative, Meta(description="Minimum time between a change of a pool and its next shrink.")
    ] = 5_000
    warm_up_ms: Annotated[
        NotNegative, Meta(description="No shrink until data has been complete for this long, after a start or a gap.")
    ] = 60_000


UNPACED: Final = GuardrailKnobs(
    step_up_max=WORKERS_MAX, step_down_max=WORKERS_MAX, stabilisation_ms=0, cooldown_down_ms=0, warm_up_ms=0
)
"""Guardrails that neither delay nor divide changes, for planners that do both themselves."""


class HardLimits(Struct, frozen=True):
    """Hard limits of one model, in addition to the replica bounds of its pools."""

    quorum_ratio: float
    gpu_budget_min: int
    gpu_budget_max: int | None
