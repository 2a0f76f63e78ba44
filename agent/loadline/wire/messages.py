"""Every message on the wire. These Structs are the source of ``schemas/``.

A field is optional or it is there for ever: adding an optional one is compatible, anything else is a new version.
Unknown fields are ignored, so that an older agent reads a newer worker.
"""

from typing import Annotated

from msgspec import Meta, Struct

from loadline.core.migration.outcomes import PolicyReport
from loadline.core.vocabulary.decisions import ApplyStatus, Decision
from loadline.core.vocabulary.migrations import (
    Migration,
    MigrationEndpoint,
    MigrationFailure,
    MigrationRefusal,
    MigrationReportPhase,
)
from loadline.core.vocabulary.reasons import Explanation
from loadline.core.vocabulary.samples import TrafficSample, WorkerSample
from loadline.core.vocabulary.scalars import Count, Name, Role, Text
from loadline.core.vocabulary.status import AgentStatus, DecisionSummary

DecisionId = Annotated[str, Meta(min_length=1, max_length=64)]
CommandId = Annotated[str, Meta(min_length=1, max_length=64)]


class LoadReport(Struct, frozen=True):
    """One or many samples of one worker, oldest first. Subject: ``<root>.v1.load.<model>.<pool>.<worker>``."""

    model: Name
    pool: Name
    worker: Name
    incarnation: Count
    samples: Annotated[list[WorkerSample], Meta(min_length=1, max_length=1024)]


class TrafficReport(Struct, frozen=True):
    """What a frontend saw in an interval. Subject: ``<root>.v1.traffic.<model>.<frontend>``."""

    model: Name
    frontend: Name
    incarnation: Count
    sample: TrafficSample


class ScalingDecision(Decision, frozen=True, omit_defaults=True, kw_only=True):
    """A committed decision, announced until it is applied or expires. Subject: ``<root>.v1.decision.<model>``."""

    ttl_ms: Annotated[Count, Meta(description="How long it may still be applied, from now: needs no common clock.")]


class DecisionApplied(Struct, frozen=True, omit_defaults=True):
    """A scaler's answer to a decision. Subject: ``<root>.v1.applied.<model>``."""

    decision_id: DecisionId
    model: Name
    epoch: Count
    sequence: Count
    scaler: Name
    status: Annotated[ApplyStatus, Meta(description="accepted, progress, done or refused.")]
    observed: Annotated[dict[Name, Count], Meta(max_length=256, description="Workers that there are, by pool.")] = {}
    detail: Text = ""


class DrainCommand(Struct, frozen=True):
    """Empty yourself. Subject (request): ``<root>.v1.drain.<worker>``."""

    drain_id: DecisionId
    model: Name
    pool: Name
    worker: Name
    role: Role
    incarnation: Count
    epoch: Count
    ttl_ms: Annotated[Count, Meta(description="How long it may take.")]


class DrainReply(Struct, frozen=True, omit_defaults=True):
    """A worker's answer to a drain command."""

    drain_id: DecisionId
    accepted: bool
    detail: Text = ""


class DrainReport(Struct, frozen=True, omit_defaults=True):
    """A worker has nothing left to do. Subject: ``<root>.v1.drained.<worker>``."""

    model: Name
    pool: Name
    worker: Name
    incarnation: Count
    drain_id: Annotated[str, Meta(max_length=64)] = ""


class MigrateCommand(Migration, frozen=True, omit_defaults=True, kw_only=True):
    """Move requests of yours to another worker. Subject (request): ``<root>.v1.migrate.<worker>``."""

    ttl_ms: Annotated[Count, Meta(description="How long the whole move may take; past it, what was not moved stays.")]


class MigrateReply(Struct, frozen=True, omit_defaults=True):
    """A worker's answer to a migrate command. The same command again has the same answer, and begins nothing."""

    command_id: CommandId
    accepted: bool
    reason: Annotated[MigrationRefusal | None, Meta(description="Why not.")] = None
    requests: Annotated[Count, Meta(description="Requests that it has chosen.")] = 0
    tokens: Annotated[Count, Meta(description="KV tokens that these have.")] = 0
    detail: Text = ""


class MigrationReport(Struct, frozen=True, omit_defaults=True):
    """How far a move is, from its source. Subject: ``<root>.v1.migration.<worker>``."""

    command_id: CommandId
    model: Name
    epoch: Annotated[Count, Meta(description="That of the command.")]
    source: MigrationEndpoint
    destination: MigrationEndpoint
    trigger: Name
    phase: Annotated[
        MigrationReportPhase,
        Meta(
            description="admitted: the destination has room; copying; switched: a request is there now; done: it is "
            "over, and something was moved; aborted: it is over, and nothing was."
        ),
    ]
    requests: Annotated[Count, Meta(description="Requests that the source has chosen.")]
    moved: Annotated[Count, Meta(description="Of these, the destination has them now.")] = 0
    failed: Annotated[Count, Meta(description="Of these, they stay where they are.")] = 0
    tokens: Annotated[Count, Meta(description="KV tokens that were moved.")] = 0
    took_ms: Annotated[Count, Meta(description="Since the source accepted, by its own clock.")] = 0
    reason: Annotated[MigrationFailure, Meta(description="Why the newest of the failed ones failed.")] = ""
    detail: Text = ""


class StatusRequest(Struct, frozen=True, omit_defaults=True):
    """Ask how an agent is. Of many models the answer has several parts, and says how many."""

    part: Annotated[Count, Meta(description="Which one: 0 is the first.")] = 0


class ExplainRequest(Struct, frozen=True, omit_defaults=True):
    """Ask why. With no id: the newest decision, and the newest hold, of every model."""

    decision_id: Annotated[str, Meta(max_length=64)] = ""
    model: Annotated[str, Meta(max_length=128)] = ""


class ExplainReply(Struct, frozen=True):
    """The explanations asked for, newest first, and what the policies that move requests last saw."""

    explanations: list[Explanation]
    moves: Annotated[
        list[PolicyReport], Meta(description="By model, group of workers and policy; with an id: none.")
    ] = []


class DecisionsReply(Struct, frozen=True):
    """The latest decisions, newest first."""

    decisions: list[DecisionSummary]


class PauseCommand(Struct, frozen=True):
    """Pause or resume a model."""

    model: Name
    by: Text = ""


class AnnounceRequest(Struct, frozen=True):
    """A scaler that has just started asks for what stands. Subject (request): ``<root>.v1.api.announce``."""

    models: Annotated[tuple[Name, ...], Meta(min_length=1, max_length=1024)]
    by: Text = ""


class DrainOrder(Struct, frozen=True):
    """An operator's wish to empty one worker."""

    model: Name
    pool: Name
    worker: Name
    by: Text = ""


class OperatorReply(Struct, frozen=True, omit_defaults=True):
    """What became of an operator's command."""

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
    "drain_order": DrainOrder,
    "operator_reply": OperatorReply,
}
"""Schema name -> Struct: ``schemas/<name>.v1.json``."""
