"""State of one model."""

from msgspec import Struct, field

from loadline.core.decisions.drains import Drain
from loadline.core.engines.accelerator import UNNAMED_ACCELERATOR, AcceleratorKnobs
from loadline.core.engines.profile import NO_PROFILE, EngineProfile
from loadline.core.fleet.fleet import Fleet, Model
from loadline.core.fleet.pool import Pool, PoolKnobs
from loadline.core.fleet.traffic import Traffic
from loadline.core.migration.model_state import ModelMigrationState
from loadline.core.planning.encode_pools import EncodePools
from loadline.core.planning.guardrails.guardrails import Guardrails
from loadline.core.planning.guardrails.knobs import HardLimits
from loadline.core.planning.scale_to_zero import IdleTracker
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.conditions import Condition
from loadline.core.vocabulary.events import ForecastFailed, ForecastFitted
from loadline.core.vocabulary.reasons import Explanation


class RemovedPool(Struct, frozen=True):
    """Pool that a reload removed, and that another one may configure again."""

    replicas: int
    """Count that its scaler keeps."""
    drains: list[Drain]
    """Drains that had begun."""
    until_ms: int
    """Unix time until which it is kept."""
    epoch: int
    """Term of the leader that kept it."""


class ModelState(Model, kw_only=True):
    """A model as reported, with the state of its planning and migration. Deleting it removes the model completely."""

    guardrails: Guardrails
    removed_pools: dict[str, RemovedPool] = field(default_factory=dict)
    idle: IdleTracker = field(default_factory=IdleTracker)
    plan_at_ms: int = 0
    """Unix time of the next planner run without an event."""
    forecasts: list[ForecastFitted | ForecastFailed] = field(default_factory=list)
    """Forecasts that arrived since the last planner run."""
    failing: bool = False
    """True if the last planner run failed."""
    reconcile: bool = False
    """True if the current targets must be decided again."""
    hold: Explanation | None = None
    """Explanation of the last round without a decision."""
    recommended: dict[str, int] = field(default_factory=dict)
    """Recommended counts of the last round, before all limits, of pools that should change."""
    conditions: tuple[Condition, ...] = ()
    """Conditions as of the last round."""
    encode: EncodePools | None = None
    """Loads of its encode pools; None if it has none."""
    migration: ModelMigrationState = field(default_factory=ModelMigrationState)
    learned_saved_at_ms: int | None = None
    """Unix time of the last write of its learned state to the store."""


class ModelFleet(Fleet, kw_only=True):
    """The fleet, with the state of each model."""

    models: dict[str, ModelState]  # type: ignore[assignment]  # read as dict[str, Model] by the fleet, which adds none


def new_model(settings: Settings, knobs: ModelKnobs) -> ModelState:
    """Return a model without workers, traffic or decisions."""
    fleet = settings.fleet
    return ModelState(
        name=knobs.name,
        pools={pool.name: new_pool(settings, knobs.name, pool) for pool in knobs.pools},
        traffic=Traffic(fleet.traffic_window_ms, fleet.frontends_max, fleet.stale_after_ms),
        objectives=knobs.effective_objectives,
        has_objectives=knobs.objectives is not None,
        guardrails=Guardrails(knobs.effective_guardrails, hard_limits(settings, knobs)),
    )


def new_pool(settings: Settings, model: str, knobs: PoolKnobs) -> Pool:
    """Return a pool without workers or a target."""
    return Pool(knobs, engine=engine_of(settings, model, knobs.name), accelerator=accelerator_of(settings, knobs))


def hard_limits(settings: Settings, knobs: ModelKnobs) -> HardLimits:
    """Return the hard limits of a model."""
    return HardLimits(settings.fleet.quorum_ratio, knobs.gpu_budget_min, knobs.gpu_budget_max)


def engine_of(settings: Settings, model: str, pool: str) -> EngineProfile:
    """Return the profile of the engines of a pool."""
    return settings.profiles.get(model, {}).get(pool, NO_PROFILE)


def accelerator_of(settings: Settings, knobs: PoolKnobs) -> AcceleratorKnobs:
    """Return the accelerator of the workers of a pool."""
    return next((one for one in settings.accelerators if one.name == knobs.accelerator), UNNAMED_ACCELERATOR)
