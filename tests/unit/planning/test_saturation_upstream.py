"""Saturation planner with the rules of llm-d's autoscaler."""

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.vocabulary.reasons import ReasonCode, Recommendation
from tests.support.saturation_harness import POOL, ReportedLoad, SaturationHarness

HIGH, LOW = ReportedLoad(kv=0.75), ReportedLoad(kv=0.1)


def targets(*recommendations: Recommendation) -> list[dict[str, int]]:
    return [one.targets for one in recommendations]


def make_harness(*pools: PoolKnobs, workers: int = 2) -> SaturationHarness:
    return SaturationHarness(*pools, workers=workers, profile="upstream")


def test_between_evaluations_of_a_minute_the_recommendation_is_repeated() -> None:
    world = make_harness()
    assert targets(
        world.run_loads(1, a=[LOW] * 2), world.run_loads(1, a=[HIGH] * 2), world.run_loads(58, a=[HIGH] * 2)
    ) == [
        {"a": 1},
        {"a": 1},
        {"a": 1},
    ]
    assert world.run_loads(1, a=[HIGH] * 2).targets == {"a": 3}


def test_a_peak_counts_for_a_minute() -> None:
    world = make_harness(workers=3)
    world.run_loads(30, a=[LOW] * 3)
    world.run_loads(1, a=[HIGH] * 3)
    assert world.run_loads(30, a=[LOW] * 3).targets == {"a": 4}
    assert world.run_loads(60, a=[LOW] * 3).targets == {"a": 2}


def test_missing_metrics_count_as_idle() -> None:
    assert make_harness(workers=4).run_loads(1, a=[ReportedLoad(kv=None)] * 3 + [LOW]).targets == {"a": 3}


def test_a_pool_in_transition_is_held() -> None:
    world = make_harness()
    world.pool("a").set_decided(3, world.now)
    assert world.run_loads(300, a=[HIGH] * 2).targets == {}, "the third is overdue, and no fourth is requested"


def test_the_cheapest_pool_grows_and_the_most_expensive_shrinks() -> None:
    expensive = PoolKnobs("b", "aggregated", gpus_per_worker=2, replicas_max=9)
    assert make_harness(POOL, expensive).run_loads(1, a=[HIGH] * 2, b=[HIGH] * 2).targets == {"a": 3}
    assert make_harness(POOL, expensive).run_loads(1, a=[LOW] * 2, b=[LOW] * 2).targets == {"b": 1}


def test_roles_are_evaluated_separately_and_silence_is_a_hold() -> None:
    pools = PoolKnobs("p", "prefill"), PoolKnobs("d", "decode")
    assert make_harness(*pools).run_loads(1, p=[HIGH] * 2, d=[LOW] * 2).targets == {"p": 3, "d": 1}
    recommendation = make_harness().run_loads(120, a=[None] * 2)
    assert (recommendation.targets, [one.code for one in recommendation.reasons]) == ({}, [ReasonCode.NO_DATA])
