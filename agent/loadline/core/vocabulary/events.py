"""What happened: one frozen Struct for each fact that reaches the controller.

Events are the only input of the core and the content of the journal, so each is small, immutable and encodable.
"""

from msgspec import Raw, Struct

from loadline.core.vocabulary.allocations import Allocation
from loadline.core.vocabulary.decisions import ApplyStatus, StoredDecision
from loadline.core.vocabulary.forecasts import Forecast
from loadline.core.vocabulary.learned import LearnedState
from loadline.core.vocabulary.migrations import (
    MigrationEndpoint,
    MigrationFailure,
    MigrationRefusal,
    MigrationReportPhase,
)
from loadline.core.vocabulary.samples import RegisteredWorker, TrafficSample, WorkerSample


class Event(Struct, frozen=True, tag=True, tag_field="type", omit_defaults=True, gc=False):
    """Base of all events; the tag is the class name."""


class LoadReported(Event, frozen=True):
    """A worker published samples, oldest first."""

    model: str
    pool: str
    worker: str
    incarnation: int
    samples: list[WorkerSample]


class TrafficReported(Event, frozen=True):
    """A frontend published an interval."""

    model: str
    frontend: str
    incarnation: int
    sample: TrafficSample


class RegistryRead(Event, frozen=True):
    """The whole registry was read: workers that are not in it are gone."""

    workers: list[RegisteredWorker]


class WorkerRegistered(Event, frozen=True):
    """A worker appeared in the registry, or changed its record."""

    worker: RegisteredWorker


class WorkerDeregistered(Event, frozen=True):
    """A worker's key is gone: its lease was revoked or ran out."""

    model: str
    pool: str
    worker: str


class LeadershipWon(Event, frozen=True):
    """A campaign succeeded. ``asked_at_ms`` is when it was asked for, so the lease is at least that old."""

    scope: str
    epoch: int
    lease_id: int
    asked_at_ms: int


class CampaignLost(Event, frozen=True):
    """Another agent leads, or the store could not be asked."""

    scope: str
    leader: str
    detail: str = ""


class LeaseRenewed(Event, frozen=True):
    """The leader's lease was extended. ``asked_at_ms`` is when the renewal was asked for."""

    scope: str
    lease_id: int
    asked_at_ms: int


class LeaseRenewalFailed(Event, frozen=True):
    """The leader's lease could not be extended; ``lost`` when the store says that it is gone."""

    scope: str
    lease_id: int
    lost: bool
    detail: str = ""


class LeaderChanged(Event, frozen=True):
    """The leader's key changed hands, or vanished (``leader`` empty, ``epoch`` 0), as of a revision of the store."""

    scope: str
    leader: str
    epoch: int
    revision: int


class DecisionsRead(Event, frozen=True):
    """All decisions were read back from the store as of ``revision``; a model that is not in it has none."""

    request: int
    decisions: list[StoredDecision]
    revision: int
    unreadable: dict[str, int] = {}
    """Models whose key holds something else, and the revision of that."""


class DecisionsUnread(Event, frozen=True):
    """The decisions could not be read."""

    request: int
    detail: str


class DecisionCommitted(Event, frozen=True):
    """The store took a decision of ours."""

    decision_id: str
    model: str
    revision: int


class CommitRefused(Event, frozen=True):
    """The store did not take it: the epoch or the revision was no longer ours, or it was not reached at all."""

    decision_id: str
    model: str
    fenced: bool
    detail: str = ""


class CommitUnknown(Event, frozen=True):
    """The store may or may not have taken it."""

    decision_id: str
    model: str
    detail: str = ""


class DecisionAnswered(Event, frozen=True):
    """A scaler said what it does with a decision."""

    decision_id: str
    model: str
    epoch: int
    sequence: int
    scaler: str
    status: ApplyStatus
    observed: dict[str, int]
    detail: str = ""


class DrainAnswered(Event, frozen=True):
    """A worker answered a drain command; ``accepted`` is None where no answer came in time."""

    model: str
    pool: str
    worker: str
    drain_id: str
    accepted: bool | None
    detail: str = ""


class WorkerDrained(Event, frozen=True):
    """A worker has nothing left to do."""

    model: str
    pool: str
    worker: str
    incarnation: int


