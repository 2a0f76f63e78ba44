"""Messages on the wire. These Structs are the source of ``schemas/``.

Adding an optional field is compatible; any other change is a new version. Unknown fields are ignored, so that an
older agent can read a newer worker's messages.
"""

from typing import Annotated

from msgspec import Meta, Struct

from loadline.core.migration.outcomes import PolicyReport
from loadline.core.vocabulary.decisions import ApplyStatus, Decision, VictimRule
from loadline.core.vocabulary.migrations import (
    Migration,
    MigrationEndpoint,
    MigrationFailure,
    MigrationRefusal,
    MigrationReportPhase,
)
from loadline.core.vocabulary.reasons import Explanation
from loadline.core.vocabulary.samples import TrafficSample, WorkerSample
from loadline.core.vocabulary.scalars import Count, Name, Role, Text, Workers
from loadline.core.vocabulary.status import AgentStatus, DecisionSummary

DecisionId = Annotated[str, Meta(min_length=1, max_length=64)]
CommandId = Annotated[str, Meta(min_length=1, max_length=64)]


class LoadReport(Struct, frozen=True, gc=False):
    """One or many samples of one worker, oldest first. Subject: ``<root>.v1.load.<model>.<pool>.<worker>``."""

    model: Name
    pool: Name
    worker: Name
    incarnation: Count
    samples: Annotated[list[WorkerSample], Meta(min_length=1, max_length=1024)]


class TrafficReport(Struct, frozen=True):
    """Traffic that a frontend saw in an interval. Subject: ``<root>.v1.traffic.<model>.<frontend>``."""

    model: Name
    frontend: Name
    incarnation: Count
    sample: TrafficSample


class ScalingDecision(Decision, frozen=True, omit_defaults=True, kw_only=True):
    """A committed decision, announced until it is applied or expires. Subject: ``<root>.v1.decision.<model>``."""

    ttl_ms: Annotated[Count, Meta(description="Time left to apply it, counted from receipt: needs no common clock.")]


class DecisionApplied(Struct, frozen=True, omit_defaults=True):
    """A scaler's answer to a decision. Subject: ``<root>.v1.applied.<model>``."""

    decision_id: DecisionId
    model: Name
    epoch: Count
    sequence: Count
    scaler: Name
    status: Annotated[ApplyStatus, Meta(description="accepted, progress, done or refused.")]
    observed: Annotated[dict[Name, Count], Meta(max_length=256, description="Observed workers by pool.")] = {}
    detail: Text = ""
    victims: Annotated[
        dict[Name, VictimRule],
        Meta(
            max_length=256,
            description="Rule by which the platform selects the workers to remove, by pool: named (absent too), newest,"
            " highest_ordinal or unknown. A refusal without rules changes none.",
        ),
    ] = {}
    in_force: Annotated[
        dict[Name, Workers],
        Meta(
            max_length=256,
            description="Replicas by pool that the scaler keeps, if it refuses a decision that is stale or whose leader"
            " does not know them.",
        ),
    ] = {}


class DrainCommand(Struct, frozen=True):
    """A command to drain. Subject (request): ``<root>.v1.drain.<model>.<pool>.<worker>``."""

    drain_id: DecisionId
    model: Name
    pool: Name
    worker: Name
    role: Role
    incarnation: Count
    epoch: Count
    ttl_ms: Annotated[Count, Meta(description="Time limit of the drain.")]


class DrainReply(Struct, frozen=True, omit_defaults=True):
    """A worker's answer to a drain command."""

    drain_id: DecisionId
    accepted: bool
    detail: Text = ""


class DrainReport(Struct, frozen=True, omit_defaults=True):
    """A report that a worker is drained. Subject: ``<root>.v1.drained.<model>.<pool>.<worker>``."""

    model: Name
    pool: Name
    worker: Name
    incarnation: Count
    drain_id: Annotated[str, Meta(max_length=64)] = ""


class MigrateCommand(Migration, frozen=True, omit_defaults=True, kw_only=True):
    """A command to migrate requests to a worker. Subject (request): ``<root>.v1.migrate.<model>.<pool>.<worker>``."""

    ttl_ms: Annotated[Count, Meta(description="Time limit of the whole migration; requests not migrated by then stay.")]


class MigrateReply(Struct, frozen=True, omit_defaults=True):
    """A worker's answer to a migrate command. A repeated command has the same answer and starts nothing."""

    command_id: CommandId
    accepted: bool
    reason: Annotated[MigrationRefusal | None, Meta(description="Reason of a refusal.")] = None
    requests: Annotated[Count, Meta(description="Requests that it has selected.")] = 0
    tokens: Annotated[Count, Meta(description="KV tokens of these requests.")] = 0
    detail: Text = ""


