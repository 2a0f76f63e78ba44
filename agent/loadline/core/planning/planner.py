"""Interface of planners: their knobs, inputs, checks, descriptions and recommendations."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from msgspec import Struct

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.fleet.fleet import FleetKnobs, Model
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.demand.knobs import TrafficKnobs
from loadline.core.planning.guardrails.knobs import GuardrailKnobs
from loadline.core.vocabulary.events import ForecastFailed, ForecastFitted
from loadline.core.vocabulary.forecasts import ForecastQuery, History
from loadline.core.vocabulary.reasons import Recommendation
from loadline.core.vocabulary.status import Estimates


class NoKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of a planner that has none."""


PlannerGroup = Literal["recommended", "compatible", "baseline"]
"""Reason to use a planner. ``compatible``: it has the rules and keys of Dynamo's planner or llm-d's Workload Variant
Autoscaler, for those who ran them. ``baseline``: it has the rules of another autoscaler, to compare with."""
TrafficNeed = Literal["no", "optional", "required"]


class Needs(Struct, frozen=True):
    """Inputs of a planner, and the objectives that it sizes for."""

    traffic: TrafficNeed = "no"
    """Need for traffic reports of frontends. Without required ones the planner holds; without optional ones it plans by
    the reports of workers until the first frontend reports."""
    history: bool = False
    """True if first forecasts may use a trace from before the start; see ``Planner.traffic_knobs``."""
    profiles: Literal["no", "optional", "required"] = "no"
    """Need for engine profiles; optional: the engines of other pools are fitted to the iterations of their workers."""
    objectives: frozenset[str] = frozenset()
    """Keys of the objectives that the planner sizes for."""
    default_objectives: bool = True
    """True if it sizes for the default objectives in a model without any; otherwise it ignores latencies there."""
    shares_role_load: bool = False
    """True if the planner divides the load of a role among its pools, so that an empty pool can grow again."""


class ModelSettings(Struct, frozen=True):
    """Settings of a model that ``Planner.check`` and ``Planner.describe`` read."""

    pools: tuple[PoolKnobs, ...]
    objectives: ObjectiveKnobs
    fleet: FleetKnobs
    has_objectives: bool = True
    """False if the model has none, and ``objectives`` are the defaults."""


class KnobProblem(Struct, frozen=True):
    """Contradiction in the knobs of a planner; the configuration is refused."""

    place: str
    problem: str
    remedy: str


class KnobWarning(Struct, frozen=True):
    """Knobs that are valid, but without effect or implausible."""

    place: str
    text: str


Finding = KnobProblem | KnobWarning


class ForecastRequest(Struct, frozen=True):
    """Forecasts that a planner requests; the answer carries the same ``request``."""

    request: int
    queries: list[ForecastQuery]


class Planner(Struct):
    """Base of planners, which compute the recommendation for one model from its fleet state.

    The fields of a planner are its knobs and its windows: encoded, they are its state in a snapshot. A planner does not
    record which of its recommendations were decided, but reads it from the pools (``Pool.effective_target``,
    ``Pool.scaled_up_at_ms``), so that both cannot disagree.
    """

    name: ClassVar[str] = ""
    """Name of the planner in a configuration, and of the section that has its knobs."""

    summary: ClassVar[str] = ""
    """One sentence for ``loadline check`` and the documentation."""

    group: ClassVar[PlannerGroup] = "recommended"

    Knobs: ClassVar[type[Struct]] = NoKnobs
    """Type of the knobs; every field has a default."""

    needs: ClassVar[Needs] = Needs()

    composed_of: ClassVar[tuple[type["Planner"], ...]] = ()
    """Planners that this one combines; its knobs have a section for each, by name."""

    pool_fields: ClassVar[tuple[str, ...]] = ()
    """Names of the fields that are dictionaries by pool name; ``forget_pool`` removes the pool from each."""

    sizes_encode_pools: ClassVar[bool] = False
    """True if the planner sizes encode pools itself; others do not see them, see ``encode_pools``."""

    guardrails: ClassVar[GuardrailKnobs] = GuardrailKnobs()
    """Guardrails that a model does not configure."""

    knobs: Any

    @classmethod
    def check(cls, knobs: Any, model: ModelSettings, place: str) -> Iterator[Finding]:
        """Yield the problems and warnings of the knobs at ``place``; by default those of the combined planners."""
        for part in cls.composed_of:
            yield from part.check(getattr(knobs, part.name), model, f"{place}.{part.name}")

    @classmethod
    def describe(cls, knobs: Any, model: ModelSettings, pool: PoolKnobs) -> Iterator[str]:
        """Yield sentences that describe the sizing of a pool; by default those of the combined planners."""
        for part in cls.composed_of:
            yield from part.describe(getattr(knobs, part.name), model, pool)

    @classmethod
    def traffic_knobs(cls, knobs: Any) -> TrafficKnobs | None:  # noqa: ARG003 - an interface
        """Return the knobs that divide traffic into intervals; None if the planner needs no history."""
        return None

    def apply_settings(self, knobs: Any) -> None:
        """Replace the knobs; keep recorded samples that remain valid."""
        before, self.knobs = self.knobs, knobs
        if knobs != before:
            self.on_settings_change(before)

    def on_settings_change(self, before: Any) -> None:
        """Update windows and times derived from the knobs, which were ``before``; by default there are none."""

    def forget_pool(self, pool: str) -> None:
        """Discard the state of a pool that was removed or replaced by another one of its name."""
        for name in self.pool_fields:
            getattr(self, name).pop(pool, None)

    def warm_up(self, history: History) -> None:
        """Use a history as the load before the first evaluation; by default it is ignored."""

    def plan(self, model: Model, now: int) -> Recommendation:
        """Return the recommendation at ``now`` (ms); called when the fleet state of the model changes, and at wakes.

        ``Recommendation.targets`` has absolute counts for the pools that should change; without targets it is a hold.
        It always has reasons.
        """
        raise NotImplementedError

    def next_wake(self) -> int:
        """Return the latest time (ms) of the next evaluation."""
        raise NotImplementedError

    def resume_requests_from(self, requests: int) -> None:
        """Number forecast requests from here, after those of the planners that this one replaces."""

    def forecast_request(self) -> ForecastRequest | None:
        """Return the forecast request that was not returned before; None if there is none."""
        return None

    def ingest_forecast(self, answer: ForecastFitted | ForecastFailed) -> None:
        """Record the answer to the pending forecast request; ignore any other answer."""

    def estimates(self, model: Model) -> Estimates:  # noqa: ARG002 - an interface
        """Return the expectations of the planner for the status, without a change of its state; by default none.

        Called when a person or a program reads the status, not in a turn.
        """
        return Estimates()

    def export_learned(self) -> bytes | None:
        """Return the learned engine parameters for a successor; None if there are none.

        The bytes change only when the parameters do, since every change is written to etcd.
        """
        return None

    def import_learned(self, data: bytes) -> None:
        """Start from the engine parameters that another agent learned; called before the first evaluation.

        Ignore data that is unreadable or does not apply any more.
        """
