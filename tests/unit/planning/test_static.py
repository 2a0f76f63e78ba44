"""Static planner."""

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.planners.static import StaticKnobs, StaticPlanner
from loadline.core.vocabulary.reasons import ReasonCode
from tests.support.fleet_harness import FleetHarness

POOLS = (PoolKnobs("prefill", "prefill"), PoolKnobs("decode", "decode"))


def test_a_pool_gets_its_count_and_others_are_held() -> None:
    harness = FleetHarness(POOLS, workers=2)
    planner = StaticPlanner(StaticKnobs({"decode": 5}))
    recommendation = planner.plan(harness.refresh(), harness.now)
    assert recommendation.targets == {"decode": 5}
    assert [(r.pool, r.code) for r in recommendation.reasons] == [
        ("decode", ReasonCode.FIXED_COUNT),
        ("prefill", ReasonCode.NO_FIXED_COUNT),
    ]
    assert recommendation.inputs == {"decode.replicas": 5.0}


def test_a_reached_count_is_not_recommended_again() -> None:
    harness = FleetHarness(POOLS, workers=2)
    planner = StaticPlanner(StaticKnobs({"decode": 5, "prefill": 2}))
    harness.pool("decode").set_decided(5, harness.now)
    recommendation = planner.plan(harness.refresh(), harness.now)
    assert recommendation.targets == {}
    assert {r.code for r in recommendation.reasons} == {ReasonCode.FIXED_COUNT}


def test_an_empty_pool_grows_and_zero_is_a_valid_count() -> None:
    harness = FleetHarness(POOLS, workers=0)
    harness.add_workers("prefill", 1)
    planner = StaticPlanner(StaticKnobs({"decode": 3, "prefill": 0}))
    assert planner.plan(harness.refresh(), harness.now).targets == {"prefill": 0, "decode": 3}
