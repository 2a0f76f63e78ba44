"""Properties of every planner, including the one of the documentation."""

import copy
import itertools
import math
from collections.abc import Callable, Iterator

import msgspec
import pytest

from loadline.core.engines.profile import EngineProfile, LinearKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.planners import BUILT_IN, PLANNERS, Planner
from loadline.core.planning.planners.baselines.keda import KedaKnobs
from loadline.core.planning.planners.static import StaticKnobs
from loadline.core.state.settings import ModelKnobs
from loadline.core.vocabulary.events import ForecastFitted, TrafficReported
from loadline.core.vocabulary.reasons import Recommendation
from loadline.core.vocabulary.samples import TrafficSample, WorkerSample
from loadline.core.vocabulary.scalars import Role
from loadline.forecast import forecast
from tests.support.fleet_harness import FleetHarness, reported
from tests.support.plugins import EXAMPLE

SHAPES: dict[str, tuple[Role, ...]] = {"disaggregated": ("prefill", "decode"), "aggregated": ("aggregated",)}
STEP_MS = 1_000
WARM_STEPS = 60
LONG_STEPS = 1_800

NOT_MONOTONE_IN_HISTORY = {
    "threshold": "a queue that was longer before is falling faster, so fewer workers are needed",
}
"""Planners that may propose fewer workers when the *past* load was higher, and why.

None may when the load is always higher by the same amount.
"""

NOT_MONOTONE_IN_SWINGS: dict[tuple[str, tuple[Role, ...]], str] = {
    ("auto", ("aggregated",)): "it provides for the arrivals since their last change beyond chance; a swing that is "
    "capped at full KV caches changes less, so the mean of 15 s counts instead",
}
"""Planners that may propose fewer workers when a *swinging* load is higher by the same amount, and why."""


NOT_EVENT_DRIVEN = {
    "apa": "the original evaluates every 10 s",
    "hpa": "the original evaluates every 15 s",
    "keda": "the original evaluates every 15 s",
    "kpa": "the original evaluates every 2 s",
    "static": "its counts are fixed",
}
"""Planners that do not scale up in the turn in which an overload is reported, and why. All others must."""

BLIND = {
    "static": "its counts do not depend on the load",
}
"""Planners that propose counts without data, and why. All others must hold."""

_BY_QUEUE = "it assumes that a queue is inversely proportional to the workers, so it overshoots up and down"
OSCILLATES: dict[tuple[str, Role], str] = {
    ("apa", "prefill"): _BY_QUEUE,
    ("hpa", "prefill"): _BY_QUEUE,
    ("keda", "prefill"): _BY_QUEUE,
    ("keda", "aggregated"): _BY_QUEUE,
    ("kpa", "prefill"): "it assumes that requests in flight do not depend on the workers, so a queue is demand",
    ("load", "prefill"): "it assumes the same of a queue as hpa; in sla, the minimum prevents that",
}
"""Planners that do not converge for pools of a role, which they size by queue length, and why."""

FIXED = 4
"""Count of every pool in the settings of the static planner."""


@pytest.fixture(params=[*sorted(kind.name for kind in BUILT_IN), EXAMPLE])
def name(request: pytest.FixtureRequest) -> str:
    if request.param == EXAMPLE:
        request.getfixturevalue("toy")
    return str(request.param)


@pytest.fixture(params=sorted(SHAPES))
def roles(request: pytest.FixtureRequest) -> tuple[Role, ...]:
    return SHAPES[str(request.param)]


def make(name: str) -> Planner:
    fixed = StaticKnobs({role: FIXED for shape in SHAPES.values() for role in shape})
    at_once = KedaKnobs(start_up_ms=0)  # by default it scales up by the lowest proposal of five minutes
    planner_knobs = {"static": fixed, "keda": at_once}
    knobs = ModelKnobs("m", (PoolKnobs("decode", "decode"),), planner=name, planner_knobs=planner_knobs)
    return PLANNERS[name](knobs.knobs)


# A worker serves 100 requests a second of 500 and 100 tokens within the default objectives.
ENGINE = EngineProfile(linear=LinearKnobs(10.0, 0.08, 0.0, 0.02, max_kv_tokens=1e6, max_batch_requests=1_000))
REQUESTS_PER_S, ISL, OSL = 100, 500, 100
BLOCKS = 1_000


