"""Scaling decisions: target replicas for every pool of a model, and the workers to remove.

``Decision`` is stored in etcd and sent to scalers unchanged.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from loadline.core.vocabulary.scalars import Count, Name, Role, Workers

ApplyStatus = Literal["accepted", "progress", "done", "refused"]
VictimRule = Literal["named", "newest", "highest_ordinal", "unknown"]
"""Rule by which a scaler's platform selects the workers to remove.

``named``: those that the decision names. ``newest``: those that started last. ``highest_ordinal``: those with the
highest number at the end of their name. ``unknown``: any, so that a drain would reach other workers than the removal.
"""


class Victim(Struct, frozen=True):
    """A worker selected for removal, identified by name and incarnation."""

    worker: Name
    incarnation: Count


class PoolTarget(Struct, frozen=True, omit_defaults=True):
    """Target of one pool."""

    pool: Name
    role: Role
    replicas: Annotated[
        Workers, Meta(description="Desired workers that are started in this pool, without the victims.")
    ]
    previous: Annotated[Workers, Meta(description="Desired workers before this decision.")]
    victims: Annotated[
        tuple[Victim, ...],
        Meta(
            max_length=10_000,
            description="Workers to remove; delete each when it reports `drained`, or after drain_ttl_ms.",
        ),
    ] = ()
    victim_rule: Annotated[
        VictimRule,
        Meta(description="Rule by which the victims were selected; refuse the decision if the platform has another."),
    ] = "named"


class Decision(Struct, frozen=True, omit_defaults=True):
    """A committed scaling decision: absolute counts for all pools of one model."""

    decision_id: Annotated[str, Meta(min_length=1, max_length=64, description="Hash of model, epoch and sequence.")]
    model: Name
    epoch: Annotated[Count, Meta(description="Number of the leader's term, higher than those of all terms before.")]
    sequence: Annotated[Count, Meta(description="Number of the decision, increasing per model.")]
    issued_at_ms: Annotated[Count, Meta(description="Unix time of the decision, in ms.")]
    expires_at_ms: Annotated[Count, Meta(description="Unix time in ms after which a scaler must not apply it.")]
    targets: Annotated[tuple[PoolTarget, ...], Meta(max_length=256)]
    reasons: Annotated[tuple[str, ...], Meta(max_length=64, description="Reason codes, strongest first.")]
    drain_ttl_ms: Annotated[Count, Meta(description="Time that a victim has to drain.")] = 0


class StoredDecision(Struct, frozen=True):
    """A decision with the revision of its key in the store."""

    decision: Decision
    revision: int
