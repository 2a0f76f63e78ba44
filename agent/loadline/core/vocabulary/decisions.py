"""What was decided: how many workers each pool of a model should have, and which of them are to go.

All but the store's revision is sent to scalers as it is, and kept in the store.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from loadline.core.vocabulary.scalars import Count, Name, Role, Workers

ApplyStatus = Literal["accepted", "progress", "done", "refused"]


class Victim(Struct, frozen=True):
    """A worker on its way out. A later worker of the same name is another one."""

    worker: Name
    incarnation: Count


class PoolTarget(Struct, frozen=True, omit_defaults=True):
    """What one pool should be."""

    pool: Name
    role: Role
    replicas: Annotated[Workers, Meta(description="Workers that there should be, not counting the victims.")]
    previous: Annotated[Workers, Meta(description="Workers that there should have been until now.")]
    victims: Annotated[
        tuple[Victim, ...],
        Meta(
            max_length=10_000,
            description="Workers on their way out: delete one once it says `drained`, or at drain_ttl_ms.",
        ),
    ] = ()


class Decision(Struct, frozen=True, omit_defaults=True):
    """A committed scaling decision: all pools of one model at once, absolute counts."""

    decision_id: Annotated[str, Meta(min_length=1, max_length=64, description="Hash of model, epoch and sequence.")]
    model: Name
    epoch: Annotated[Count, Meta(description="The leader's term: the create revision of its key.")]
    sequence: Annotated[Count, Meta(description="Rises with every decision of the model.")]
    issued_at_ms: Annotated[Count, Meta(description="Unix time at which it was decided.")]
    expires_at_ms: Annotated[Count, Meta(description="Unix time after which it must not be applied.")]
    targets: Annotated[tuple[PoolTarget, ...], Meta(max_length=256)]
    reasons: Annotated[tuple[str, ...], Meta(max_length=64, description="Codes, the strongest first.")]
    drain_ttl_ms: Annotated[Count, Meta(description="How long a victim may take to drain.")] = 0


class StoredDecision(Struct, frozen=True):
    """A decision as the store holds it."""

    decision: Decision
    revision: int