def make_harness(roles: tuple[Role, ...], workers: int = 3) -> FleetHarness:
    world = FleetHarness([PoolKnobs(role, role) for role in roles], workers)
    for pool in world.model.pools.values():
        pool.engine = ENGINE
    return world


def ingest_load(world: FleetHarness, pool: str, kv: float, queue: int, demand: float | None = None) -> None:
    """Report from all workers with the latencies of this load, and from a frontend for the first pool.

    Demand is in workers; by default it is the load of the workers plus waiting requests.
    """
    world.sequence += 1
    workers = list(world.pool(pool).workers)
    for number, worker in enumerate(workers):
        isl = ISL + 50.0 * number + world.sequence % 7
        tokens, blocks = queue * ISL // len(workers), round(kv * BLOCKS) + number
        new_sample = WorkerSample(
            world.sequence,
            0,
            kv_usage_ratio=kv,
            kv_blocks_used=blocks,
            waiting_requests=queue if number == 0 else 0,
            running_requests=1,
            queued_prefill_tokens=tokens,
            isl_tokens=isl,
            ttft_ms=10.0 + 0.02 * (tokens + isl),
            itl_ms=10.0 + 50.0 * blocks / BLOCKS,
        )
        world.fleet.ingest(reported(worker, new_sample, pool=pool), world.now)
    if pool == next(iter(world.model.pools)):
        arrivals = round((kv * len(workers) if demand is None else demand) * REQUESTS_PER_S) + queue
        sample = TrafficSample(
            world.sequence,
            1_000,
            arrivals,
            arrivals,
            isl_tokens=float(ISL),
            osl_tokens=float(OSL),
            ttft_ms=1.0,
            itl_ms=1.0,
        )
        world.model.traffic.ingest(TrafficReported("m", "f", 1, sample), world.now)


def evaluate(planner: Planner, world: FleetHarness) -> Recommendation:
    """Return the recommendation; answer forecast requests at once."""
    recommendation = planner.plan(world.refresh(), world.now)
    pending = planner.forecast_request()
    if pending is not None:
        planner.ingest_forecast(
            ForecastFitted("m", pending.request, [forecast(question) for question in pending.queries])
        )
        recommendation = planner.plan(world.model, world.now)
    return recommendation


Load = Callable[[int], tuple[float, int]]
"""KV usage and queue at a step."""


def steady(kv: float, queue: int) -> Load:
    return lambda _step: (kv, queue)


def run_load(planner: Planner, world: FleetHarness, load: Load, steps: int = WARM_STEPS) -> Iterator[Recommendation]:
    for step in range(steps):
        kv, queue = load(step)
        for pool in world.model.pools:
            ingest_load(world, pool, kv, queue)
        yield evaluate(planner, world)
        world.now += STEP_MS


def last(name: str, roles: tuple[Role, ...], load: Load) -> dict[str, int]:
    world = make_harness(roles)
    *_, recommendation = run_load(make(name), world, load)
    current = {pool.name: pool.effective_target(world.now) for pool in world.model.pools.values()}
    return current | recommendation.targets


LOADS: dict[str, Load] = {
    "idle": steady(0.0, 0),
    "low": steady(0.3, 0),
    "middle": steady(0.7, 0),
    "high": steady(0.95, 3),
    "full": steady(1.0, 10_000),
    "swinging": lambda step: ((step % 7) / 7, step % 5),
    "rising": lambda step: (min(1.0, step / 50), step),
    "falling": lambda step: (max(0.0, 1 - step / 50), max(0, 60 - step)),
}


def test_a_planner_is_registered_under_its_name(name: str) -> None:
    assert PLANNERS[name].name == name


def targets_without_data(name: str, roles: tuple[Role, ...]) -> dict[str, int]:
    """Return the targets recommended without data."""
    return dict.fromkeys(roles, FIXED) if name in BLIND else {}


def test_no_workers_and_no_data_are_a_hold(name: str, roles: tuple[Role, ...]) -> None:
    for workers in (0, 3):
        planner, world = make(name), make_harness(roles, workers)
        for _ in range(WARM_STEPS * 10):
            recommendation = planner.plan(world.refresh(), world.now)
            assert recommendation.targets == targets_without_data(name, roles)
            assert recommendation.reasons
            world.now += STEP_MS


