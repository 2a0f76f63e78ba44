"""Estimates of each estimator of auto, and their confidence."""

import pytest

from loadline.cli.explain_output import format_explanation
from loadline.core.engines.latency_curve import LatencyCurve
from loadline.core.engines.profile import EngineProfile, LinearKnobs
from loadline.core.planning.sizing.needs.size_estimates import confidence
from loadline.core.vocabulary.reasons import Explanation, SizeEstimate
from tests.unit.planning.test_auto_planner import BASE_MS, FULL_PER_S, OSL, SERVES, AutoWorld

ESTIMATORS = ["forecast", "surge", "backlog", "profile", "fitted", "saturated", "latency", "occupancy"]


def estimates(world: AutoWorld) -> dict[str, SizeEstimate]:
    return {one.estimator: one for one in world.last.estimates}


def test_every_estimator_is_listed_with_workers_and_a_confidence_or_the_cause_why_not() -> None:
    world = AutoWorld(4)
    for seconds in (3, 60, 60):
        world.run(60.0, seconds)
        assert [one.estimator for one in world.last.estimates] == ESTIMATORS
        for one in world.last.estimates:
            assert one.basis
            assert (one.workers is None) == (one.confidence is None)
            assert one.confidence is None or 0.0 <= one.confidence <= 1.0


def test_estimates_come_with_the_data_that_they_need() -> None:
    world = AutoWorld(2)
    world.run(40.0, 2)
    assert {name for name, one in estimates(world).items() if one.workers is not None} == {"occupancy"}
    world.run(40.0, 60)
    found = estimates(world)
    assert found["forecast"].workers == pytest.approx(40.0 / SERVES, rel=0.3)
    assert found["fitted"].workers == pytest.approx(40.0 / SERVES, rel=0.3)
    assert found["surge"].basis == "the arrivals have not changed beyond chance in the last 15 s"
    assert found["profile"].workers is None
    world.run(200.0, 1)
    assert estimates(world)["surge"].workers == pytest.approx(200.0 / SERVES, rel=0.3)
    world.run(200.0, 12)
    found = estimates(world)
    assert found["saturated"].workers is not None
    assert found["backlog"].workers is not None


def test_a_rise_like_bursts_before_it_is_named_where_it_does_not_count() -> None:
    """Bursts of 4 s in 104, each of which the pool could only have served a start-up of 30 s later."""
    world = AutoWorld(6)
    for _ in range(9):
        world.run(60.0, 100)
        world.run(200.0, 3)
    world.planner.estimates_due_ms = 0
    world.run(200.0, 1)
    surge = estimates(world)["surge"]
    assert surge.workers is None
    assert surge.basis.startswith("the rise 4 s ago is not counted yet: most of the last ")


def test_more_arrivals_and_windows_raise_the_confidence() -> None:
    world = AutoWorld(3)
    world.run(60.0, 12)
    early = estimates(world)["fitted"].confidence
    world.run(60.0, 240)
    late = estimates(world)["fitted"].confidence
    assert early is not None
    assert late is not None
    assert late > early


def test_a_profile_is_as_certain_as_observations_confirm() -> None:
    right, wrong = AutoWorld(3), AutoWorld(3)
    right.pool.engine = EngineProfile(linear=LinearKnobs(BASE_MS, 1_000 / FULL_PER_S / OSL, 1.0, 0.001, 1e6))
    wrong.pool.engine = EngineProfile(linear=LinearKnobs(3 * BASE_MS, 4_000 / FULL_PER_S / OSL, 1.0, 0.001, 1e6))
    found = []
    for world in (right, wrong):
        world.run(60.0, 120)
        one = estimates(world)["profile"].confidence
        assert one is not None
        found.append(one)
    assert found[0] > found[1]


def test_the_confidence_of_a_curve_falls_with_spread_and_extrapolation() -> None:
    steady, noisy = LatencyCurve(), LatencyCurve()
    for number in range(8):
        steady.add(100.0, 20.0, 10.0, number)
        noisy.add(100.0, 20.0 if number % 2 else 40.0, 10.0, number)
    assert steady.error(100.0) < noisy.error(100.0) < steady.error(200.0)
    assert confidence(steady.error(100.0)) > 0.9
    assert confidence(steady.error(200.0)) == 0.0
    assert LatencyCurve().error(1.0) == float("inf")


def test_explain_prints_a_table_of_the_estimates() -> None:
    world = AutoWorld(2)
    world.run(40.0, 60)
    text = format_explanation(Explanation("m", 0, "held", "", {"engine": 2}, (world.last,), (), {}))
    lines = text[text.index("  estimates") :].splitlines()
    assert lines[1].split() == ["pool", "estimator", "workers", "confidence", "from"]
    assert [line.split()[:2] for line in lines[2:10]] == [["engine", name] for name in ESTIMATORS]
