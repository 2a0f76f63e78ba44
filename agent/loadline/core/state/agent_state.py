"""Everything that a controller knows, as one encodable Struct: a snapshot of it is where a replay begins."""

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

import msgspec
from msgspec import Struct, field

from loadline.core.decisions.drains import Drains
from loadline.core.decisions.leadership import Leadership
from loadline.core.decisions.ledger import Ledger
from loadline.core.engines.accelerator import UNNAMED_ACCELERATOR, AcceleratorKnobs
from loadline.core.engines.profile import EngineProfile
from loadline.core.fleet.fleet import Fleet, Model
from loadline.core.fleet.pool import NO_PROFILE, Pool, PoolKnobs
from loadline.core.fleet.traffic import Traffic
from loadline.core.fleet.worker import WorkerState
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.migration.memory import MigrationMemory
from loadline.core.planning.allocation.fleet_allocation import FleetAllocation
from loadline.core.planning.allocation.fleet_budget import FleetBudget
from loadline.core.planning.allocation.supplies import Supplies, Tenant, supplies_of
from loadline.core.planning.guardrails.guardrails import Guardrails
from loadline.core.planning.guardrails.knobs import HardLimits
from loadline.core.planning.planners import PLANNERS, Planner
from loadline.core.planning.scale_to_zero import IdleTracker
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.events import ForecastFailed, ForecastFitted
from loadline.core.vocabulary.learned import LearnedState
from loadline.core.vocabulary.reasons import Explanation, Rejection
from loadline.core.vocabulary.status import Condition

_SLICE_WORKERS: Final = 128
"""Workers that are encoded at a time: no other thread can run for 0.2 ms."""


class AgentState(Struct):
    """What is believed, remembered and under way."""

    fleet: Fleet
    leadership: Leadership
    ledger: Ledger
    drains: Drains
    guards: dict[str, Guardrails]
    due: dict[str, int]
    """When each model's planner wants to look again."""
    answers: dict[str, list[ForecastFitted | ForecastFailed]] = field(default_factory=dict)
    """Forecasts that have come since a model was last planned."""
    gpus: FleetBudget = field(default_factory=FleetBudget)
    allocation: FleetAllocation = field(default_factory=FleetAllocation)
    stored: dict[str, LearnedState] = field(default_factory=dict)
    """What the store holds of what models have taught."""
    saved_at_ms: dict[str, int] = field(default_factory=dict)
    """When each model's was last written."""
    learning_of: str = ""
    """The model that was looked at last for something to write."""
    learning_at_ms: int = 0
    """When the next one is looked at."""
    sleeps: dict[str, IdleTracker] = field(default_factory=dict)
    """Of the models that may have no worker."""
    migration_knobs: dict[str, MigrationKnobs] = field(default_factory=dict)
    """What the models go by whose requests may move."""
    migration: MigrationMemory = field(default_factory=MigrationMemory)
    """What is remembered of moves."""
    paused: dict[str, str] = field(default_factory=dict)
    """Paused models and who paused them."""
    renewals: dict[str, None] = field(default_factory=dict)
    """Models whose standing counts are to be decided again."""
    requests: dict[str, int] = field(default_factory=dict)
    """The newest forecast that was asked for each model: whoever plans it next counts on from there."""
    failing: dict[str, None] = field(default_factory=dict)
    """Models whose planner failed when it last looked."""
    config_problem: str = ""
    """Why the configuration, as it was last read, is not obeyed."""
    restart_for: list[str] = field(default_factory=list)
    """Keys of it that are obeyed when the agent starts."""
    registry_read: bool = False
    decisions_read: bool = False
    reading: bool = False
    read_request: int = 0
    read_at_ms: int = 0
    led: bool = False
    """Whether this agent led at the end of the last turn."""
    acting_since_ms: int = -1
    """Since when this agent leads and has read everything that it needs."""
    bus_connected: bool = False
    bus_since_ms: int = 0
    """Since when it is there, or away."""
    store_connected: bool = False
    stopping: bool = False
    rejected: dict[str, int] = field(default_factory=dict)
    counters: dict[str, int] = field(default_factory=dict)
    explanations: list[Explanation] = field(default_factory=list)
    holds: dict[str, Explanation] = field(default_factory=dict)
    conditions: dict[str, tuple[Condition, ...]] = field(default_factory=dict)
    """Of each model, as of when it was last planned."""

    @property
    def leading(self) -> bool:
        """Whether this agent decides."""
        return self.leadership.phase == "leading"

    def settled(self, model: Model, now: int) -> bool:
        """Whether this agent decides and knows what stands of a model.

        Without a decision of old, a fleet that registers at this moment would look too small or even empty.
        """
        known = self.registry_read and self.decisions_read and self.acting_since_ms >= 0
        if not known or not self.leadership.may_commit(now):
            return False
        young = now - self.acting_since_ms < self.fleet.knobs.stale_after_ms
        return not young or all(pool.desired is not None for pool in model.pools.values())

    def count(self, what: str) -> None:
        """Something happened once more."""
        self.counters[what] = self.counters.get(what, 0) + 1

    def reject(self, why: Rejection, count: int = 1) -> None:
        """Something that came from outside was not believed."""
        self.rejected[why] = self.rejected.get(why, 0) + count

    def read_again(self, now: int) -> None:
        """What we believe of the store is out of date: nothing is decided until it was read."""
        # An answer under way, or in this very turn, may be older than what it has to tell: it is not that of the next.
        self.read_request += 1
        self.decisions_read = self.reading = False
        self.read_at_ms = now


class Snapshot(Struct, frozen=True):
    """A state with its planners, whose types are known only by name."""

    state: AgentState
    planners: dict[str, msgspec.Raw]


