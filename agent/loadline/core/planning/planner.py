"""The interface of planners: what one is, what it needs and how it describes itself."""

from collections.abc import Iterator
from typing import Any, ClassVar, Literal

from msgspec import Struct

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.fleet.fleet import FleetKnobs, Model
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.demand.knobs import TrafficKnobs
from loadline.core.vocabulary.events import ForecastFailed, ForecastFitted
from loadline.core.vocabulary.forecasts import ForecastQuery, History
from loadline.core.vocabulary.reasons import Recommendation


class NoKnobs(Struct, frozen=True, forbid_unknown_fields=True):
    """Knobs of a planner that has none."""


class Needs(Struct, frozen=True):
    """Inputs of a planner, and the objectives that it sizes for."""

    traffic: bool = False
    """Reports of frontends; without them it holds."""
    history: bool = False
    """A trace of the load before the start, from which its first forecasts are made; see ``Planner.traffic_knobs``."""
    profiles: Literal["no", "optional", "required"] = "no"
    """Engine profiles; optional: pools without one are learned from the iterations of their workers."""
    objectives: frozenset[str] = frozenset()
    """Keys of the objectives that it sizes for."""
    shares_role_load: bool = False
    """It shares the load of a role among its pools, so a pool of it may be empty and grow again."""


class ModelSettings(Struct, frozen=True):
    """Settings of a model that the checks and the description of its planner consult."""

    pools: tuple[PoolKnobs, ...]
    objectives: ObjectiveKnobs
    fleet: FleetKnobs


class KnobProblem(Struct, frozen=True):
    """Knobs that contradict each other: the configuration is refused."""

    place: str
    problem: str
    remedy: str


class KnobWarning(Struct, frozen=True):
    """Knobs that are legal and hardly meant."""

    place: str
    text: str


Finding = KnobProblem | KnobWarning


class ForecastRequest(Struct, frozen=True):
    """Forecasts that a planner wants; the answer carries the same ``request``."""

    request: int
    questions: list[ForecastQuery]


class Planner(Struct):
    """Turns what is believed of one model into an opinion.

    A planner's fields are its knobs and its windows: encoded, it is its own state. It is not told whether its opinion
    was followed: it sees that in the pools (``desired``, ``scaled_up_at_ms``), so the two cannot drift apart.
    """

    name: ClassVar[str] = ""
    """Name of the planner in a configuration, and of the section that has its knobs."""

    summary: ClassVar[str] = ""
    """One sentence for people."""

    Knobs: ClassVar[type[Struct]] = NoKnobs
    """Type of its knobs; every field has a default."""

    needs: ClassVar[Needs] = Needs()

    composed_of: ClassVar[tuple[type["Planner"], ...]] = ()
    """Planners that are its parts; its knobs have a section for each, by its name."""

    pool_fields: ClassVar[tuple[str, ...]] = ()
    """Names of its fields that hold something for each pool."""

    knobs: Any

    @classmethod
    def check(cls, knobs: Any, model: ModelSettings, place: str) -> Iterator[Finding]:
        """Yield contradictions and mistakes in its knobs, which are written at ``place``; by default of its parts."""
        for part in cls.composed_of:
            yield from part.check(getattr(knobs, part.name), model, f"{place}.{part.name}")

    @classmethod
    def describe(cls, knobs: Any, model: ModelSettings, pool: PoolKnobs) -> Iterator[str]:
        """Yield sentences on the way it sizes a pool with these knobs; by default those of its parts."""
        for part in cls.composed_of:
            yield from part.describe(getattr(knobs, part.name), model, pool)

    @classmethod
    def traffic_knobs(cls, knobs: Any) -> TrafficKnobs | None:  # noqa: ARG003 - an interface
        """Return the knobs by which it divides the traffic into intervals; None if it needs no history."""
        return None

    def apply_settings(self, knobs: Any) -> None:
        """Go by these knobs from now on. What was seen is kept, as far as it still means the same."""
        before, self.knobs = self.knobs, knobs
        if knobs != before:
            self.on_settings_change(before)

    def on_settings_change(self, before: Any) -> None:
        """The knobs are others now than ``before``: windows and times that were made from those follow."""

    def forget_pool(self, pool: str) -> None:
        """There is no such pool any more, or it is another one."""
        for name in self.pool_fields:
            getattr(self, name).pop(pool, None)

    def warm_up(self, history: History) -> None:
        """Take what was before the first look for the past. Most have no use for it."""

    def plan(self, model: Model, now: int) -> Recommendation:
        """Give an opinion at ``now`` (ms). Called whenever the model's picture changed, and at ``next_wake``.

        The opinion's ``targets`` hold absolute counts for the pools that should change; no targets is a hold. Reasons
        are always given.
        """
        raise NotImplementedError

    def next_wake(self) -> int:
        """When (ms) it wants to look again even if nothing happens."""
        raise NotImplementedError

    def resume_requests_from(self, requests: int) -> None:
        """Take the place of planners that have asked for so many forecasts: what is late is none of its."""

    def forecast_request(self) -> ForecastRequest | None:
        """What it wants to have forecast since the last call. Most want nothing."""
        return None

    def ingest_forecast(self, answer: ForecastFitted | ForecastFailed) -> None:
        """A forecast came, or none can be had. What it did not ask for, or asks for no more, it ignores."""

    def export_learned(self) -> bytes | None:
        """What it has learned of the engines, to be kept beyond this agent; None: nothing. Most learn nothing.

        The same bytes as long as it has learned nothing new: only what changed need be written.
        """
        return None

    def import_learned(self, data: bytes) -> None:
        """Begin with what another agent's planner had learned, before the first look.

        What cannot be read, or is of no use any more, it ignores: then it learns anew.
        """
