"""Every planner follows a load of which it knows only what plain engines export."""

from typing import Any

import pytest

from loadline.core.planning.planners import BUILT_IN, PLANNERS, Planner
from loadline.core.planning.planners.baselines.keda import KedaKnobs
from loadline.core.planning.planners.saturation import SaturationKnobs
from loadline.core.planning.planners.static import StaticKnobs
from loadline.core.state.settings import ModelKnobs
from loadline.core.vocabulary.reasons import ReasonCode
from loadline.core.vocabulary.scalars import Role
from tests.planners.test_conformance import SHAPES, apply_targets, evaluate
from tests.support.plain_engines import STEP_S, PlainEngines

LOW, HIGH = 8.0, 90.0
"""Requests/s that one worker of each role serves, and five or more."""
BEFORE_S, OVERLOAD_S, AFTER_S = 180, 300, 1_800
CHUNK_S = 60
UNKNOWN = {ReasonCode.NO_DATA, ReasonCode.ENGINE_LEARNING, ReasonCode.CAPACITY_LEARNING, ReasonCode.LOAD_LEARNING}
"""Reasons of holds that wait for reports."""
VARIANTS: dict[str, tuple[str, Any]] = {
    **{kind.name: (kind.name, None) for kind in BUILT_IN if kind.name != "static"},
    "keda": ("keda", KedaKnobs(start_up_ms=0)),
    "keda by tokens": ("keda", KedaKnobs("tokens", prefill_tokens_per_s=10_000.0, backlog_s=0.2)),
    "keda by latency": ("keda", KedaKnobs("latency")),
    "keda by saturation": ("keda", KedaKnobs("saturation", start_up_ms=0)),
    "saturation by tokens": ("saturation", SaturationKnobs(capacity="tokens")),
    "saturation upstream": ("saturation", SaturationKnobs(profile="upstream")),
}
"""Planners with the knobs that change their inputs. Counts of ``static`` do not depend on a load."""


BY_TRAFFIC = {"queueing", "sla", "throughput"}
"""Planners that hold without a frontend, since they size for the traffic that it reports."""


def planner_of(variant: str) -> Planner:
    name, knobs = VARIANTS[variant]
    sections: dict[str, Any] = {"static": StaticKnobs()} | ({name: knobs} if knobs else {})
    return PLANNERS[name](ModelKnobs("m", (), planner=name, planner_knobs=sections).knobs)


CASES = [(variant, reporting) for variant in sorted(VARIANTS) for reporting in ("frontend", "workers")]


@pytest.mark.parametrize(
    ("variant", "reporting"), [one for one in CASES if one[1] == "frontend" or one[0] not in BY_TRAFFIC]
)
@pytest.mark.parametrize("shape", sorted(SHAPES))
@pytest.mark.parametrize("cache", ["registered", "unknown"])
def test_counts_follow_the_load_of_engines_that_export_ratios_and_means(
    variant: str, reporting: str, shape: str, cache: str
) -> None:
    planner, roles = planner_of(variant), SHAPES[shape]
    profiled = planner.needs.profiles == "required"
    world = PlainEngines(
        roles, registers_cache=cache == "registered", profiled=profiled, reports_traffic=reporting == "frontend"
    )
    before = run(planner, world, BEFORE_S, LOW)
    peak = run(planner, world, OVERLOAD_S, HIGH)
    assert [role for role in roles if peak[role] > before[role]] == list(roles)
    for _ in range(AFTER_S // CHUNK_S):
        run(planner, world, CHUNK_S, LOW)
        shrunk = [role for role in roles if world.pool(role).ready < peak[role]]
        if len(shrunk) == len(roles):
            break
    assert shrunk == list(roles)
    held = {reason.code for reason in evaluate(planner, world).reasons}
    assert not held & UNKNOWN


def run(planner: Planner, world: PlainEngines, seconds: int, requests_per_s: float) -> dict[Role, int]:
    """Apply all recommendations at once; return the highest count of each pool."""
    highest: dict[Role, int] = {}
    for _ in range(seconds // STEP_S):
        world.serve(requests_per_s)
        for name, count in evaluate(planner, world).targets.items():
            world.pool(name).set_decided(max(1, min(16, count)), world.now)
        apply_targets(world)
        for pool in world.model.pools.values():
            highest[pool.knobs.role] = max(highest.get(pool.knobs.role, 0), pool.ready)
    return highest
