"""Causes of holds, and the times at which waits with a known end are over."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.fleet.windows import RollingSamples
from loadline.core.planning.sizing.baselines.scaling_behaviour import ScalingBehaviour, ScalingPolicy
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation
from tests.support.fleet_harness import START
from tests.support.guardrail_harness import MINUTE_MS, A, GuardrailHarness
from tests.support.saturation_harness import POOL, ReportedLoad, SaturationHarness
from tests.support.throughput_harness import KNOBS, ThroughputHarness

LOW = ReportedLoad(kv=0.2)
MIDDLE = ReportedLoad(kv=0.66)
IDLE = ReportedLoad(kv=0.0, running=0)
LARGE = PoolKnobs("b", "aggregated", gpus_per_worker=4, replicas_max=100)


def of_code(recommendation: Recommendation, code: ReasonCode) -> Reason:
    [found] = [reason for reason in recommendation.reasons if reason.code is code]
    assert found.sentence()
    return found


def codes(recommendation: Recommendation) -> dict[str, ReasonCode]:
    return {reason.pool: reason.code for reason in recommendation.reasons}


# -- guardrails --------------------------------------------------------------------------------------------------------


def after_change(harness: GuardrailHarness) -> None:
    harness.pool("a").scaled_down_at_ms = START


def after_takeover(harness: GuardrailHarness) -> None:
    harness.acting_since_ms = START
    harness.apply()


def after_recommendations(harness: GuardrailHarness) -> None:
    for count in (4, 2, 3):
        harness.apply(a=count)
        harness.now += 5_000
        harness.report("a")


@pytest.mark.parametrize(
    ("knob", "prepare"),
    [
        ("cooldown_down_ms", after_change),
        ("warm_up_ms", after_takeover),
        ("stabilisation_ms", after_recommendations),
    ],
)
def test_a_guardrail_permits_the_shrink_when_its_time_is_over(
    knob: str, prepare: Callable[[GuardrailHarness], None]
) -> None:
    harness = GuardrailHarness(A, quorate=True, **{knob: MINUTE_MS})
    prepare(harness)
    harness.now += 7_000
    harness.report("a")
    [limit] = harness.apply(a=2).limits
    assert limit.sentence()
    left_ms = int(limit.numbers["left_ms"])
    assert 0 < left_ms <= MINUTE_MS - 7_000
    harness.now += left_ms - 1
    harness.report("a")
    assert harness.apply(a=2).targets == {"a": 4}
    harness.now += 1
    assert harness.apply(a=2).targets["a"] < 4


# -- saturation --------------------------------------------------------------------------------------------------------


def test_a_pool_held_for_a_peak_shrinks_when_the_peak_leaves_the_window() -> None:
    harness = SaturationHarness(workers=10)
    harness.run_loads(30, a=[MIDDLE] * 10)
    peak_s = harness.now // 1_000
    reason = of_code(harness.run_loads(60, a=[LOW] * 10), ReasonCode.RECENT_PEAK)
    assert (reason.numbers["wanted"], reason.numbers["allowed"]) == (4, 10)
    assert reason.numbers["peak"] == pytest.approx(0.66 / 0.8 * 10)
    assert reason.numbers["held"] == pytest.approx(0.2 / 0.8 * 10)
    left_s, rest_ms = divmod(int(reason.numbers["left_ms"]), 1_000)
    assert peak_s + 180 < harness.now // 1_000 + left_s < peak_s + 190, "the mean of 10 s falls later than the load"
    assert (harness.run_loads(left_s, a=[LOW] * 10).targets, rest_ms) == ({}, 1)
    assert harness.run_loads(1, a=[LOW] * 10).targets["a"] < 10


def test_the_peaks_of_all_pools_of_a_role_count() -> None:
    harness = SaturationHarness(POOL, LARGE, workers=10)
    harness.run_loads(20, a=[MIDDLE] * 10, b=[LOW] * 10)
    harness.run_loads(20, a=[LOW] * 10, b=[MIDDLE] * 10)
    recommendation = harness.run_loads(60, a=[LOW] * 10, b=[LOW] * 10)
    waits = [reason for reason in recommendation.reasons if reason.code is ReasonCode.RECENT_PEAK]
    assert [reason.pool for reason in waits] == ["a", "b"]
    left_s = min(int(reason.numbers["left_ms"]) for reason in waits) // 1_000
    assert harness.run_loads(left_s, a=[LOW] * 10, b=[LOW] * 10).targets == {}
    assert harness.run_loads(1, a=[LOW] * 10, b=[LOW] * 10).targets.keys() == {"b"}, "the most expensive pool"


def test_a_load_between_the_thresholds_waits_for_nothing() -> None:
    recommendation = SaturationHarness(workers=10).run_loads(60, a=[MIDDLE] * 10)
    assert codes(recommendation) == {"a": ReasonCode.SATURATION_WITHIN}


def test_a_pool_held_for_silent_workers_names_them() -> None:
    recommendation = SaturationHarness(workers=4).run_loads(240, a=[ReportedLoad(kv=0.45)] * 3 + [None])
    assert of_code(recommendation, ReasonCode.SILENT_WORKERS).numbers == {"silent": 1}


def test_a_pool_at_its_minimum_names_it() -> None:
    harness = SaturationHarness(replace(POOL, replicas_min=3), workers=3)
    reason = of_code(harness.run_loads(240, a=[ReportedLoad(kv=0.1)] * 3), ReasonCode.REPLICAS_MIN)
    assert reason.numbers == {"wanted": 1, "allowed": 3}
    one = SaturationHarness(replace(POOL, replicas_min=0), workers=1)
    assert codes(one.run_loads(240, a=[IDLE])) == {"a": ReasonCode.LAST_WORKER}


def test_a_pool_that_keeps_its_count_while_another_changes_says_so() -> None:
    harness = SaturationHarness(POOL, LARGE)
    high = [ReportedLoad(kv=0.9)] * 2
    assert codes(harness.run_loads(30, a=high, b=high)) == {
        "a": ReasonCode.SATURATION_HIGH,
        "b": ReasonCode.OTHER_POOL_FIRST,
    }


# -- baselines ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("proposed", "code", "left_ms"),
    [(9, ReasonCode.LOWEST_RECOMMENDATION, 50_000), (2, ReasonCode.HIGHEST_RECOMMENDATION, 290_000)],
)
def test_a_stabilised_proposal_applies_when_its_time_is_over(proposed: int, code: ReasonCode, left_ms: int) -> None:
    policy = ScalingPolicy(100, 4, 15_000)
    behaviour = ScalingBehaviour(MINUTE_MS, 5 * MINUTE_MS, policy, policy)
    pool, recommendations = GuardrailHarness(A).pool("a"), RollingSamples(behaviour.window_ms)
    recommendations.push(START, 5.0)
    now = START + 10_000
    recommendations.push(now, float(proposed))
    allowed, [reason] = behaviour.stabilise(proposed, 5, recommendations, pool, now)
    assert (allowed, reason.code, reason.numbers["left_ms"]) == (5, code, left_ms)
    assert behaviour.stabilise(proposed, 5, recommendations, pool, now + left_ms - 1)[0] == 5
    assert behaviour.stabilise(proposed, 5, recommendations, pool, now + left_ms) == (proposed, [])


# -- traffic -----------------------------------------------------------------------------------------------------------


def sized_for(
    requests_per_s: int, forecast_requests_per_s: float, workers: int
) -> tuple[ThroughputHarness, Recommendation]:
    """Return a throughput planner after the forecast of its first interval, with its recommendation."""
    harness = ThroughputHarness(replace(KNOBS, start_up_ms=30_000), workers=workers)
    harness.report_traffic(requests_per_s, 181)
    return harness, harness.answer_forecast(forecast_requests_per_s * 180.0)


@pytest.mark.parametrize(
    ("requests_per_s", "forecast", "workers", "code", "counts"),
    [
        (195, 195.0, 3, ReasonCode.SCALE_DOWN_MARGIN, (2, 3)),
        (195, 2_000.0, 2, ReasonCode.FORECAST_STEP, (20, 5)),
    ],
)
def test_a_size_other_than_needed_names_the_limit_and_the_next_sizing(
    requests_per_s: int, forecast: float, workers: int, code: ReasonCode, counts: tuple[int, int]
) -> None:
    harness, recommendation = sized_for(requests_per_s, forecast, workers)
    [limit, _] = [reason for reason in recommendation.reasons if reason.code is code]
    assert (limit.numbers["wanted"], limit.numbers["allowed"]) == counts
    assert limit.sentence()
    left_ms = int(limit.numbers["left_ms"])
    assert harness.planner.demand.size_at_ms == harness.world.now + left_ms
    assert 10_000 <= left_ms <= 30_000


def test_a_few_seconds_of_traffic_are_named_as_no_reason_to_shrink() -> None:
    recommendation = ThroughputHarness(workers=4).report_traffic(90, 60)
    [limit, _] = [reason for reason in recommendation.reasons if reason.code is ReasonCode.SURGE_ADDS_ONLY]
    assert (limit.numbers["wanted"], limit.numbers["allowed"]) == (1, 4)


def test_a_pool_at_its_minimum_by_traffic_names_it() -> None:
    harness = ThroughputHarness(workers=3)
    for pool in harness.world.model.pools.values():
        pool.knobs = replace(pool.knobs, replicas_min=3)
    recommendation = harness.report_traffic(90, 60)
    limits = [reason for reason in recommendation.reasons if reason.code is ReasonCode.REPLICAS_MIN]
    assert [(one.numbers["wanted"], one.numbers["allowed"]) for one in limits] == [(1, 3), (1, 3)]


def test_a_passed_peak_is_held_until_the_next_sizing() -> None:
    harness = ThroughputHarness()
    harness.report_traffic(470, 100)
    harness.report_traffic(20, 81)
    recommendation = harness.answer_forecast(470 * 180.0)
    [hold, _] = [reason for reason in recommendation.reasons if reason.code is ReasonCode.PEAK_OVER]
    assert harness.planner.demand.size_at_ms == harness.world.now + hold.numbers["left_ms"]
    assert hold.sentence()


def test_a_shrink_after_a_growth_is_possible_when_its_time_is_over() -> None:
    harness = ThroughputHarness(workers=4)
    harness.report_traffic(50, 181)
    for pool in harness.world.model.pools.values():
        pool.scaled_up_at_ms = harness.world.now - 50_000
    recommendation = harness.answer_forecast(50 * 180.0)
    [hold, _] = [reason for reason in recommendation.reasons if reason.code is ReasonCode.NEW_WORKER_GRACE]
    left_s = int(hold.numbers["left_ms"]) // 1_000
    assert harness.report_traffic(50, left_s - 1).targets == {}
    assert harness.report_traffic(50).targets == {"p": 1, "d": 1}
