"""Events, the only input of the core and the content of the journal: small, immutable and encodable facts."""

from msgspec import Raw, Struct

from loadline.core.vocabulary.allocations import Allocation
from loadline.core.vocabulary.decisions import ApplyStatus, StoredDecision, VictimRule
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
    """Base of all events; the class name is the tag."""


class LoadReported(Event, frozen=True):
    """Samples published by a worker, oldest first."""

    model: str
    pool: str
    worker: str
    incarnation: int
    samples: list[WorkerSample]


class TrafficReported(Event, frozen=True):
    """Traffic of one interval, published by a frontend."""

    model: str
    frontend: str
    incarnation: int
    sample: TrafficSample


class RegistryRead(Event, frozen=True):
    """The complete registry; workers that it does not list are gone."""

    workers: list[RegisteredWorker]


class WorkerRegistered(Event, frozen=True):
    """A worker's record was created or changed in the registry."""

    worker: RegisteredWorker


class WorkerDeregistered(Event, frozen=True):
    """A worker's key was removed: its lease was revoked or expired."""

    model: str
    pool: str
    worker: str


class LeadershipWon(Event, frozen=True):
    """A campaign succeeded. ``requested_at_ms`` is the time of its request, from which the TTL of the lease counts."""

    scope: str
    epoch: int
    lease_id: int
    requested_at_ms: int
    revision: int
    """Revision of the store at which the leader's key was written."""
    deposed: str = ""
    """Leader whose key was removed first, as it was not written any more."""


class CampaignLost(Event, frozen=True):
    """Another agent leads, and its key has the mod revision ``beat``, or the store was unreachable."""

    scope: str
    leader: str
    detail: str = ""
    beat: int = 0


class LeaseRenewed(Event, frozen=True):
    """The leader's lease was extended. ``requested_at_ms`` is the time of the request."""

    scope: str
    lease_id: int
    requested_at_ms: int


class LeaseRenewalFailed(Event, frozen=True):
    """The leader's lease was not extended; ``lost`` if the store no longer has it."""

    scope: str
    lease_id: int
    lost: bool
    detail: str = ""


class LeaderChanged(Event, frozen=True):
    """The leader's key was written, or removed (empty ``leader``, ``lease_id`` 0), at a revision of the store."""

    scope: str
    leader: str
    lease_id: int
    revision: int
    beat: int = 0
    """Mod revision of the leader's key; the leader writes it at each renewal of its lease."""
    epoch: int = 0
    """Epoch of the newest term in the store; 0: none."""
    store_went_back: bool = False
    """True if the store shows an older epoch or revision than before: it has lost data."""


class AgentsChanged(Event, frozen=True):
    """An agent joined or left: the names of all live agents, sorted."""

    agents: list[str]


class PresenceRenewed(Event, frozen=True):
    """The presence key of this agent was written under a lease; 0: it was not."""

    lease_id: int


class DecisionsRead(Event, frozen=True):
    """All decisions in the store at ``revision``; models that it does not list have none."""

    request: int
    decisions: list[StoredDecision]
    revision: int
    unreadable: dict[str, int] = {}
    """Revisions of keys that hold no readable decision, by model."""


class DecisionsUnread(Event, frozen=True):
    """Reading the decisions failed."""

    request: int
    detail: str


class DecisionCommitted(Event, frozen=True):
    """The store accepted a decision of this agent."""

    decision_id: str
    model: str
    revision: int


class CommitRefused(Event, frozen=True):
    """The store did not accept a decision: another epoch or revision (``fenced``), or it was unreachable."""

    decision_id: str
    model: str
    fenced: bool
    detail: str = ""


class CommitUnknown(Event, frozen=True):
    """A commit without a known result."""

    decision_id: str
    model: str
    detail: str = ""


class DecisionAnswered(Event, frozen=True):
    """A scaler reported the status of a decision; with a refusal, the replicas by pool that it keeps (``in_force``)."""

    decision_id: str
    model: str
    epoch: int
    sequence: int
    scaler: str
    status: ApplyStatus
    observed: dict[str, int]
    detail: str = ""
    victims: dict[str, VictimRule] = {}
    """Rules by which the scaler's platform selects the workers to remove, by pool; absent: ``named``."""
    in_force: dict[str, int] = {}


