"""State of a controller as one encodable Struct. A replay begins with a snapshot of it."""

from msgspec import Struct, field

from loadline.core.decisions.candidacy import Candidacy
from loadline.core.decisions.drains import Drains
from loadline.core.decisions.leadership import Leadership
from loadline.core.decisions.ledger import Ledger
from loadline.core.decisions.presence import Presence
from loadline.core.fleet.fleet import Fleet, Model
from loadline.core.fleet.pool import DRAINS_MAX
from loadline.core.migration.memory import MigrationMemory
from loadline.core.migration.model_state import ModelMigrationState
from loadline.core.planning.allocation.fleet_allocation import FleetAllocation, terms_of
from loadline.core.planning.allocation.fleet_budget import FleetBudget
from loadline.core.planning.allocation.supplies import Supplies, Tenant, supplies_of
from loadline.core.planning.planners import PLANNERS, Planner
from loadline.core.state.alarms import Alarms
from loadline.core.state.explanation_log import ExplanationLog
from loadline.core.state.model_state import ModelFleet, new_model
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.learned import LearnedState
from loadline.core.vocabulary.rejections import Rejection


class AgentState(Struct):
    """State of the fleet, leader election, decisions, drains, allocation and migrations."""

    fleet: ModelFleet
    leadership: Leadership
    ledger: Ledger
    drains: Drains
    gpus: FleetBudget = field(default_factory=FleetBudget)
    allocation: FleetAllocation = field(default_factory=FleetAllocation)
    stored: dict[str, LearnedState] = field(default_factory=dict)
    """Learned state in the store by model, including models that are not configured."""
    learning_of: str = ""
    """Model whose learned state was last compared with the store."""
    learning_at_ms: int = 0
    """Unix time of the next comparison."""
    migration: MigrationMemory = field(default_factory=MigrationMemory)
    """Migration state that spans models."""
    paused: dict[str, str] = field(default_factory=dict)
    """Paused models in the store, with the operator who paused each."""
    pause_revisions: dict[str, int] = field(default_factory=dict)
    """Revision of the store at the last known change of a configured model's pause, since all were read."""
    pauses_written: int = 0
    """Number of the newest request to pause or resume a model that is written."""
    forecast_requests: dict[str, int] = field(default_factory=dict)
    """Number of the newest forecast request by model. Kept for removed models, so that late answers are recognised."""
    config_problem: str = ""
    """Reason why the last loaded configuration is not active; empty: it is."""
    restart_for: list[str] = field(default_factory=list)
    """Changed configuration keys that take effect after a restart."""
    registry_read: bool = False
    decisions_read: bool = False
    reading: bool = False
    """True while the decisions are being read."""
    read_request: int = 0
    """Number of the newest read of the decisions; results of earlier reads are ignored."""
    read_at_ms: int = 0
    """Unix time of the next read of the decisions."""
    led: bool = False
    """True if this agent led at the end of the last turn."""
    acting_since_ms: int = -1
    """Unix time since which this agent leads and has read registry and decisions; -1: it does not lead or has not."""
    bus_connected: bool = False
    bus_since_ms: int = 0
    """Unix time at which the bus connected or disconnected."""
    store_connected: bool = False
    stopping: bool = False
    presence: Presence | None = None
    """Key by which other agents see that this one lives; None: another controller of the agent keeps it, or none."""
    followed: list[str] = field(default_factory=list)
    """Models whose reports this agent has subscribed to, where agents share the models; by name."""
    rejected: dict[str, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    explanations: ExplanationLog = field(default_factory=ExplanationLog)
    alarms: Alarms = field(default_factory=Alarms)

    @property
    def leading(self) -> bool:
        """True if this agent is the leader."""
        return self.leadership.phase == "leading"

    @property
    def dormant(self) -> bool:
        """True if another agent leads the models, and this one does not receive their reports."""
        return self.leadership.candidacy is not None and not self.leading and not self.followed

    def begin_acting(self, now: int) -> None:
        """Record ``now`` (ms) as the time since which this agent leads and has read registry and decisions, if it has.

        The time remains until it loses the lead.
        """
        known = self.registry_read and self.decisions_read
        if self.acting_since_ms < 0 and known and self.leadership.may_commit(now):
            self.acting_since_ms = now

    def settled(self, model: Model, now: int) -> bool:
        """Return True if this agent may decide and knows the current targets of a model.

        Without an earlier decision, the targets are known ``stale_after_ms`` after this agent could first decide: a
        fleet that is still registering looks too small or empty.
        """
        known = self.registry_read and self.decisions_read and self.acting_since_ms >= 0
        if not known or not self.leadership.may_commit(now):
            return False
        registering = now - self.acting_since_ms < self.fleet.knobs.stale_after_ms
        return not registering or all(pool.decided is not None for pool in model.pools.values())

    def drains_full(self, model: str, home: str) -> bool:
        """Return True if as many workers drain, or are victims of a pending decision, as one may name.

        Those count that the scaler of the pool ``home`` has started, wherever they serve.
        """
        entry = self.ledger.entries.get(model)
        targets = () if entry is None or entry.pending is None else entry.pending.targets
        victims = {victim for target in targets if target.pool == home for victim in target.victims}
        return len(victims.union(self.drains.started_in(model, home))) >= DRAINS_MAX

    def count(self, counter: str) -> None:
        """Increment a counter."""
        self.counters[counter] = self.counters.get(counter, 0) + 1

    def reject(self, rejection: Rejection, count: int = 1) -> None:
        """Count rejected inputs."""
        self.rejected[rejection] = self.rejected.get(rejection, 0) + count

    def reread_decisions(self, now: int) -> None:
        """Have the decisions read again before anything is decided, since the known ones may be outdated."""
        # The result of a read in progress may be older than this call: a new number makes it ignored.
        self.read_request += 1
        self.decisions_read = self.reading = False
        self.read_at_ms = now

    def remove_model(self, name: str) -> None:
        """Remove a model. The ledger keeps the sequence of its decisions; its keys in the store remain."""
        model = self.fleet.models.pop(name)
        for pool in model.pools.values():
            self.fleet.unassign(pool)
        self.pause_revisions.pop(name, None)
        self.ledger.retire(name)
        self.gpus.forget(name)
        self.migration.in_flight.remove_model(name)

    def apply_settings(self, settings: Settings) -> None:
        """Apply the settings of migration and of allocation, once the fleet has the configured models and pools."""
        for knobs in settings.models:
            model = self.fleet.models[knobs.name]
            if knobs.migration.enabled:
                model.migration.apply_settings({pool.name: pool.role for pool in knobs.pools}, knobs.migration)
            elif model.migration.knobs is not None:
                model.migration = ModelMigrationState()
                self.migration.in_flight.remove_model(knobs.name)
        if not settings.only_migration:
            supplies = limited_supplies(settings, self.fleet)
            self.allocation.apply_terms(terms_of(self.fleet, supplies, settings.allocation))


def initial_state(settings: Settings) -> AgentState:
    """Return the state of an agent at its start."""
    knobs = settings.leadership
    state = AgentState(
        fleet=ModelFleet(
            knobs=settings.fleet,
            models={model.name: new_model(settings, model) for model in settings.models},
            external_drains=settings.only_migration,
        ),
        leadership=Leadership(
            settings.scope,
            knobs,
            candidacy=Candidacy(settings.agent) if settings.sharing.layout else None,
            layout=settings.sharing.layout,
            agent=settings.agent,
        ),
        ledger=Ledger(settings.decisions),
        drains=Drains(settings.drain),
        presence=Presence(knobs.lease_ttl_s, knobs.retry_ms) if settings.sharing.presence else None,
    )
    state.apply_settings(settings)
    return state


def limited_supplies(settings: Settings, fleet: Fleet) -> Supplies:
    """Return the limited supplies of GPUs and the pools that use them."""
    tenants = {model.name: Tenant(model.namespace, model.priority) for model in settings.models}
    return supplies_of(fleet, tenants, settings.allocation.capacity, settings.quotas)


def initial_planners(settings: Settings) -> dict[str, Planner]:
    """Return a planner for each model, warmed up with its history if it has one."""
    return {model.name: new_planner(settings, model) for model in settings.models}


def replacing_planner(state: AgentState, settings: Settings, knobs: ModelKnobs) -> Planner:
    """Return a new planner for a model that had one, whose forecasts that are still computed are not mistaken for its.

    Args:
        state: State with the number of the last forecast that was requested.
        settings: All settings.
        knobs: Settings of the model.
    """
    planner = new_planner(settings, knobs)
    planner.resume_requests_from(state.forecast_requests.get(knobs.name, 0))
    return planner


def new_planner(settings: Settings, knobs: ModelKnobs) -> Planner:
    """Return the planner of a model, warmed up with its history if it has one."""
    planner = PLANNERS[knobs.planner](knobs.knobs)
    if knobs.name in settings.histories:
        planner.warm_up(settings.histories[knobs.name])
    return planner
