"""Settings of the core as one Struct, which the journal holds with every snapshot: a replay needs no other input."""

from typing import Annotated, Any

from msgspec import Meta, Struct, convert
from msgspec.structs import force_setattr, replace

from loadline.core.decisions.drains import DrainKnobs
from loadline.core.decisions.leadership import LeadershipKnobs
from loadline.core.decisions.ledger import DecisionKnobs
from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.engines.profile import EngineProfile, ObjectiveKnobs
from loadline.core.engines.tpot import TpotSweep
from loadline.core.fleet.fleet import FleetKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.fleet.schedule_windows import ZoneOffsets
from loadline.core.migration.knobs import MigrationKnobs
from loadline.core.planning.allocation.supplies import AllocationKnobs, Quota
from loadline.core.planning.guardrails.knobs import GuardrailKnobs
from loadline.core.planning.planner import ModelSettings
from loadline.core.planning.planners import PLANNERS
from loadline.core.vocabulary.forecasts import History
from loadline.core.vocabulary.scalars import Name


class ModelKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """A served model: its pools, its planner and its guardrails."""

    name: Annotated[Name, Meta(description="Name of the model as its workers and frontends report it.")]
    pools: Annotated[tuple[PoolKnobs, ...], Meta(min_length=1, max_length=64, description="Pools of the model.")]
    namespace: Annotated[
        Name, Meta(description="Owner of the model, for quotas, overrides and the labels of metrics.")
    ] = "default"
    priority: Annotated[
        int, Meta(ge=1, le=100, description="Rank among the models if GPUs are short; 1 is served first.")
    ] = 100
    service_class: Annotated[
        str,
        Meta(
            max_length=100,
            description="Name of one of [[service_classes]], which sets objectives and priority; empty: none.",
        ),
    ] = ""
    planner: Annotated[str, Meta(description="Name of the planner; the section of that name has its knobs.")] = "auto"
    scale_to_zero_after_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=604_800_000,
            description="Time without requests after which the model scales to zero, if all its frontends report;"
            " 0: never. The first request starts a worker of each role.",
        ),
    ] = 0
    no_operation: Annotated[
        bool, Meta(description="Explain the decisions and migrations of the model, but do not execute them.")
    ] = False
    gpu_budget_max: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Maximum GPUs over all pools of the model.")
    ] = None
    gpu_budget_min: Annotated[int, Meta(ge=0, description="Minimum GPUs over all pools of the model.")] = 0
    objectives: Annotated[
        ObjectiveKnobs | None,
        Meta(description="Objectives of the model; unset: planners that size for latencies use the defaults."),
    ] = None
    load_predictor_warmup_trace: Annotated[
        str,
        Meta(
            max_length=4_096,
            description="Trace of the load before the agent starts, for planners that forecast; relative to this file.",
        ),
    ] = ""
    load_predictor_warmup_end: Annotated[
        str,
        Meta(
            pattern=r"^(([01][0-9]|2[0-3]):[0-5][0-9])?$",
            description="Time of day (UTC) of the end of the warm-up trace, as HH:MM. From it to the start of the"
            " agent, the load of the previous day is assumed. Empty: the trace ends at the start.",
        ),
    ] = ""
    guardrails: Annotated[
        GuardrailKnobs | None,
        Meta(description="Guardrails of the model; unset: those of its planner. The planner auto paces itself."),
    ] = None
    migration: MigrationKnobs = MigrationKnobs()
    planner_knobs: dict[str, Any] = {}
    """Knobs by the name of the planner: those of its planner, and of other planners with a section in the file."""

    def __post_init__(self) -> None:
        known = {name: knobs for name in PLANNERS if (knobs := self._known_knobs(name)) is not None}
        unknown = {name: knobs for name, knobs in self.planner_knobs.items() if name not in PLANNERS}
        force_setattr(self, "planner_knobs", dict(sorted((known | unknown).items())))

    def _known_knobs(self, name: str) -> Any:
        """Return the knobs of a planner; None if they are the defaults of a planner that the model does not use."""
        kind, knobs = PLANNERS[name].Knobs, self.planner_knobs.get(name, {})
        typed = knobs if isinstance(knobs, kind) else convert(knobs, kind, str_keys=True)
        return typed if name == self.planner or typed != kind() else None

    @property
    def effective_objectives(self) -> ObjectiveKnobs:
        """Objectives of the model, or the defaults."""
        return ObjectiveKnobs() if self.objectives is None else self.objectives

    @property
    def effective_guardrails(self) -> GuardrailKnobs:
        """Guardrails of the model, or those of its planner."""
        return PLANNERS[self.planner].guardrails if self.guardrails is None else self.guardrails

    @property
    def knobs(self) -> Any:
        """Knobs of its planner."""
        return self.planner_knobs[self.planner]

    def knobs_of(self, planner: str) -> Any:
        """Return the knobs of a registered planner, with its defaults if none are set."""
        knobs = self.planner_knobs.get(planner)
        return PLANNERS[planner].Knobs() if knobs is None else knobs

    def with_planner(self, planner: str, knobs: Any) -> "ModelKnobs":
        """Return the same model with another planner."""
        return replace(self, planner=planner, planner_knobs=self.planner_knobs | {planner: knobs})

    def for_planner(self, fleet: FleetKnobs) -> ModelSettings:
        """Return the settings that the checks and the description of its planner need."""
        seen = [pool for pool in self.pools if pool.role != "encode" or PLANNERS[self.planner].sizes_encode_pools]
        return ModelSettings(tuple(seen), self.effective_objectives, fleet, self.objectives is not None)


class Sharing(Struct, frozen=True):
    """Part of a controller in sharing models out to agents."""

    shards: int = 1
    """Number of shards; 1: one agent leads all models."""
    layout: str = ""
    """Name of the partition of the models into shards; empty: one shard."""
    presence: bool = False
    """True if this controller shows the other agents that its agent lives."""


class Settings(Struct, frozen=True):
    """Settings of a controller."""

    agent: str
    scope: str
    models: tuple[ModelKnobs, ...]
    fleet: FleetKnobs = FleetKnobs()
    leadership: LeadershipKnobs = LeadershipKnobs()
    decisions: DecisionKnobs = DecisionKnobs()
    drain: DrainKnobs = DrainKnobs()
    accelerators: tuple[AcceleratorKnobs, ...] = ()
    allocation: AllocationKnobs = AllocationKnobs()
    quotas: dict[str, Quota] = {}
    """GPUs by namespace and type."""
    profiles: dict[str, dict[str, EngineProfile]] = {}
    """Engine profiles by model and pool, as data, so that a replay needs no file."""
    zones: dict[str, ZoneOffsets] = {}
    """Offsets from UTC by timezone, for schedules."""
    tpot_profiles: dict[str, TpotSweep] = {}
    """Profiles of the time per output token by model, for models with ``tpot_profiling_data_path``, as data."""
    only_migration: bool = False
    """True if this agent only migrates requests, and another program scales the fleet."""
    digest: str = ""
    """Digest of all settings except the agent's name; equal for agents with equal settings."""
    histories: dict[str, History] = {}
    """Load before the start of the agent by model, as data; planners are warmed up with it."""
    sharing: Sharing = Sharing()
