"""The static planner."""

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.planners.static import StaticKnobs, StaticPlanner
from loadline.core.vocabulary.reasons import ReasonCode
from tests.support.belief import Line

POOLS = (PoolKnobs("prefill", "prefill"), PoolKnobs("decode", "decode"))


def test_a_pool_gets_its_count_and_the_others_stay() -> None:
    line = Line(POOLS, workers=2)
    planner = StaticPlanner(StaticKnobs({"decode": 5}))
    opinion = planner.plan(line.look(), line.now)
    assert opinion.targets == {"decode": 5}
    assert [(r.pool, r.code) for r in opinion.reasons] == [
        ("decode", ReasonCode.FIXED_COUNT),
        ("prefill", ReasonCode.NO_FIXED_COUNT),
    ]
    assert opinion.inputs == {"decode.replicas": 5.0}


def test_what_is_reached_is_not_proposed_again() -> None:
    line = Line(POOLS, workers=2)
    planner = StaticPlanner(StaticKnobs({"decode": 5, "prefill": 2}))
    line.pool("decode").set_desired(5, line.now)
    opinion = planner.plan(line.look(), line.now)
    assert opinion.targets == {}
    assert {r.code for r in opinion.reasons} == {ReasonCode.FIXED_COUNT}


def test_an_empty_pool_grows_and_none_is_a_count() -> None:
    line = Line(POOLS, workers=0)
    line.grow("prefill", 1)
    planner = StaticPlanner(StaticKnobs({"decode": 3, "prefill": 0}))
    assert planner.plan(line.look(), line.now).targets == {"prefill": 0, "decode": 3}
