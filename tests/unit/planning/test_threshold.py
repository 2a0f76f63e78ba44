"""Threshold planner, rule by rule."""

import pytest
from msgspec.structs import replace

from loadline.core.vocabulary.reasons import ReasonCode
from tests.support.fleet_harness import STALE_MS
from tests.support.threshold_harness import (
    BOTH,
    DECODE,
    PREFILL,
    PULL_MS,
    ThresholdHarness,
    codes,
    decode,
    prefill,
    reason,
)

# -- the prefill queue -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queue", "targets", "code"),
    [
        (0, {"prefill": 1}, ReasonCode.PREFILL_QUEUE_LOW),
        (1, {"prefill": 1}, ReasonCode.PREFILL_QUEUE_LOW),
        (2, {}, ReasonCode.WITHIN_THRESHOLDS),  # exactly at the lower threshold: not below it
        (5, {}, ReasonCode.WITHIN_THRESHOLDS),  # exactly at the upper threshold: not above it
        (6, {"prefill": 3}, ReasonCode.PREFILL_QUEUE_HIGH),
    ],
)
def test_the_mean_queue_is_compared_with_its_thresholds(queue: int, targets: dict[str, int], code: ReasonCode) -> None:
    harness = prefill(prefill_queue_scale_up_threshold=5, prefill_queue_scale_down_threshold=2)
    harness.queue = queue
    recommendation = harness.run(30)
    assert (recommendation.targets, codes(recommendation)) == (targets, {code})


def test_the_queue_is_the_sum_over_the_pool() -> None:
    harness = ThresholdHarness(replace(PREFILL, replicas_max=16), workers=10)
    harness.queue = 1  # one of ten workers has one request waiting
    assert harness.run(30).targets == {"prefill": 11}


def test_a_falling_queue_needs_no_worker() -> None:
    harness = prefill(adjustment_interval_ms=2_000)
    recommendation = harness.follow(9, 8, 6)
    assert recommendation.targets == {}
    assert reason(recommendation, "prefill").code == ReasonCode.QUEUE_TREND_FALLING
    assert reason(recommendation, "prefill").numbers["predicted"] == 6 + (6 - 9) * 3


@pytest.mark.parametrize(("last", "grows"), [(6, False), (7, True)])
def test_the_trend_must_stay_above_the_threshold(last: int, *, grows: bool) -> None:
    # predicted = last + (last - 8) * 3: 0 for 6, and 4 for 7
    harness = prefill(adjustment_interval_ms=2_000, prefill_queue_scale_up_threshold=2)
    assert bool(harness.follow(8, 7, last).targets) is grows


def test_a_trend_at_the_threshold_is_not_above_it() -> None:
    harness = prefill(adjustment_interval_ms=2_000, prefill_queue_scale_up_threshold=4)
    assert harness.follow(8, 7, 7).targets == {}


def test_without_trend_intervals_the_last_sample_counts() -> None:
    harness = prefill(adjustment_interval_ms=2_000, prefill_queue_trend_intervals=0)
    assert harness.follow(9, 5, 1).targets == {"prefill": 3}


# -- KV load -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kv", "targets", "code"),
    [
        (0.25, {"decode": 1}, ReasonCode.KV_USAGE_LOW),
        (0.5, {}, ReasonCode.WITHIN_THRESHOLDS),
        (0.75, {}, ReasonCode.WITHIN_THRESHOLDS),
        (0.875, {"decode": 3}, ReasonCode.KV_USAGE_HIGH),
    ],
)
def test_the_mean_kv_load_is_compared_with_its_thresholds(kv: float, targets: dict[str, int], code: ReasonCode) -> None:
    harness = decode(decode_kv_scale_up_threshold=0.75)
    harness.kv = kv
    recommendation = harness.run(30)
    assert (recommendation.targets, codes(recommendation)) == (targets, {code})


@pytest.mark.parametrize(("running", "load"), [(1, 0.75 + 0.02 * 4 / 2), (0, 0.75)])
def test_a_waiting_request_adds_kv_load_at_busy_workers(running: int, load: float) -> None:
    harness = decode()
    harness.report("decode", kv=0.75, waiting=4, running=running)  # 4 wait at the first of two workers
    recommendation = harness.plan()
    assert recommendation.inputs["decode.kv_load_now"] == pytest.approx(load)


@pytest.mark.parametrize(("interval_number", "shrinks"), [(2, False), (3, True)])
def test_a_new_decode_worker_has_a_grace_time(interval_number: int, *, shrinks: bool) -> None:
    harness = decode()
    harness.pool("decode").set_decided(1, harness.now)
    harness.pool("decode").set_decided(2, harness.now)
    harness.kv = 0.1
    recommendation = harness.run(30 * interval_number)
    assert bool(recommendation.targets) is shrinks
    assert codes(recommendation) == {ReasonCode.KV_USAGE_LOW if shrinks else ReasonCode.NEW_WORKER_GRACE}


def test_zero_grace_intervals_disable_the_grace_time() -> None:
    harness = decode(new_decode_worker_grace_intervals=0)
    harness.pool("decode").set_decided(1, harness.now)
    harness.pool("decode").set_decided(2, harness.now)
    harness.kv = 0.1
    assert harness.run(30).targets == {"decode": 1}


# -- windows -----------------------------------------------------------------------------------------------------------