def test_a_pool_whose_workers_stop_reporting_is_held(name: str, roles: tuple[Role, ...]) -> None:
    for load in LOADS.values():
        planner, world = make(name), make_harness(roles)
        list(run_load(planner, world, load))
        world.now += world.fleet.knobs.stale_after_ms
        assert planner.plan(world.refresh(), world.now).targets == targets_without_data(name, roles)


def test_an_overload_scales_up_by_the_next_evaluation(name: str, roles: tuple[Role, ...]) -> None:
    planner, world = make(name), make_harness(roles)
    *_, medium = run_load(planner, world, LOADS["middle"], WARM_STEPS + 1)
    world.now += 1 - STEP_MS  # just after an evaluation of every planner: a minute is a multiple of all intervals
    ingest_load(world, roles[0], 1.0, 10_000)
    flood = evaluate(planner, world)
    grown = {pool: count for pool, count in flood.targets.items() if count > medium.targets.get(pool, 3)}
    assert bool(grown) == (name not in NOT_EVENT_DRIVEN)


@pytest.mark.parametrize("load", sorted(LOADS))
def test_a_recommendation_is_finite_valid_and_has_reasons(name: str, roles: tuple[Role, ...], load: str) -> None:
    planner, world = make(name), make_harness(roles)
    for recommendation in run_load(planner, world, LOADS[load], 3 * WARM_STEPS):
        assert recommendation.planner == name
        assert recommendation.reasons
        assert all(reason.sentence() for reason in recommendation.reasons)
        assert set(recommendation.targets) <= set(world.model.pools)
        assert all(type(count) is int for count in recommendation.targets.values())
        numbers = [
            *recommendation.inputs.values(),
            *(n for reason in recommendation.reasons for n in reason.numbers.values()),
        ]
        assert all(type(number) is float and math.isfinite(number) for number in numbers)
        assert planner.next_wake() > world.now
        assert msgspec.json.decode(msgspec.json.encode(recommendation), type=Recommendation) == recommendation


