"""Fleets of the scoreboard: engines with measured profiles, as one configuration and one simulated fleet.

Every planner has its defaults, and so have the guardrails; only objectives, profiles and bounds are set.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from loadline.config import AgentKnobs, Config
from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.planners import PLANNERS, Planner
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.scalars import Role
from loadline.runtime.settings import settings as settings_of
from loadline.sim.fleet import SimulatedFleetKnobs, SimulatedPoolKnobs, StartDelayKnobs

Arrangement = Literal["aggregated", "disaggregated"]

REPLICAS_MAX: Final = 16
_START_DELAY_CV: Final = 0.25
_CHUNK_TOKENS: Final = 2_048
"""Default of vLLM for chunked prefill, which aggregated workers use."""
_HERE: Final = Path(__file__).parent
_DEMO_DATA: Final = _HERE.parents[1] / "agent/loadline/demo/data"
_ROLES: Final[dict[Arrangement, tuple[Role, ...]]] = {
    "aggregated": ("aggregated",),
    "disaggregated": ("prefill", "decode"),
}


class EngineKind(Struct, frozen=True):
    """Engine with a measured profile."""

    name: str
    profile: Path
    """Path of both profiles, without their endings."""
    gpus: int
    kv_blocks: int
    """KV cache blocks of 16 tokens."""

    @property
    def files(self) -> tuple[str, str]:
        """Prefill profile and decode profile."""
        return f"{self.profile}_prefill.json", f"{self.profile}_decode.json"


class FleetKind(Struct, frozen=True):
    """Engines that serve a model, and its latency objectives."""

    title: str
    engines: tuple[EngineKind, ...]
    ttft_ms: float
    itl_ms: float


# The KV cache of an 8B model in one H200 is that of its profile, 945,029 tokens. Two H100 hold the 96,000 tokens of
# docs/examples/serving.toml beside 70B weights, four the 224,133 tokens of the profile.
_SMALL: Final = EngineKind("h200", _HERE / "data/dynamo_h200_llama3.1-8b-fp8_tp1", 1, 59_000)
_PAIR: Final = EngineKind("pair", _DEMO_DATA / "dynamo_h100_llama3.3-70b-fp8_tp2", 2, 6_000)
_QUAD: Final = EngineKind("quad", _HERE / "data/dynamo_h100_llama3.3-70b-fp8_tp4", 4, 14_000)
FLEETS: Final[dict[str, FleetKind]] = {
    "8b": FleetKind("Llama 3.1 8B on one H200", (_SMALL,), 500.0, 25.0),
    "70b": FleetKind("Llama 3.3 70B on pairs of H100", (_PAIR,), 500.0, 50.0),
    "mixed": FleetKind("Llama 3.3 70B on pairs and on fours of H100", (_PAIR, _QUAD), 500.0, 50.0),
}


def settings(fleet: FleetKind, arrangement: Arrangement, planner: str, attainment: float) -> Settings:
    """Return the settings of an agent with this planner.

    Args:
        fleet: Engines and objectives.
        arrangement: Roles of the pools.
        planner: Name of the planner, which has its defaults.
        attainment: Fraction of the requests that planners size for.
    """
    pools = tuple(
        PoolKnobs(
            _pool_name(engine, role),
            role,
            gpus_per_worker=engine.gpus,
            replicas_max=REPLICAS_MAX,
            prefill_profile=engine.files[0] if role != "decode" else "",
            decode_profile=engine.files[1] if role != "prefill" else "",
        )
        for role in _ROLES[arrangement]
        for engine in fleet.engines
    )
    objectives = ObjectiveKnobs(fleet.ttft_ms, fleet.itl_ms, attainment=attainment)
    knobs = {planner: sized_for(PLANNERS[planner], attainment)}
    model = ModelKnobs("model", pools, planner=planner, objectives=objectives, planner_knobs=knobs)
    return settings_of(Config((model,), agent=AgentKnobs("scoreboard")))


def sized_for(kind: type[Planner], attainment: float) -> Any:
    """Return the default knobs of a planner; those with a knob ``attainment`` of their own get the objective."""
    knobs = kind.Knobs()
    changed: dict[str, Any] = {part.name: sized_for(part, attainment) for part in kind.composed_of}
    if "attainment" in knobs.__struct_fields__:
        changed["attainment"] = attainment
    return replace(knobs, **changed)


def simulated(
    fleet: FleetKind, arrangement: Arrangement, start_up_s: float, workers: Mapping[str, int]
) -> SimulatedFleetKnobs:
    """Return the simulated fleet, with these workers in each pool when the trace begins."""
    chunked = {"chunked_prefill": True, "max_batched_tokens": _CHUNK_TOKENS} if arrangement == "aggregated" else {}
    pools = tuple(
        SimulatedPoolKnobs(
            _pool_name(engine, role),
            engine.kv_blocks,
            *engine.files,
            workers=workers.get(_pool_name(engine, role), 1),
            start_delay=StartDelayKnobs(mean_s=start_up_s, cv=_START_DELAY_CV),
            **chunked,  # type: ignore[arg-type]  # two fields of one pool
        )
        for role in _ROLES[arrangement]
        for engine in fleet.engines
    )
    return SimulatedFleetKnobs(pools)


def _pool_name(engine: EngineKind, role: Role) -> str:
    return f"{role}-{engine.name}"