def test_no_change_before_a_complete_window() -> None:
    harness = decode()
    harness.kv = 1.0
    early = harness.run(29)
    assert (early.targets, codes(early)) == ({}, {ReasonCode.ADJUSTMENT_INTERVAL})
    harness.now += PULL_MS
    assert harness.report_and_plan().targets == {"decode": 3}


def test_the_mean_includes_the_window_and_the_current_value() -> None:
    harness = decode(adjustment_interval_ms=2_000)
    harness.follow(0.1, 0.2, 0.6, 0.8)
    harness.now += 10  # no sample is due
    harness.kv = 1.0
    recommendation = harness.report_and_plan()
    assert recommendation.inputs["decode.kv_load_mean"] == pytest.approx((0.2 + 0.6 + 0.8 + 1.0) / 4)


def test_a_sample_that_moves_the_mean_across_the_threshold_acts_at_once() -> None:
    harness = prefill()
    harness.queue = 0
    harness.run(29)
    harness.now += PULL_MS - 1
    harness.queue = 100
    assert harness.report_and_plan().targets == {}, "the window is not complete yet"
    harness.now += 1
    assert harness.report_and_plan().targets == {"prefill": 3}


def test_a_gap_restarts_the_window() -> None:
    harness = decode()
    harness.kv = 1.0
    harness.run(30)
    harness.now += STALE_MS + 1
    assert codes(harness.plan()) == {ReasonCode.NO_DATA}
    assert codes(harness.run(29)) == {ReasonCode.ADJUSTMENT_INTERVAL}
    harness.now += PULL_MS
    assert harness.report_and_plan().targets == {"decode": 3}


def test_a_shrink_waits_an_interval_after_any_change_of_workers() -> None:
    harness = ThresholdHarness(PREFILL, DECODE)
    harness.kv, harness.queue = 0.1, 0
    assert harness.run(30).targets == {"prefill": 1, "decode": 1}
    harness.add_workers("decode", 1)
    assert harness.run(29).targets == {"prefill": 1}, "pools are independent"
    harness.now += PULL_MS
    assert set(harness.report_and_plan().targets) == {"prefill", "decode"}


def test_growth_does_not_wait_for_changing_workers() -> None:
    harness = ThresholdHarness(PREFILL, DECODE)
    harness.kv, harness.queue = 1.0, 3
    harness.run(30)
    harness.remove_newest("decode")
    assert set(harness.report_and_plan().targets) == {"prefill", "decode"}, "growth does not wait"


def test_growth_waits_an_interval_after_the_target_was_reached() -> None:
    harness = ThresholdHarness(DECODE)
    harness.pool("decode").set_decided(2, harness.now)
    harness.kv = 1.0
    harness.run(30)
    harness.pool("decode").set_decided(3, harness.now)
    harness.run(60)
    harness.add_workers("decode", 1)
    assert codes(harness.run(29)) == {ReasonCode.ADJUSTMENT_INTERVAL}
    harness.now += PULL_MS
    assert harness.report_and_plan().targets == {"decode": 4}


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_pool_changes_once_per_interval(replicas: int) -> None:
    harness = ThresholdHarness(PREFILL, DECODE)
    harness.pool("decode").set_decided(2, harness.now)
    harness.kv = 1.0
    harness.run(30)
    harness.pool("decode").set_decided(replicas, harness.now)
    assert ReasonCode.ADJUSTMENT_INTERVAL in codes(harness.run(29))


# -- aggregated --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queue", "kv", "target"),
    [
        (1, 0.7, 3),  # growth if either signal is high
        (0, 1.0, 3),
        (1, 1.0, 3),
        (0, 0.1, 1),  # shrink if both signals are low
        (0, 0.7, None),
        (1, 0.1, 3),
    ],
)
def test_either_signal_grows_an_aggregated_pool_and_both_shrink_it(queue: int, kv: float, target: int | None) -> None:
    harness = ThresholdHarness(BOTH)
    harness.queue, harness.kv = queue, kv
    recommendation = harness.run(30)
    assert recommendation.targets == ({} if target is None else {"agg": target})
    assert len(recommendation.reasons) == 1


def test_a_low_queue_alone_is_within_thresholds() -> None:
    harness = ThresholdHarness(BOTH)
    assert codes(harness.run(30)) == {ReasonCode.WITHIN_THRESHOLDS}


# -- reasons and samples -----------------------------------------------------------------------------------------------


def test_reasons_of_changing_pools_come_first() -> None:
    harness = ThresholdHarness(PREFILL, DECODE)
    harness.queue, harness.kv = 1, 0.1
    harness.pool("prefill").set_decided(3, harness.now)
    recommendation = harness.run(30)
    assert [(r.pool, r.code) for r in recommendation.reasons] == [
        ("decode", ReasonCode.KV_USAGE_LOW),
        ("prefill", ReasonCode.WORKERS_PENDING),
    ]
    assert recommendation.reasons[0].sentence() == "decode: mean KV load 0.10 is below 0.5"


def test_metrics_are_sampled_once_per_interval_at_any_rate_of_evaluations() -> None:
    harness = decode()
    for _ in range(100):
        harness.now += 10
        harness.report_and_plan()
    assert len(harness.planner.histories["decode"].kv.low.values) == 1
    assert harness.planner.next_wake() > harness.now
