"""Scale to zero in the idle night of a trace: saved GPU hours, and the wait of the first request of the day."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.state.settings import ModelKnobs, Settings
from loadline.sim.fleet import SimulatedFleetKnobs
from loadline.sim.result import PoolSeries, SimulationResult
from loadline.sim.simulation import Scenario, simulate
from loadline.traces import Arrival
from tests.support.simulated_fleets import GUARD, pool_fleet, trace

DOCUMENT = Path(__file__).parents[2] / "docs" / "how-to" / "scale-to-zero.md"
START_UP_S = 20.0
"""Start-up time of the workers of the fleet."""
NIGHT_S = (120.0, 1_320.0)
AFTER_S = 300.0
ARRIVALS = [Arrival(start + number * 0.5, 200, 100) for start in (0.0, NIGHT_S[1]) for number in range(240)]


def simulate_night(planner: str, after_ms: int, *pools: PoolKnobs) -> SimulationResult:
    model = ModelKnobs("m", pools, planner=planner, guardrails=GUARD, scale_to_zero_after_ms=after_ms)
    fleet = SimulatedFleetKnobs(tuple(pool_fleet(pool.name) for pool in pools))
    return simulate(Scenario("t", Settings("agent", "all", (model,)), fleet, trace(ARRIVALS), 0), lambda _share: None)


def counts(outcome: SimulationResult, at_s: float) -> dict[str, int]:
    """Return the desired counts."""
    step = max(number for number, at in enumerate(outcome.series.at_s) if at <= at_s)
    return {line.pool: line.desired[step] for line in outcome.series.pools}


def first(line: PoolSeries, outcome: SimulationResult, after_s: float) -> float:
    """Return the time at which a pool first has a ready worker again."""
    return next(at for at, ready in zip(outcome.series.at_s, line.ready, strict=True) if at > after_s and ready)


ALONE = PoolKnobs("one", "aggregated", replicas_min=0, replicas_max=4)
SPLIT = (PoolKnobs("p", "prefill", replicas_min=0), PoolKnobs("d", "decode", replicas_min=0))


@pytest.mark.parametrize("planner", ["hybrid", "queueing", "saturation", "threshold", "throughput"])
@pytest.mark.parametrize("pools", [(ALONE, replace(ALONE, name="two")), SPLIT], ids=["mixed", "split"])
def test_an_idle_fleet_scales_to_zero_without_losing_requests(planner: str, pools: tuple[PoolKnobs, ...]) -> None:
    outcome = simulate_night(planner, int(AFTER_S * 1_000), *pools)
    assert (outcome.finished, outcome.drops, outcome.unfinished) == (480, 0, 0)
    dusk, dawn = NIGHT_S
    assert any(counts(outcome, dusk + AFTER_S - 30).values()), "not before the idle time has passed"
    assert not any(counts(outcome, dusk + AFTER_S + 30).values())
    assert not any(counts(outcome, dawn - 5).values())
    counts_at_dawn = counts(outcome, dawn + START_UP_S / 2)
    assert counts_at_dawn == ({"p": 1, "d": 1} if pools is SPLIT else {"one": 1, "two": 0}), "one worker of each role"
    line = outcome.series.pools[0]
    assert first(line, outcome, dawn) - dawn == pytest.approx(START_UP_S, abs=outcome.series.step_s + 2.0)


def test_scale_to_zero_saves_gpu_hours_and_the_first_requests_wait_for_a_worker() -> None:
    awake, slept = simulate_night("saturation", 0, ALONE), simulate_night("saturation", int(AFTER_S * 1_000), ALONE)
    # The fleet is at zero for 900 of 1,440 s; the backlog afterwards needs more than one worker for a while.
    [percent] = re.findall(r"saves (\d+) % of the\nGPU-hours", DOCUMENT.read_text("utf-8"))
    assert round(100.0 * (1.0 - slept.gpu_hours / awake.gpu_hours)) == int(percent)
    late = [ms for ms in slept.series.ttft_p95_ms if ms is not None and ms > 1_000.0]
    assert max(late) == pytest.approx(START_UP_S * 1_000, rel=0.15)
    assert max(ms for ms in awake.series.ttft_p95_ms if ms is not None) < 1_000.0