class DrainAnswered(Event, frozen=True):
    """A worker's reply to a drain command; ``accepted`` is None on a timeout."""

    model: str
    pool: str
    worker: str
    drain_id: str
    accepted: bool | None
    detail: str = ""


class WorkerDrained(Event, frozen=True):
    """A worker reported that its drain is complete."""

    model: str
    pool: str
    worker: str
    incarnation: int


class MigrationAnswered(Event, frozen=True):
    """A worker's reply to a migrate command, with the selected ``requests``; ``accepted`` is None on a timeout."""

    command_id: str
    model: str
    accepted: bool | None
    reason: MigrationRefusal | None = None
    requests: int = 0
    tokens: int = 0
    """KV tokens of the selected requests."""
    detail: str = ""


class MigrationReported(Event, frozen=True):
    """Progress of a migration by its source: ``moved`` and ``failed`` of its ``requests``, and their KV ``tokens``."""

    command_id: str
    model: str
    epoch: int
    source: MigrationEndpoint
    destination: MigrationEndpoint
    trigger: str
    phase: MigrationReportPhase
    requests: int
    moved: int
    failed: int
    tokens: int
    took_ms: int
    """Time since the source accepted."""
    reason: MigrationFailure = ""
    detail: str = ""


class DrainRequested(Event, frozen=True):
    """An operator requested the drain of one worker."""

    model: str
    pool: str
    worker: str
    by: str


class PauseRequested(Event, frozen=True):
    """An operator requested that a model be paused or resumed. Later requests to an agent have higher numbers."""

    model: str
    paused: bool
    by: str
    request: int = 0


class AnnouncementRequested(Event, frozen=True):
    """A scaler that has started requested the current decision."""

    model: str
    by: str


class PausesRead(Event, frozen=True):
    """All paused models at a revision of the store, which may have lost changes, with the operator who paused each."""

    paused: dict[str, str]
    revision: int = 0
    went_back: bool = False


class PauseChanged(Event, frozen=True):
    """The pause key of a model was written or removed, at a revision of the store; by a request of this agent, or 0."""

    model: str
    paused: bool
    by: str = ""
    revision: int = 0
    request: int = 0


class LearnedRead(Event, frozen=True):
    """All learned states in the store, by model."""

    learned: dict[str, LearnedState]


class LearnedChanged(Event, frozen=True):
    """The stored learned state of one model changed; None: it was removed or is unreadable."""

    model: str
    learned: LearnedState | None


class ForecastFitted(Event, frozen=True):
    """Forecasts of a ``FitForecast``, in the order of its queries; None for a series without known values."""

    model: str
    request: int
    forecasts: list[Forecast | None]


class ForecastFailed(Event, frozen=True):
    """A ``FitForecast`` could not be executed."""

    model: str
    request: int
    detail: str = ""


class AllocationSolved(Event, frozen=True):
    """The solution of an allocation problem."""

    request: int
    allocation: Allocation


class AllocationFailed(Event, frozen=True):
    """An allocation problem was not solved in time or could not be executed."""

    request: int
    detail: str = ""


class ChildNotStarted(Event, frozen=True):
    """A child process that forecasts or allocates cannot start. Sent again only after it has started."""

    detail: str


class StoreConnectionChanged(Event, frozen=True):
    """The connection to etcd was established or lost."""

    connected: bool


class BusConnectionChanged(Event, frozen=True):
    """The connection to NATS was established or lost."""

    connected: bool


class SettingsChanged(Event, frozen=True):
    """The configuration was reloaded. ``settings`` is JSON of ``Settings``, a type that a higher layer defines."""

    settings: Raw
    restart_for: list[str] = []
    """Changed keys that take effect only after a restart."""


class SettingsRefused(Event, frozen=True):
    """The configuration was reloaded and is invalid."""

    detail: str


class ShutdownRequested(Event, frozen=True):
    """The process was asked to stop: the agent starts nothing new and resigns leadership."""


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
    | AgentsChanged
    | PresenceRenewed
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
    | ChildNotStarted
    | StoreConnectionChanged
    | BusConnectionChanged
    | SettingsChanged
    | SettingsRefused
    | ShutdownRequested
)
