"""Load that the ITL of the completed requests is due to."""

import pytest

from loadline.core.fleet.traffic_totals import TrafficTotals
from loadline.core.planning.sizing.evidence.lifetime_load import LifetimeLoad
from loadline.core.planning.sizing.evidence.pool_second import PoolSecond

REQUEST_MS = 20_000.0


def second(running: float) -> PoolSecond:
    return PoolSecond(2, 2, running, running / 100.0, is_queued=False, traffic=TrafficTotals())


def test_requests_that_end_within_a_second_have_the_present_load() -> None:
    load = LifetimeLoad()
    load.begin(second(80.0))
    found = load.add(second(20.0), 900.0)
    assert found.running == pytest.approx(20.0)
    assert found.kv == pytest.approx(0.2)


def test_a_load_that_falls_is_that_of_half_a_request_before() -> None:
    """It falls from 100 to 40 in a minute, and a request takes 20 s."""
    load = LifetimeLoad()
    load.begin(second(100.0))
    for at_s in range(1, 61):
        found = load.add(second(100.0 - at_s), REQUEST_MS)
    assert found.running == pytest.approx(40.0 + REQUEST_MS / 2_000.0, abs=1.5)
    assert found.kv == pytest.approx(found.running / 100.0)


def test_a_steady_load_is_the_present_one() -> None:
    load = LifetimeLoad()
    load.begin(second(50.0))
    for _ in range(60):
        found = load.add(second(50.0), REQUEST_MS)
    assert found.running == pytest.approx(50.0)
