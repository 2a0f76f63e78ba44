"""Where the simulated gateway sends requests, and what becomes of them when workers drain or are lost."""

import msgspec
import pytest

from loadline.core.belief.pool import PoolKnobs
from loadline.core.planning.planners.threshold import ThresholdKnobs
from loadline.core.settings import ModelKnobs, Settings
from loadline.sim.fleet import FleetKnobs
from loadline.sim.simulation import Scenario, Simulation
from loadline.sim.traces import Arrival, Trace
from tests.support.simulated import GUARD, disaggregated, pool_fleet, trace

Setup = tuple[Settings, FleetKnobs]

# 1,000 blocks of 16 tokens in a small worker, 4,000 in a large one.
SHORT, LONG, ENDLESS = Arrival(0.0, 200, 50), Arrival(0.0, 20_000, 50), Arrival(0.0, 70_000, 50)


def unlike(small: int, large: int) -> Setup:
    """Two pools of one role, on accelerators of different size, that stay as they are."""
    pools = tuple(PoolKnobs(name, "aggregated", replicas_min=0, replicas_max=4) for name in ("small", "large"))
    threshold = ThresholdKnobs(adjustment_interval_ms=3_600_000)
    settings = Settings("agent", "all", (ModelKnobs("m", pools, guard=GUARD, threshold=threshold),))
    return settings, FleetKnobs((pool_fleet("small", small), pool_fleet("large", large, kv_blocks=4_000)))


def begun(setup: Setup, arrivals: Trace, seed: int = 0) -> Simulation:
    return Simulation(Scenario("test", *setup, arrivals, seed))


def among(*arrivals: Arrival) -> Trace:
    """These, one every second."""
    return trace([msgspec.structs.replace(one, arrival_s=1.0 + index) for index, one in enumerate(arrivals)])


def played_out(simulation: Simulation) -> Simulation:
    simulation.run(simulation.duration_ms)
    simulation.run_out()
    return simulation


@pytest.mark.parametrize("small", [1, 3])
def test_a_long_request_goes_to_the_pool_that_can_hold_it(small: int) -> None:
    outcome = played_out(begun(unlike(small, 1), among(LONG, SHORT, LONG, SHORT, LONG))).outcome()
    assert (outcome.finished, outcome.refused, outcome.unfinished) == (5, 0, 0)


def test_only_what_no_pool_could_ever_hold_is_refused() -> None:
    outcome = played_out(begun(unlike(1, 1), among(ENDLESS, LONG, ENDLESS, SHORT))).outcome()
    assert (outcome.finished, outcome.refused, outcome.unfinished) == (2, 2, 0)


def test_who_waits_for_a_large_worker_is_in_nobodys_way() -> None:
    simulation = begun(unlike(1, 0), among(LONG, SHORT, SHORT))
    simulation.run(10_000.0)
    outcome = simulation.outcome()
    assert (outcome.finished, outcome.refused, simulation.gateway.queued) == (2, 0, 1)


def test_what_a_decode_worker_cannot_hold_is_refused_before_it_is_computed() -> None:
    settings, fleet = disaggregated()
    decode = msgspec.structs.replace(fleet.pools[1], kv_blocks=100)
    fleet = msgspec.structs.replace(fleet, pools=(fleet.pools[0], decode))
    single = Arrival(0.0, 2_000, 1)  # needs no decode worker
    outcome = played_out(begun((settings, fleet), among(Arrival(0.0, 2_000, 2), single, SHORT))).outcome()
    assert (outcome.finished, outcome.refused, outcome.unfinished) == (2, 1, 0)
