"""Settings of fleets with extreme messages: every planner, shape of a fleet and kind of profile.

Allocation policies, solvers and load metrics take turns over the worlds; migration policies have a random order.
"""

import random
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path
from typing import Final, get_args

from msgspec import Struct
from msgspec.structs import replace

from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.engines.profile import NO_PROFILE, EngineProfile, LinearKnobs, ObjectiveKnobs
from loadline.core.engines.tpot import TpotSweep
from loadline.core.fleet.fleet import FleetKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.migration.knobs import MetricName, MigrationKnobs, PolicyName
from loadline.core.planning.allocation.supplies import AllocationKnobs
from loadline.core.planning.guardrails.knobs import GuardrailKnobs
from loadline.core.planning.planners import BUILT_IN
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.core.vocabulary.allocations import SaturationPolicy
from loadline.core.vocabulary.scalars import WORKERS_MAX, Role
from loadline.profile_files import read_decode, read_prefill
from tests.support.extremes import variant

DEMO: Final = Path(__file__).parents[2] / "agent/loadline/demo/data"
PROFILE: Final = "dynamo_h100_llama3.3-70b-fp8_tp2"
PLANNERS: Final = sorted(one.name for one in BUILT_IN)
TPOT: Final = TpotSweep((1.0, 1.0, 64.0, 64.0), (8.0, 8_192.0, 8.0, 8_192.0), (5.0, 6.0, 20.0, 40.0))
SHAPES: Final[dict[str, tuple[Role, ...]]] = {
    "disaggregated": ("prefill", "decode", "decode"),
    "aggregated": ("aggregated", "aggregated"),
}
FAILING: Final = "failing"
"""Exact solver that never answers in time."""
PROFILES: Final = ("none", "linear", "sweep")
POLICIES: Final = get_args(SaturationPolicy)
SOLVERS: Final = ("exact", "greedy", FAILING)
METRICS: Final = get_args(MetricName)
QUICK: Final = {"throughput_adjustment_interval_ms": 10_000, "busiest_ms": 10_000, "optimization_interval_ms": 5_000}


class WorldKind(Struct, frozen=True):
    """Parts of a world that vary."""

    seed: int
    planner: str
    other_planner: str
    shape: str
    profile: str
    allocation: SaturationPolicy
    solver: str
    metric: MetricName


def worlds(seed: int) -> Iterator[WorldKind]:
    """Yield the worlds of a seed."""
    for number, (planner, shape, profile) in enumerate(product(PLANNERS, SHAPES, PROFILES), start=seed):
        other = PLANNERS[(PLANNERS.index(planner) + number) % len(PLANNERS)]
        policy, solver = POLICIES[number % len(POLICIES)], SOLVERS[number % len(SOLVERS)]
        yield WorldKind(seed, planner, other, shape, profile, policy, solver, METRICS[number % len(METRICS)])


def settings_of(kind: WorldKind, rng: random.Random) -> Settings:
    """Return the settings of a world."""
    shapes = [kind.shape, rng.choice(list(SHAPES))]
    planners = [kind.planner, kind.other_planner]
    models = [
        _model(name, planner, shape, kind.metric, rng)
        for name, planner, shape in zip("ab", planners, shapes, strict=True)
    ]
    allocation = replace(
        variant(rng, AllocationKnobs, {}),
        policy=kind.allocation,
        solver="exact" if kind.solver == FAILING else kind.solver,
        capacity={"h100": rng.choice([0, 3, 8]), "l40": 5},
    )
    engine = engines()[kind.profile]
    return Settings(
        "agent-1",
        "all",
        tuple(models),
        fleet=FleetKnobs(gpu_budget_max=rng.choice([None, 10]), gpu_budget_min=rng.choice([0, 4])),
        accelerators=(AcceleratorKnobs("h100", cost_per_hour=4.0), AcceleratorKnobs("l40")),
        allocation=allocation,
        quotas={"default": {"h100": 6, "default": -1}} if rng.random() < 0.5 else {},
        profiles={model.name: {pool.name: engine for pool in model.pools} for model in models},
        tpot_profiles={"a": TPOT} if rng.random() < 0.5 else {},
        only_migration=rng.random() < 0.1,
    )


def _model(name: str, planner: str, shape: str, metric: MetricName, rng: random.Random) -> ModelKnobs:
    pools = tuple(
        PoolKnobs(
            f"{role}{number}",
            role,
            gpus_per_worker=rng.choice([1, 2]),
            replicas_min=rng.choice([0, 1]),
            replicas_max=rng.choice([1, 8, 8, WORKERS_MAX]),
            accelerator=("h100", "l40", "")[number],
        )
        for number, role in enumerate(SHAPES[shape])
    )
    knobs = {one.name: variant(rng, one.Knobs, QUICK) for one in BUILT_IN if one.name == planner}
    policies = list(get_args(PolicyName))
    rng.shuffle(policies)
    metrics = {f"{role}_load_metric": metric for role in ("decode", "prefill", "neutral")}
    thresholds = {f"{role}_load_threshold": rng.choice([0.0, 1.0]) for role in ("decode", "neutral")}
    migration = replace(
        variant(rng, MigrationKnobs, {}),
        enabled=True,
        policies=tuple(policies),
        load_balance_threshold=rng.choice([0.0, 0.7]),
        consolidate_after_ms=rng.choice([0, 10_000]),
        **metrics,
        **thresholds,
    )
    return ModelKnobs(
        name,
        pools,
        planner=planner,
        planner_knobs=knobs,
        priority=rng.choice([1, 100]),
        scale_to_zero_after_ms=rng.choice([0, 60_000]),
        objectives=ObjectiveKnobs(rng.choice([1.0, 500.0]), rng.choice([1.0, 50.0]), rng.choice([0.0, 1e4])),
        guardrails=GuardrailKnobs(step_up_max=rng.choice([1_000, WORKERS_MAX]), stabilisation_ms=0, warm_up_ms=0),
        migration=migration,
    )


@cache
def engines() -> dict[str, EngineProfile]:
    """Return an engine of each kind of profile."""
    linear = LinearKnobs(10.0, 0.08, 5.0, 0.02, max_kv_tokens=1e6)
    sweep = EngineProfile(read_prefill(DEMO / f"{PROFILE}_prefill.json"), read_decode(DEMO / f"{PROFILE}_decode.json"))
    return {"none": NO_PROFILE, "linear": EngineProfile(linear=linear), "sweep": sweep}