def initial_state(settings: Settings) -> AgentState:
    """Nothing is known yet."""
    fleet, knobs = settings.fleet, settings.models
    return AgentState(
        fleet=Fleet(
            knobs=fleet,
            models={model.name: new_model(settings, model) for model in knobs},
            external_drains=settings.only_migration,
        ),
        leadership=Leadership(settings.scope, settings.leadership),
        ledger=Ledger(settings.decisions),
        drains=Drains(settings.drain),
        guards={model.name: Guardrails(model.guardrails, limits_of(settings, model)) for model in knobs},
        due={model.name: 0 for model in knobs},
    )


def new_model(settings: Settings, knobs: ModelKnobs) -> Model:
    """A model of which nothing is known yet."""
    fleet = settings.fleet
    return Model(
        name=knobs.name,
        pools={pool.name: new_pool(settings, knobs.name, pool) for pool in knobs.pools},
        traffic=Traffic(fleet.traffic_window_ms, fleet.frontends_max, fleet.stale_after_ms),
        objectives=knobs.objectives,
    )


def new_pool(settings: Settings, model: str, knobs: PoolKnobs) -> Pool:
    """A pool of which nothing is known yet."""
    return Pool(knobs, engine=engine_of(settings, model, knobs.name), accelerator=accelerator_of(settings, knobs))


def limits_of(settings: Settings, knobs: ModelKnobs) -> HardLimits:
    """The hard bounds of a model."""
    return HardLimits(settings.fleet.quorum_ratio, knobs.gpu_budget_min, knobs.gpu_budget_max)


def engine_of(settings: Settings, model: str, pool: str) -> EngineProfile:
    """What the engines of a pool can do."""
    return settings.profiles.get(model, {}).get(pool, NO_PROFILE)


def accelerator_of(settings: Settings, knobs: PoolKnobs) -> AcceleratorKnobs:
    """What the workers of a pool run on."""
    return next((one for one in settings.accelerators if one.name == knobs.accelerator), UNNAMED_ACCELERATOR)


def limited(settings: Settings, fleet: Fleet) -> Supplies:
    """The supplies that are limited, and who takes of them."""
    tenants = {model.name: Tenant(model.namespace, model.priority) for model in settings.models}
    return supplies_of(fleet, tenants, settings.allocation.capacity, settings.quotas)


def initial_planners(settings: Settings) -> dict[str, Planner]:
    """One planner for each model, by the name in its knobs, with the past that it is given."""
    return {model.name: new_planner(settings, model) for model in settings.models}


def new_planner(settings: Settings, knobs: ModelKnobs) -> Planner:
    """The planner of a model, by the name in its knobs, with the past that it is given."""
    planner = PLANNERS[knobs.planner](knobs_of(knobs))
    if knobs.name in settings.histories:
        planner.warm(settings.histories[knobs.name])
    return planner


def knobs_of(model: ModelKnobs) -> Any:
    """The knobs of a model's planner."""
    return getattr(model, model.planner)


def picture(state: AgentState, planners: dict[str, Planner]) -> Callable[[], dict[str, Any]]:
    """Hold on to everything as it is now.

    What is given back, called once, in any thread and at any time, gives what encodes to the JSON of a ``Snapshot``.
    To encode 10,000 workers takes 15 ms or more, to copy them 5 ms: so they are copied now and encoded later, in
    slices, between which other threads may run. All else is small, and encoded at once; but for the engine profiles,
    which are in the settings and do not change.
    """
    pools: list[dict[str, Any]] = []

    def hold_pool(pool: Pool) -> dict[str, Any]:
        held = _hold(
            pool,
            engine=NO_PROFILE,
            accelerator=UNNAMED_ACCELERATOR,
            workers={name: worker.copy() for name, worker in pool.workers.items()},
        )
        pools.append(held)
        return held

    def hold_model(model: Model) -> dict[str, Any]:
        return _hold(model, pools={name: hold_pool(pool) for name, pool in model.pools.items()})

    fleet = _hold(state.fleet, models={name: hold_model(model) for name, model in state.fleet.models.items()})
    whole = {"state": _hold(state, fleet=fleet), "planners": {name: _raw(one) for name, one in planners.items()}}

    def finish() -> dict[str, Any]:
        for pool in pools:
            pool["workers"] = _in_slices(pool["workers"])
        return whole

    return finish


def _hold(struct: Struct, **given: Any) -> dict[str, Any]:
    """The fields of a struct: encoded, but for those that are given."""
    return {name: given[name] if name in given else _raw(getattr(struct, name)) for name in struct.__struct_fields__}


def _raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def _in_slices(workers: dict[str, WorkerState]) -> msgspec.Raw:
    left = iter(workers.items())
    slices = iter(lambda: dict(islice(left, _SLICE_WORKERS)), {})
    return msgspec.Raw(b"{" + b",".join(msgspec.json.encode(one)[1:-1] for one in slices) + b"}")


def decode_snapshot(settings: Settings, data: bytes) -> tuple[AgentState, dict[str, Planner]]:
    """Undo the encoding of a ``picture``.

    Raises:
        msgspec.DecodeError: It was not written by this version.
    """
    snapshot = msgspec.json.decode(data, type=Snapshot)
    for model in snapshot.state.fleet.models.values():
        for pool in model.pools.values():
            pool.engine = engine_of(settings, model.name, pool.name)
            pool.accelerator = accelerator_of(settings, pool.knobs)
    kinds = {model.name: PLANNERS[model.planner] for model in settings.models}
    planners = {model: msgspec.json.decode(raw, type=kinds[model]) for model, raw in snapshot.planners.items()}
    return snapshot.state, planners
