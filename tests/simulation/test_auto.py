"""The planner auto with its defaults: steady loads, overload from the first second, and levels of a published ramp."""

import random
from itertools import pairwise
from typing import Final

import numpy as np
import pytest
from msgspec import Struct

from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.sim.fleet import SimulatedFleetKnobs, SimulatedPoolKnobs, StartDelayKnobs
from loadline.sim.profiles import LinearProfile
from loadline.sim.result import ScalingAction, SimulationResult
from loadline.sim.simulation import Scenario, simulate
from loadline.traces import Arrival, Trace

WARM_UP_S: Final = 300.0
REVERSAL_S: Final = 600.0
SLO_AWARE: Final = 0.958
"""Attainment of llm-d's rule ``slo-aware`` on a ramp from 2 to 10 and to 1 requests per second, with 3 to 8 workers."""
SLO_AWARE_WORKERS: Final = 5.93
"""Mean workers in it."""
RAMP: Final = ((0, 2), (600, 2), (900, 10), (1_500, 10), (1_800, 1), (2_400, 1))
"""Seconds and rates between which the rate rises and falls evenly; the published ramp has no times."""


class Served(Struct, frozen=True):
    """A model: its engine, its objectives and the mean lengths of its requests."""

    engine: LinearProfile
    kv_blocks: int
    ttft_ms: float
    itl_ms: float
    isl: int
    osl: int


# A pair of H100 serves 1.3 of these requests per second in time: 8 pairs are needed at 10 per second, as in that ramp.
QWEN: Final = Served(LinearProfile(14.0, 0.25, 12.0, 0.065), 18_000, 3_000.0, 100.0, 4_000, 1_000)
SHORT: Final = Served(LinearProfile(14.0, 0.25, 12.0, 0.065), 18_000, 3_000.0, 100.0, 4_000, 400)
SMALL: Final = Served(LinearProfile(10.0, 0.1, 5.0, 0.05), 20_000, 500.0, 25.0, 1_000, 150)
FAST: Final = Served(LinearProfile(6.0, 0.05, 4.0, 0.02), 40_000, 300.0, 20.0, 400, 40)


def arrivals(served: Served, per_s: float, duration_s: float) -> Trace:
    """Return Poisson arrivals whose lengths vary by a tenth."""
    rng, at_s, found = random.Random("auto"), 0.0, []
    while (at_s := at_s + rng.expovariate(per_s)) < duration_s:
        isl, osl = (max(1, int(rng.gauss(mean, 0.1 * mean))) for mean in (served.isl, served.osl))
        found.append(Arrival(at_s, isl, osl))
    return Trace("auto", found, duration_s)


def ramp_arrivals(served: Served, seed: int) -> Trace:
    """Return arrivals of the rates of the ramp: those of its highest rate, thinned out."""
    end_s, highest = float(RAMP[-1][0]), max(rate for _, rate in RAMP)
    seconds, rates = zip(*RAMP, strict=True)
    rng = random.Random(seed)
    kept = [
        one
        for one in arrivals(served, highest, end_s).arrivals
        if rng.random() * highest < np.interp(one.arrival_s, seconds, rates)
    ]
    return Trace("ramp", kept, end_s)


def simulate_auto(served: Served, trace: Trace, workers: int, bounds: tuple[int, int] = (1, 12)) -> SimulationResult:
    """Simulate workers that start in a minute and serve without a profile."""
    pool = PoolKnobs("engine", "aggregated", replicas_min=bounds[0], replicas_max=bounds[1])
    model = ModelKnobs("m", (pool,), planner="auto", objectives=ObjectiveKnobs(served.ttft_ms, served.itl_ms))
    engines = SimulatedPoolKnobs(
        "engine",
        served.kv_blocks,
        linear=served.engine,
        chunked_prefill=True,
        max_batched_tokens=2_048,
        workers=workers,
        start_delay=StartDelayKnobs("lognormal", 60.0, 0.1),
    )
    settings, fleet = Settings("agent", "all", (model,)), SimulatedFleetKnobs((engines,))
    return simulate(Scenario("auto", settings, fleet, trace), lambda _share: None)


def reversals(actions: list[ScalingAction]) -> list[tuple[ScalingAction, ScalingAction]]:
    """Return the changes that the next one reverses within ten minutes."""
    return [
        (one, following)
        for one, following in pairwise(actions)
        if (one.after > one.before) != (following.after > following.before) and following.at_s - one.at_s < REVERSAL_S
    ]


@pytest.mark.parametrize(
    ("served", "per_s", "workers", "needed"),
    [(SHORT, 5.0, 4, 3), (SHORT, 6.5, 4, 4), (SMALL, 12.0, 2, 2), (FAST, 30.0, 4, 1)],
    ids=["large", "near a boundary", "small", "fast"],
)
def test_a_steady_load_has_a_steady_count(served: Served, per_s: float, workers: int, needed: int) -> None:
    outcome = simulate_auto(served, arrivals(served, per_s, 1_200.0), workers)
    late = [action for action in outcome.actions if action.at_s > WARM_UP_S]
    assert not reversals(outcome.actions)
    assert len(late) <= 1
    assert outcome.series.pools[0].desired[-1] <= needed + 1
    assert outcome.attainment.both >= 0.99


@pytest.mark.parametrize(
    ("served", "per_s", "workers"),
    [(SMALL, 40.0, 1), (FAST, 200.0, 2), (SHORT, 10.0, 2)],
    ids=["small", "fast", "large"],
)
def test_overload_from_the_first_second_adds_workers_within_15_s(served: Served, per_s: float, workers: int) -> None:
    outcome = simulate_auto(served, arrivals(served, per_s, 60.0), workers)
    assert outcome.actions
    first = outcome.actions[0]
    assert first.after > first.before
    assert first.at_s <= 15.0


@pytest.mark.parametrize(("per_s", "workers"), [(10.0, 8), (2.0, 3)])
def test_the_levels_of_the_ramp_are_served_as_well_as_by_slo_aware(per_s: float, workers: int) -> None:
    outcome = simulate_auto(QWEN, arrivals(QWEN, per_s, 600.0), workers, (3, 8))
    assert outcome.attainment.both >= SLO_AWARE
    assert not reversals(outcome.actions)


def test_the_ramp_is_served_better_than_by_slo_aware_with_fewer_workers() -> None:
    trace = ramp_arrivals(QWEN, seed=0)
    outcome = simulate_auto(QWEN, trace, 3, (3, 8))
    assert outcome.attainment.both > SLO_AWARE
    assert outcome.gpu_hours * 3_600.0 / trace.duration_s < SLO_AWARE_WORKERS
    assert not reversals(outcome.actions)
