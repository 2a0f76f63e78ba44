"""Everything that a controller knows, as one encodable Struct: a snapshot of it is where a replay begins."""

import msgspec
from msgspec import Struct, field

from loadline.core.belief.fleet import Fleet, Model
from loadline.core.belief.pool import Pool
from loadline.core.belief.traffic import Traffic
from loadline.core.decisions.drains import Drains
from loadline.core.decisions.leadership import Leadership
from loadline.core.decisions.ledger import Ledger
from loadline.core.planning.guard import Guard, Limits
from loadline.core.planning.planners import PLANNERS, Planner
from loadline.core.report import Explanation
from loadline.core.settings import Settings


class State(Struct):
    """What is believed, remembered and under way."""

    fleet: Fleet
    leadership: Leadership
    ledger: Ledger
    drains: Drains
    guards: dict[str, Guard]
    due: dict[str, int]
    """When each model's planner wants to look again."""
    paused: dict[str, str] = field(default_factory=dict)
    """Paused models and who paused them."""
    renewals: dict[str, None] = field(default_factory=dict)
    """Models whose standing counts are to be decided again."""
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

    def count(self, what: str) -> None:
        """Something happened once more."""
        self.counters[what] = self.counters.get(what, 0) + 1


class Snapshot(Struct, frozen=True):
    """A state with its planners, whose types are known only by name."""

    state: State
    planners: dict[str, msgspec.Raw]


def initial_state(settings: Settings) -> State:
    """Nothing is known yet."""
    fleet, knobs = settings.fleet, settings.models
    return State(
        fleet=Fleet(
            knobs=fleet,
            models={
                model.name: Model(
                    name=model.name,
                    pools={pool.name: Pool(pool) for pool in model.pools},
                    traffic=Traffic(fleet.traffic_window_ms, fleet.frontends_max, fleet.stale_after_ms),
                )
                for model in knobs
            },
        ),
        leadership=Leadership(settings.scope, settings.leadership),
        ledger=Ledger(settings.decisions),
        drains=Drains(settings.drain),
        guards={
            model.name: Guard(model.guard, Limits(fleet.quorum_ratio, model.gpu_budget_min, model.gpu_budget_max))
            for model in knobs
        },
        due={model.name: 0 for model in knobs},
    )


def initial_planners(settings: Settings) -> dict[str, Planner]:
    """One planner for each model, by the name in its knobs."""
    return {m.name: PLANNERS[m.planner](getattr(m, m.planner)) for m in settings.models}


def snapshot(state: State, planners: dict[str, Planner]) -> Snapshot:
    """Everything, to be encoded at once: it goes on changing."""
    raw = {model: msgspec.Raw(msgspec.json.encode(planner)) for model, planner in planners.items()}
    return Snapshot(state, raw)


def decode_snapshot(settings: Settings, data: bytes) -> tuple[State, dict[str, Planner]]:
    """Undo the encoding of a ``snapshot``.

    Raises:
        msgspec.DecodeError: It was not written by this version.
    """
    snapshot = msgspec.json.decode(data, type=Snapshot)
    kinds = {model.name: PLANNERS[model.planner] for model in settings.models}
    planners = {model: msgspec.json.decode(raw, type=kinds[model]) for model, raw in snapshot.planners.items()}
    return snapshot.state, planners
