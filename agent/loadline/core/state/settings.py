"""All knobs that the core reads, as one Struct: journalled with every snapshot, so that a replay needs nothing else."""

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
    pools: Annotated[tuple[PoolKnobs, ...], Meta(min_length=1, max_length=64, description="Its pools.")]
    namespace: Annotated[Name, Meta(description="Whose it is: for quotas, overrides and the labels of metrics.")] = (
        "default"
    )
    priority: Annotated[
        int, Meta(ge=1, le=100, description="Who is served first where GPUs are short: 1 before 100.")
    ] = 100
    service_class: Annotated[
        str, Meta(max_length=100, description="One of [[service_classes]]: objectives and priority; empty: none.")
    ] = ""
    planner: Annotated[str, Meta(description="Name of the planner; the section of that name has its knobs.")] = (
        "saturation"
    )
    scale_to_zero_after_ms: Annotated[
        int,
        Meta(
            ge=0,
            le=604_800_000,
            description="All pools are emptied after nobody has asked anything of the model for this long, by frontends"
            " that all report; 0: never. The first request wakes a worker of each role.",
        ),
    ] = 0
    no_operation: Annotated[bool, Meta(description="Advise only: explain what would be done, decide nothing.")] = False
    gpu_budget_max: Annotated[
        Annotated[int, Meta(ge=1)] | None, Meta(description="Most GPUs over all pools of the model.")
    ] = None
    gpu_budget_min: Annotated[int, Meta(ge=0, description="Fewest GPUs over all pools of the model.")] = 0
    objectives: ObjectiveKnobs = ObjectiveKnobs()
    load_predictor_warmup_trace: Annotated[
        str,
        Meta(
            max_length=4_096,
            description="Trace of the load before the agent starts, so that the first forecast has a past; from this"
            " file on. For planners that forecast.",
        ),
    ] = ""
    load_predictor_warmup_end: Annotated[
        str,
        Meta(
            pattern=r"^(([01][0-9]|2[0-3]):[0-5][0-9])?$",
            description="Time of day, UTC, at which that trace ends, as HH:MM: until the start, whenever that is, load"
            " is taken to be as a day before. Without it the trace is taken to end at the start.",
        ),
    ] = ""
    guardrails: GuardrailKnobs = GuardrailKnobs()
    migration: MigrationKnobs = MigrationKnobs()
    planner_knobs: dict[str, Any] = {}
    """Knobs of its planner, and of others where they are set, by the name of the planner: sections in a file."""

    def __post_init__(self) -> None:
        known = {name: knobs for name in PLANNERS if (knobs := self._known_knobs(name)) is not None}
        unknown = {name: knobs for name, knobs in self.planner_knobs.items() if name not in PLANNERS}
        force_setattr(self, "planner_knobs", dict(sorted((known | unknown).items())))

    def _known_knobs(self, name: str) -> Any:
        """Return the knobs of a planner; None if they are those that it has without any."""
        kind, knobs = PLANNERS[name].Knobs, self.planner_knobs.get(name, {})
        typed = knobs if isinstance(knobs, kind) else convert(knobs, kind, str_keys=True)
        return typed if name == self.planner or typed != kind() else None

    @property
    def knobs(self) -> Any:
        """Knobs of its planner."""
        return self.planner_knobs[self.planner]

    def knobs_of(self, planner: str) -> Any:
        """Return the knobs of a registered planner, as they are set or by default."""
        knobs = self.planner_knobs.get(planner)
        return PLANNERS[planner].Knobs() if knobs is None else knobs

    def with_planner(self, planner: str, knobs: Any) -> "ModelKnobs":
        """Return the same model with another planner."""
        return replace(self, planner=planner, planner_knobs=self.planner_knobs | {planner: knobs})

    def for_planner(self, fleet: FleetKnobs) -> ModelSettings:
        """Return what the checks and the description of its planner consult."""
        return ModelSettings(self.pools, self.objectives, fleet)


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
    """Engine profiles by model and pool, as data: a replay needs no file."""
    zones: dict[str, ZoneOffsets] = {}
    """The wall clocks that schedules go by, by the name of their timezone."""
    tpot_profiles: dict[str, TpotSweep] = {}
    """Times per output token by model, where a file of them is named, as data too."""
    only_migration: bool = False
    """Requests move, and nothing else is decided: somebody else scales."""
    digest: str = ""
    """Digest of all settings except the agent's name; equal for agents with equal settings."""
    histories: dict[str, History] = {}
    """The load before the start by model, as data too: what a planner starts warm with."""
