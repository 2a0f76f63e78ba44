"""Effects: requests of the controller to the runtime.

The runtime executes effects and returns their results as events. An effect is complete: its execution needs no other
input.
"""

from msgspec import Struct

from loadline.core.vocabulary.allocations import AllocationProblem
from loadline.core.vocabulary.decisions import Decision
from loadline.core.vocabulary.forecasts import ForecastQuery
from loadline.core.vocabulary.learned import LearnedState
from loadline.core.vocabulary.migrations import Migration
from loadline.core.vocabulary.scalars import Role


class Effect(Struct, frozen=True, tag=True, tag_field="type", omit_defaults=True):
    """Base of all effects; the class name is the tag."""


class Campaign(Effect, frozen=True):
    """Try once to become leader; results in ``LeadershipWon`` or ``CampaignLost``."""

    scope: str
    ttl_s: int
    requested_at_ms: int
    epoch_min: int
    """Lowest epoch of the term; it is also above the epoch in the store."""
    depose: int = 0
    """Mod revision of a leader's key that was not written for too long: if it still has it, remove the key first."""
    layout: str = ""
    """Partition of the models into shards. Agents with another one must not lead; empty: one agent leads all models."""


class RenewLease(Effect, frozen=True):
    """Renew the leader's lease, and write its key again if it has this lease: others may renew it, but not write.

    Results in ``LeaseRenewed`` or ``LeaseRenewalFailed``.
    """

    scope: str
    lease_id: int
    requested_at_ms: int


class Resign(Effect, frozen=True):
    """Revoke the leader's lease. Without a result: if the store is unreachable, the lease expires."""

    scope: str
    lease_id: int


class RenewPresence(Effect, frozen=True):
    """Renew the lease of this agent's presence key, or write the key with a new one; results in ``PresenceRenewed``."""

    lease_id: int
    """0: there is no lease yet."""
    ttl_s: int


class LeavePresence(Effect, frozen=True):
    """Revoke the lease of this agent's presence key. Without a result: if the store is unreachable, it expires."""

    lease_id: int


class FollowReports(Effect, frozen=True):
    """Subscribe to the reports of these models, and to no others; results in ``BusConnectionChanged``."""

    models: list[str]


class ReadDecisions(Effect, frozen=True):
    """Read all decisions with linearizable consistency.

    Results in ``DecisionsRead`` or ``DecisionsUnread`` with the same ``request``.
    """

    request: int


class CommitDecision(Effect, frozen=True):
    """Write a decision if the leader key has this lease and the model's key has ``expected_revision`` (0: no key).

    Results in ``DecisionCommitted``, ``CommitRefused`` or ``CommitUnknown``.
    """

    decision: Decision
    scope: str
    lease_id: int
    expected_revision: int


class AnnounceDecision(Effect, frozen=True):
    """Publish a committed decision that scalers may apply for another ``ttl_ms``."""

    decision: Decision
    ttl_ms: int


class SendDrain(Effect, frozen=True):
    """Ask a worker to drain; results in ``DrainAnswered``."""

    model: str
    pool: str
    worker: str
    role: Role
    incarnation: int
    drain_id: str
    epoch: int
    ttl_ms: int


class SendMigrate(Effect, frozen=True):
    """Ask the source of a migration to start it; results in ``MigrationAnswered``."""

    migration: Migration
    ttl_ms: int
    """Time limit of the whole migration."""
    timeout_ms: int
    """Time limit of the source's reply."""


class RemoveWorker(Effect, frozen=True):
    """Remove the key of a worker that does not leave, so that routers drop it; the registry reports the result.

    Its lease is not revoked: whoever registers a worker chooses the lease, which may hold keys of others.
    """

    model: str
    pool: str
    worker: str
    lease_id: int
    """Lease of the key; a key under another one stays."""


class WritePause(Effect, frozen=True):
    """Write or remove the pause key of a model if the leader key has this lease.

    So a write that is late cannot undo that of a later leader.
    """

    model: str
    paused: bool
    by: str
    request: int
    scope: str
    lease_id: int


class SaveLearned(Effect, frozen=True):
    """Store the learned state of a model if the leader key has this lease; the registry reports the result."""

    model: str
    learned: LearnedState
    scope: str
    lease_id: int


class FitForecast(Effect, frozen=True):
    """Fit predictors; results in ``ForecastFitted`` or ``ForecastFailed`` with the same ``request``."""

    model: str
    request: int
    queries: list[ForecastQuery]


class SolveAllocation(Effect, frozen=True):
    """Solve an allocation problem exactly.

    Results in ``AllocationSolved`` or ``AllocationFailed`` with the same ``request``.
    """

    request: int
    problem: AllocationProblem
    time_limit_ms: int


class RaiseAlarm(Effect, frozen=True):
    """Alert operators: log a warning and count it by kind."""

    kind: str
    model: str
    text: str


AnyEffect = (
    Campaign
    | RenewLease
    | Resign
    | RenewPresence
    | LeavePresence
    | FollowReports
    | ReadDecisions
    | CommitDecision
    | AnnounceDecision
    | SendDrain
    | SendMigrate
    | RemoveWorker
    | WritePause
    | SaveLearned
    | FitForecast
    | SolveAllocation
    | RaiseAlarm
)
