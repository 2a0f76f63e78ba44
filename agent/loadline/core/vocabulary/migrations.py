"""Migration of requests between workers. ``Migration`` is sent to workers unchanged."""

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from loadline.core.vocabulary.scalars import Count, Name

MigrationRule = Literal["NUM_REQ", "TOKEN", "RATIO"]
"""Unit of ``Migration.value``: requests, tokens, or a fraction (0..1) of the KV cache."""
MigrationOrder = Literal["LCR", "FCR", "LR", "SR", "FCW", "FCWSR"]
"""Order of selection, as in Llumnix: running requests by last come, first come, longest or shortest (LCR, FCR, LR, SR);
waiting requests by first come (FCW), followed by the shortest running (FCWSR)."""
MigrationReportPhase = Literal["admitted", "copying", "switched", "done", "aborted"]
MigrationRefusal = Literal[
    "stale_epoch", "gone", "expired", "unsupported", "no_slots", "nothing_to_move", "destination_unknown"
]
"""Reason of a worker for not starting a migration."""
MigrationFailure = Literal["", "destination_refused", "destination_lost", "deadline", "finished", "withdrawn", "failed"]
"""Reason why a selected request stayed at the source; empty: none did. ``finished``: it completed first."""
ALL_REQUESTS: Final = -1.0
"""Value of the rule ``NUM_REQ`` for all migratable requests."""


class MigrationEndpoint(Struct, frozen=True):
    """Source or destination of a migration, identified by name and incarnation."""

    pool: Name
    worker: Name
    incarnation: Count


class Migration(Struct, frozen=True, omit_defaults=True):
    """Command to migrate requests between two workers of a model; the source selects them by rule and order."""

    command_id: Annotated[str, Meta(min_length=1, max_length=64, description="Hash of model, epoch and number.")]
    model: Name
    epoch: Annotated[
        Count, Meta(description="Term of the leader; a worker refuses commands with an older epoch than it has seen.")
    ]
    source: MigrationEndpoint
    destination: MigrationEndpoint
    trigger: Annotated[Name, Meta(description="Policy that planned the migration, or `drain`.")]
    rule: MigrationRule
    order: MigrationOrder
    value: Annotated[
        float, Meta(ge=-1, le=1e12, description="Requests (-1: all), tokens or a ratio, depending on the rule.")
    ]
    requests_max: Annotated[Count, Meta(description="Maximum requests, the free slots of the destination.")] = 1
    tokens_max: Annotated[Count | None, Meta(description="Maximum tokens, the free KV cache of the destination.")] = (
        None
    )
    hops_max: Annotated[Count, Meta(description="Migrations after which a request stays at its worker.")] = 3