@pytest.mark.parametrize("load", sorted(LOADS))
def test_equal_calls_give_equal_recommendations(name: str, roles: tuple[Role, ...], load: str) -> None:
    first, second = (list(run_load(make(name), make_harness(roles), LOADS[load])) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("load", sorted(LOADS))
def test_estimates_are_finite_and_change_nothing(name: str, roles: tuple[Role, ...], load: str) -> None:
    planner, world = make(name), make_harness(roles)
    list(run_load(planner, world, LOADS[load]))
    before = msgspec.json.encode((planner, world.model))
    found = planner.estimates(world.model)
    assert msgspec.json.encode((planner, world.model)) == before
    assert found.pools.keys() <= world.model.pools.keys()
    estimates = [*found.pools.values(), *([] if found.forecast is None else [found.forecast])]
    numbers = [number for one in estimates for number in msgspec.structs.astuple(one) if number is not None]
    assert all(math.isfinite(number) and number >= 0.0 for number in [*numbers, *found.corrections.values()])


def test_planning_does_not_modify_the_fleet_state(name: str, roles: tuple[Role, ...]) -> None:
    planner, world = make(name), make_harness(roles)
    list(run_load(planner, world, LOADS["rising"]))
    before = msgspec.json.encode(world.refresh())
    planner.plan(world.refresh(), world.now)
    assert msgspec.json.encode(world.model) == before


@pytest.mark.parametrize("load", sorted(LOADS))
def test_an_encoded_planner_restores_its_state(name: str, roles: tuple[Role, ...], load: str) -> None:
    planner, world = make(name), make_harness(roles)
    list(run_load(planner, world, LOADS[load], 45))
    encoded = msgspec.json.encode(planner)
    restored, other = msgspec.json.decode(encoded, type=PLANNERS[name]), copy.deepcopy(world)
    assert msgspec.json.encode(restored) == encoded
    assert list(run_load(restored, other, LOADS[load])) == list(run_load(planner, world, LOADS[load]))
    assert msgspec.json.encode(restored) == msgspec.json.encode(planner)


def test_an_encoded_planner_goes_on_at_the_same_times_without_reports(name: str, roles: tuple[Role, ...]) -> None:
    planner, world = make(name), make_harness(roles)
    list(run_load(planner, world, LOADS["rising"], 45))
    restored, other = msgspec.json.decode(msgspec.json.encode(planner), type=PLANNERS[name]), copy.deepcopy(world)
    evaluated_ms = world.now - STEP_MS
    for elapsed_ms in range(20, 2_001, 20):
        world.now = other.now = evaluated_ms + elapsed_ms
        assert evaluate(restored, other) == evaluate(planner, world)
        assert msgspec.json.encode(restored) == msgspec.json.encode(planner), f"{elapsed_ms} ms after the last report"


@pytest.mark.parametrize("shape", ["idle", "swinging"])
def test_more_load_never_recommends_fewer_workers(name: str, roles: tuple[Role, ...], shape: str) -> None:
    """All loads of a grid are higher than the shape by a constant."""
    grid: dict[tuple[int, int], dict[str, int]] = {}
    for tenths in range(11):
        for queue in (0, 1, 2, 50, 1_000):

            def load(step: int, tenths: int = tenths, queue: int = queue) -> tuple[float, int]:
                kv, waiting = LOADS[shape](step)
                return min(1.0, kv + tenths / 10), waiting + queue

            grid[tenths, queue] = last(name, roles, load)
    if shape == "idle":
        varies = any(targets != grid[0, 0] for targets in grid.values())
        assert varies == (name not in BLIND), "otherwise there is nothing to compare"
    fewer = any(
        grid[more][pool] < targets[pool]
        for (tenths, queue), targets in grid.items()
        for more in grid
        if more[0] >= tenths and more[1] >= queue
        for pool in targets
    )
    assert fewer == (shape == "swinging" and (name, roles) in NOT_MONOTONE_IN_SWINGS)


def test_a_history_with_more_load_never_recommends_fewer_workers(name: str, roles: tuple[Role, ...]) -> None:
    medium = last(name, roles, steady(0.7, 1))
    busy = last(name, roles, lambda step: (0.7, 1 if step == WARM_STEPS - 1 else 2))
    fewer = [pool for pool in medium if busy[pool] < medium[pool]]
    assert bool(fewer) == (name in NOT_MONOTONE_IN_HISTORY and "decode" not in fewer)


@pytest.mark.parametrize("demand", [0.0, 0.4, 1.3, 2.0, 3.7, 6.0])
def test_under_constant_demand_the_counts_converge(name: str, roles: tuple[Role, ...], demand: float) -> None:
    """Recommendations are applied after a while. Demand is in workers: KV usage is the demand over the count.

    A stable count exists for each of these demands; a planner must converge to it.
    """
    planner, world = make(name), make_harness(roles)
    for pool in world.model.pools.values():
        pool.decided = 3
    history: list[tuple[int, ...]] = []
    for step in range(LONG_STEPS):
        for pool in world.model.pools.values():
            kv = min(1.0, demand / pool.ready)
            ingest_load(world, pool.name, kv, queued_requests(kv, step) if pool.knobs.role != "decode" else 0, demand)
        for pool_name, count in evaluate(planner, world).targets.items():
            world.pool(pool_name).set_decided(max(1, min(8, count)), world.now)
        if step % 10 == 0:
            apply_targets(world)
        history.append(tuple(pool.ready for pool in world.model.pools.values()))
        world.now += STEP_MS
    for index, role in enumerate(roles):
        counts = [counts[index] for counts in history]
        if (name, role) in OSCILLATES:
            continue
        assert len(set(counts[LONG_STEPS // 2 :])) == 1, "it does not converge"
        changes = [after - before for before, after in itertools.pairwise(counts) if after != before]
        reversals = sum(before * after < 0 for before, after in itertools.pairwise(changes))
        assert reversals <= 1, f"it oscillates: {changes}"


def queued_requests(busy: float, step: int) -> int:
    """Return whole requests whose mean over some steps is that of a queue at this utilisation, at most 50."""
    mean = 50.0 if busy >= 1 else min(50.0, busy * busy / (1 - busy))
    return math.floor(mean * (step + 1)) - math.floor(mean * step)


def apply_targets(world: FleetHarness) -> None:
    for pool in world.model.pools.values():
        assert pool.decided is not None
        while pool.ready > pool.decided:
            world.remove_newest(pool.name)
        world.add_workers(pool.name, pool.decided - pool.ready)
