"""Everything that a controller knows, as one encodable Struct: a snapshot of it is where a replay begins."""

from msgspec import Struct, field

from loadline.core.decisions.drains import Drains
from loadline.core.decisions.leadership import Leadership
from loadline.core.decisions.ledger import Ledger
from loadline.core.fleet.fleet import Fleet, Model
from loadline.core.migration.memory import MigrationMemory
from loadline.core.planning.allocation.fleet_allocation import FleetAllocation
from loadline.core.planning.allocation.fleet_budget import FleetBudget
from loadline.core.planning.allocation.supplies import Supplies, Tenant, supplies_of
from loadline.core.planning.planners import PLANNERS, Planner
from loadline.core.state.model_state import ModelFleet, new_model
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.learned import LearnedState
from loadline.core.vocabulary.reasons import Explanation, Rejection


class AgentState(Struct):
    """The fleet with all models, leadership, and everything under way."""

    fleet: ModelFleet
    leadership: Leadership
    ledger: Ledger
    drains: Drains
    gpus: FleetBudget = field(default_factory=FleetBudget)
    allocation: FleetAllocation = field(default_factory=FleetAllocation)
    stored: dict[str, LearnedState] = field(default_factory=dict)
    """Learned state by model, as the store holds it; also of models that are not configured."""
    learning_of: str = ""
    """The model whose learned state was last compared with the store."""
    learning_at_ms: int = 0
    """Unix time of the next comparison."""
    migration: MigrationMemory = field(default_factory=MigrationMemory)
    """Memory of migration that spans models."""
    paused: dict[str, str] = field(default_factory=dict)
    """Paused models and who paused them, as the store holds it."""
    forecast_requests: dict[str, int] = field(default_factory=dict)
    """Number of the newest forecast request by model. It outlives a model, so that late answers stay late."""
    config_problem: str = ""
    """Problem of the configuration that was last read; empty: it applies."""
    restart_for: list[str] = field(default_factory=list)
    """Changed keys that apply only after a restart."""
    registry_read: bool = False
    decisions_read: bool = False
    reading: bool = False
    read_request: int = 0
    read_at_ms: int = 0
    led: bool = False
    """True if this agent led at the end of the last turn."""
    acting_since_ms: int = -1
    """Unix time since which this agent leads and has read everything that it needs; -1: it does not."""
    bus_connected: bool = False
    bus_since_ms: int = 0
    """Unix time at which the bus connected or disconnected."""
    store_connected: bool = False
    stopping: bool = False
    rejected: dict[str, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    explanations: list[Explanation] = field(default_factory=list)

    @property
    def leading(self) -> bool:
        """True if this agent decides."""
        return self.leadership.phase == "leading"

    def settled(self, model: Model, now: int) -> bool:
        """Return True if this agent decides and knows the current targets of a model.

        Without an earlier decision, a fleet that is still registering would look too small or even empty.
        """
        known = self.registry_read and self.decisions_read and self.acting_since_ms >= 0
        if not known or not self.leadership.may_commit(now):
            return False
        young = now - self.acting_since_ms < self.fleet.knobs.stale_after_ms
        return not young or all(pool.desired is not None for pool in model.pools.values())

    def count(self, what: str) -> None:
        """Count an event of the agent."""
        self.counters[what] = self.counters.get(what, 0) + 1

    def reject(self, why: Rejection, count: int = 1) -> None:
        """Count messages that were refused."""
        self.rejected[why] = self.rejected.get(why, 0) + count

    def read_again(self, now: int) -> None:
        """Read the decisions again before anything is decided: what is known of the store is out of date."""
        # An answer under way, or in this very turn, may be older than what it has to tell: it is not that of the next.
        self.read_request += 1
        self.decisions_read = self.reading = False
        self.read_at_ms = now

    def forget_model(self, name: str) -> None:
        """Remove a model. The ledger keeps the sequence of its decisions, and the store what it holds of it."""
        model = self.fleet.models.pop(name)
        for pool in model.pools.values():
            self.fleet.unassign(pool)
        self.ledger.retire(name)
        self.gpus.forget(name)
        self.migration.in_flight.forget_model(name)


def initial_state(settings: Settings) -> AgentState:
    """Return the state of an agent that knows nothing yet."""
    return AgentState(
        fleet=ModelFleet(
            knobs=settings.fleet,
            models={model.name: new_model(settings, model) for model in settings.models},
            external_drains=settings.only_migration,
        ),
        leadership=Leadership(settings.scope, settings.leadership),
        ledger=Ledger(settings.decisions),
        drains=Drains(settings.drain),
    )


def limited(settings: Settings, fleet: Fleet) -> Supplies:
    """Return the limited supplies of GPUs and the pools that use them."""
    tenants = {model.name: Tenant(model.namespace, model.priority) for model in settings.models}
    return supplies_of(fleet, tenants, settings.allocation.capacity, settings.quotas)


def initial_planners(settings: Settings) -> dict[str, Planner]:
    """Return a planner for each model, warmed up where there is a history."""
    return {model.name: new_planner(settings, model) for model in settings.models}


def new_planner(settings: Settings, knobs: ModelKnobs) -> Planner:
    """Return the planner of a model, warmed up where there is a history."""
    planner = PLANNERS[knobs.planner](knobs.knobs)
    if knobs.name in settings.histories:
        planner.warm_up(settings.histories[knobs.name])
    return planner
