"""Acceptance cases of Dynamo's first load planner, run with the threshold planner."""

from loadline.core.vocabulary.reasons import ReasonCode, Recommendation
from tests.support.threshold_harness import DECODE, PREFILL, PULL_MS, ThresholdHarness, codes, reason


def dynamo_harness(prefill_workers: int, decode_workers: int, interval_ms: int) -> ThresholdHarness:
    harness = ThresholdHarness(
        PREFILL,
        DECODE,
        workers=0,
        adjustment_interval_ms=interval_ms,
        prefill_queue_scale_up_threshold=5,
        prefill_queue_scale_down_threshold=0.2,
    )
    harness.add_workers("prefill", prefill_workers)
    harness.add_workers("decode", decode_workers)
    return harness


def run_threshold(harness: ThresholdHarness, queue: list[int], kv: float) -> Recommendation:
    harness.kv = kv
    for number, value in enumerate(queue):
        harness.now += PULL_MS if number else 0
        harness.queue = value
        recommendation = harness.report_and_plan()
    return recommendation


def test_a_falling_queue_blocks_prefill_scale_up() -> None:
    recommendation = run_threshold(dynamo_harness(1, 1, 2_000), [10, 8, 6], 0.7)
    assert recommendation.targets == {}
    assert reason(recommendation, "prefill").numbers["predicted"] == -6
    assert reason(recommendation, "prefill").code == ReasonCode.QUEUE_TREND_FALLING


def test_a_rising_queue_scales_prefill_up() -> None:
    recommendation = run_threshold(dynamo_harness(1, 1, 2_000), [6, 7, 8], 0.7)
    assert recommendation.targets == {"prefill": 2}
    assert reason(recommendation, "prefill").numbers["predicted"] == 14


def test_an_empty_queue_scales_prefill_down() -> None:
    assert run_threshold(dynamo_harness(3, 1, 2_000), [0, 0, 0], 0.7).targets == {"prefill": 2}


def test_low_kv_usage_scales_decode_down() -> None:
    assert run_threshold(dynamo_harness(1, 2, 2_000), [1, 1, 1], 0.2).targets == {"decode": 1}


def test_a_change_of_workers_delays_only_their_pool() -> None:
    """Dynamo delays both roles when the workers of one change, so a single flapping worker can block a model."""
    harness = dynamo_harness(1, 1, 2_000)
    harness.pool("prefill").set_decided(1, harness.now)
    run_threshold(harness, [9, 9], 0.95)
    harness.pool("prefill").set_decided(2, harness.now)
    harness.add_workers("prefill", 1)
    harness.now += PULL_MS
    recommendation = harness.report_and_plan()
    assert recommendation.targets == {"decode": 2}
    assert ReasonCode.ADJUSTMENT_INTERVAL in codes(recommendation)