class MigrationReport(Struct, frozen=True, omit_defaults=True):
    """Progress of a migration, reported by its source. Subject: ``<root>.v1.migration.<model>.<pool>.<worker>``."""

    command_id: CommandId
    model: Name
    epoch: Annotated[Count, Meta(description="Epoch of the command.")]
    source: MigrationEndpoint
    destination: MigrationEndpoint
    trigger: Name
    phase: Annotated[
        MigrationReportPhase,
        Meta(
            description="admitted: the destination has capacity; copying; switched: a request runs at the destination; "
            "done: finished, with requests migrated; aborted: finished, with none migrated."
        ),
    ]
    requests: Annotated[Count, Meta(description="Requests that the source has selected.")]
    moved: Annotated[Count, Meta(description="Requests among these that run at the destination.")] = 0
    failed: Annotated[Count, Meta(description="Requests among these that stay at the source.")] = 0
    tokens: Annotated[Count, Meta(description="KV tokens migrated.")] = 0
    took_ms: Annotated[Count, Meta(description="Time since the source accepted, by its own clock.")] = 0
    reason: Annotated[MigrationFailure, Meta(description="Reason of the latest failure.")] = ""
    detail: Text = ""


class StatusRequest(Struct, frozen=True, omit_defaults=True):
    """A request for an agent's status. With many models the answer has several parts, and gives their number."""

    part: Annotated[Count, Meta(description="Index of the part, from 0.")] = 0


class ExplainRequest(Struct, frozen=True, omit_defaults=True):
    """A request for explanations. Without an id: the newest decision and the newest hold of every model."""

    decision_id: Annotated[str, Meta(max_length=64)] = ""
    model: Annotated[str, Meta(max_length=128)] = ""
    earlier: Annotated[bool, Meta(description="Also the earlier decisions that the agent remembers.")] = False


class ExplainReply(Struct, frozen=True):
    """Explanations, newest first, and the last reports of the migration policies."""

    explanations: list[Explanation]
    migrations: Annotated[
        list[PolicyReport], Meta(description="Reports by model, group of workers and policy; none with an id.")
    ] = []
    shared: Annotated[
        bool, Meta(description="True if agents share the models: each replies for those that it leads.")
    ] = False


class DecisionsReply(Struct, frozen=True):
    """The latest decisions, newest first."""

    decisions: list[DecisionSummary]
    shared: Annotated[
        bool, Meta(description="True if agents share the models: each replies for those that it leads.")
    ] = False


class PauseCommand(Struct, frozen=True):
    """A command to pause or resume a model."""

    model: Name
    by: Text = ""


class AnnounceRequest(Struct, frozen=True):
    """A starting scaler's request for the current targets. Subject (request): ``<root>.v1.api.announce``."""

    models: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=1024)]
    by: Text = ""


class AnnounceReply(Struct, frozen=True, omit_defaults=True):
    """Answer to a request for the current targets."""

    accepted: bool
    detail: Text = ""
    models: Annotated[
        tuple[Name, ...],
        Meta(max_length=1024, description="Those that it announces; empty: all that were named."),
    ] = ()


class DrainOrder(Struct, frozen=True):
    """An operator's order to drain one worker."""

    model: Name
    pool: Name
    worker: Name
    by: Text = ""


class OperatorReply(Struct, frozen=True, omit_defaults=True):
    """Result of an operator's command."""

    accepted: bool
    detail: Text = ""


MESSAGES: dict[str, type[Struct]] = {
    "load_report": LoadReport,
    "traffic_report": TrafficReport,
    "scaling_decision": ScalingDecision,
    "decision_applied": DecisionApplied,
    "drain_command": DrainCommand,
    "drain_reply": DrainReply,
    "drain_report": DrainReport,
    "migrate_command": MigrateCommand,
    "migrate_reply": MigrateReply,
    "migration_report": MigrationReport,
    "agent_status": AgentStatus,
    "status_request": StatusRequest,
    "explain_request": ExplainRequest,
    "explain_reply": ExplainReply,
    "decisions_reply": DecisionsReply,
    "pause_command": PauseCommand,
    "announce_request": AnnounceRequest,
    "announce_reply": AnnounceReply,
    "drain_order": DrainOrder,
    "operator_reply": OperatorReply,
}
"""Schema name -> Struct: ``schemas/<name>.v1.json``."""
