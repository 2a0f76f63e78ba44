"""What to do: one frozen Struct for each wish of the controller.

The runtime performs effects and hands the result of each back as an event. An effect is complete: performing it needs
nothing but the effect itself.
"""

from msgspec import Struct

from loadline.core.vocabulary.allocations import AllocationProblem
from loadline.core.vocabulary.decisions import Decision
from loadline.core.vocabulary.forecasts import ForecastQuery
from loadline.core.vocabulary.learned import LearnedState
from loadline.core.vocabulary.migrations import Migration
from loadline.core.vocabulary.scalars import Role


class Effect(Struct, frozen=True, tag=True, tag_field="type", omit_defaults=True):
    """Base of all effects; the tag is the class name."""


class Campaign(Effect, frozen=True):
    """Try once to become leader. Answered by ``LeadershipWon`` or ``CampaignLost``."""

    scope: str
    ttl_s: int
    asked_at_ms: int


class RenewLease(Effect, frozen=True):
    """Extend the leader's lease. Answered by ``LeaseRenewed`` or ``LeaseRenewalFailed``."""

    scope: str
    lease_id: int
    asked_at_ms: int


class Resign(Effect, frozen=True):
    """Give the leader's lease back. Not answered: the lease runs out by itself if the store is away."""

    scope: str
    lease_id: int


class ReadDecisions(Effect, frozen=True):
    """Read all decisions, linearizably.

    Answered, with the same ``request``, by ``DecisionsRead`` or ``DecisionsUnread``.
    """

    request: int


class CommitDecision(Effect, frozen=True):
    """Write a decision if the leader key still has this epoch and the model's key this revision (0: no key).

    Answered by ``DecisionCommitted``, ``CommitRefused`` or ``CommitUnknown``.
    """

    decision: Decision
    scope: str
    expected_revision: int


class AnnounceDecision(Effect, frozen=True):
    """Publish a committed decision. ``ttl_ms`` is how long it may still be applied."""

    decision: Decision
    ttl_ms: int


class SendDrain(Effect, frozen=True):
    """Ask a worker to drain. Answered by ``DrainAnswered``."""

    model: str
    pool: str
    worker: str
    role: Role
    incarnation: int
    drain_id: str
    epoch: int
    ttl_ms: int


class SendMigrate(Effect, frozen=True):
    """Ask the source of a move to begin it. Answered by ``MoveAnswered``."""

    migration: Migration
    ttl_ms: int
    """How long the whole move may take."""
    timeout_ms: int
    """How long the source may take to answer."""


class RevokeWorkerLease(Effect, frozen=True):
    """Take a worker that does not answer out of the routers' sight. The registry reports the result."""

    worker: str
    lease_id: int


class WritePause(Effect, frozen=True):
    """Write or remove a model's pause key. The registry reports the result."""

    model: str
    paused: bool
    by: str


class SaveLearned(Effect, frozen=True):
    """Keep what a model has taught, if the leader key still has this epoch. The registry reports the result."""

    model: str
    learned: LearnedState
    scope: str
    epoch: int


class FitForecast(Effect, frozen=True):
    """Ask a predictor. Answered, with the same ``request``, by ``ForecastFitted`` or ``ForecastFailed``."""

    model: str
    request: int
    queries: list[ForecastQuery]


class SolveAllocation(Effect, frozen=True):
    """Ask for the best allocation.

    Answered, with the same ``request``, by ``AllocationSolved`` or ``AllocationFailed``.
    """

    request: int
    problem: AllocationProblem
    time_limit_ms: int


class RaiseAlarm(Effect, frozen=True):
    """Tell people: logged as a warning and counted by kind."""

    kind: str
    model: str
    text: str


AnyEffect = (
    Campaign
    | RenewLease
    | Resign
    | ReadDecisions
    | CommitDecision
    | AnnounceDecision
    | SendDrain
    | SendMigrate
    | RevokeWorkerLease
    | WritePause
    | SaveLearned
    | FitForecast
    | SolveAllocation
    | RaiseAlarm
)