class MigrationAnswered(Event, frozen=True):
    """A worker answered a migrate command; ``accepted`` is None where no answer came in time."""

    command_id: str
    model: str
    accepted: bool | None
    reason: MigrationRefusal | None = None
    requests: int = 0
    """Chosen by the source."""
    tokens: int = 0
    """Of KV cache that these have."""
    detail: str = ""


class MigrationReported(Event, frozen=True):
    """A source says how far a move is."""

    command_id: str
    model: str
    epoch: int
    source: MigrationEndpoint
    destination: MigrationEndpoint
    trigger: str
    phase: MigrationReportPhase
    requests: int
    """Chosen by the source."""
    moved: int
    """Of these, the destination has them now."""
    failed: int
    """Of these, they stay where they are."""
    tokens: int
    """Of KV cache that were moved."""
    took_ms: int
    """Since the source accepted."""
    reason: MigrationFailure = ""
    detail: str = ""


class DrainRequested(Event, frozen=True):
    """An operator wants one worker emptied."""

    model: str
    pool: str
    worker: str
    by: str


class PauseRequested(Event, frozen=True):
    """An operator wants a model paused or resumed."""

    model: str
    paused: bool
    by: str


class AnnouncementRequested(Event, frozen=True):
    """A scaler that has just started wants to know what stands."""

    model: str
    by: str


class PausesRead(Event, frozen=True):
    """The whole list of paused models, by name, with who paused them."""

    paused: dict[str, str]


class PauseChanged(Event, frozen=True):
    """A model's pause key was written or removed."""

    model: str
    paused: bool
    by: str = ""


class LearnedRead(Event, frozen=True):
    """All that is kept of what models have taught, by model."""

    learned: dict[str, LearnedState]


class LearnedChanged(Event, frozen=True):
    """What is kept of one model was written, or was removed or cannot be read (None)."""

    model: str
    learned: LearnedState | None


class ForecastFitted(Event, frozen=True):
    """A predictor answered each question, in their order; None where nothing is known of the series."""

    model: str
    request: int
    forecasts: list[Forecast | None]


class ForecastFailed(Event, frozen=True):
    """Nobody could be asked."""

    model: str
    request: int
    detail: str = ""


class AllocationSolved(Event, frozen=True):
    """Who is to get how much of what is short."""

    request: int
    allocation: Allocation


class AllocationFailed(Event, frozen=True):
    """No allocation was found in time, or nobody could be asked."""

    request: int
    detail: str = ""


class StoreConnectionChanged(Event, frozen=True):
    """The store can be reached, or not."""

    connected: bool


class BusConnectionChanged(Event, frozen=True):
    """The bus can be reached, or not."""

    connected: bool


class SettingsChanged(Event, frozen=True):
    """The configuration was read again. ``settings`` is the JSON of the ``Settings``, which events know nothing of."""

    settings: Raw
    kept: list[str] = []
    """Keys that were changed too and are obeyed once, when an agent starts."""


class SettingsRefused(Event, frozen=True):
    """The configuration was read again and cannot be used."""

    detail: str


class ShutdownRequested(Event, frozen=True):
    """The process was asked to stop: nothing new is begun, leadership is handed over."""


AnyEvent = (
    LoadReported
    | TrafficReported
    | RegistryRead
    | WorkerRegistered
    | WorkerDeregistered
    | LeadershipWon
    | CampaignLost
    | LeaseRenewed
    | LeaseRenewalFailed
    | LeaderChanged
    | DecisionsRead
    | DecisionsUnread
    | DecisionCommitted
    | CommitRefused
    | CommitUnknown
    | DecisionAnswered
    | DrainAnswered
    | WorkerDrained
    | MigrationAnswered
    | MigrationReported
    | DrainRequested
    | PauseRequested
    | AnnouncementRequested
    | PausesRead
    | PauseChanged
    | LearnedRead
    | LearnedChanged
    | ForecastFitted
    | ForecastFailed
    | AllocationSolved
    | AllocationFailed
    | StoreConnectionChanged
    | BusConnectionChanged
    | SettingsChanged
    | SettingsRefused
    | ShutdownRequested
)
