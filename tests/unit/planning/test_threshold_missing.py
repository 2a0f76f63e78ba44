"""Threshold planner with pending, overdue and silent workers."""

import pytest

from loadline.core.planning.planners.threshold import ThresholdKnobs, ThresholdPlanner
from loadline.core.vocabulary.reasons import ReasonCode
from tests.support.threshold_harness import DECODE, PREFILL, PULL_MS, ThresholdHarness, codes, decode, prefill, reason


def test_no_workers_and_no_data_are_holds() -> None:
    harness = ThresholdHarness(DECODE, workers=0)
    assert codes(harness.run(40)) == {ReasonCode.NO_WORKERS}
    harness.add_workers("decode", 2)
    harness.now += 40_000
    assert codes(harness.plan()) == {ReasonCode.NO_DATA}


def test_growth_waits_for_pending_workers() -> None:
    harness = decode()
    harness.kv = 1.0
    harness.pool("decode").set_decided(3, harness.now)
    recommendation = harness.run(40)
    assert (recommendation.targets, codes(recommendation)) == ({}, {ReasonCode.WORKERS_PENDING})
    recommendation = harness.run(21)
    assert (recommendation.targets, codes(recommendation)) == ({}, {ReasonCode.PENDING_UNREACHED})
    assert reason(recommendation, "decode").numbers["missing"] == 1


def test_with_overdue_workers_a_shrink_is_measured_from_existing_ones() -> None:
    harness = decode()
    harness.kv = 0.1
    harness.pool("decode").set_decided(5, harness.now)
    assert harness.run(60).targets == {"decode": 4}
    assert harness.run(1).targets == {"decode": 1}


def test_pending_workers_of_one_pool_do_not_hold_another() -> None:
    harness = ThresholdHarness(PREFILL, DECODE)
    harness.pool("prefill").set_decided(3, harness.now)
    harness.kv, harness.queue = 1.0, 3
    assert harness.run(31).targets == {"decode": 3}


@pytest.mark.parametrize(("kv", "silent", "targets"), [(0.3, 1, {}), (0.3, 0, {"decode": 3}), (0.1, 1, {"decode": 3})])
def test_a_silent_worker_counts_as_full_for_scale_down(kv: float, silent: int, targets: dict[str, int]) -> None:
    harness = ThresholdHarness(DECODE, workers=4)
    harness.kv = kv  # with one of four silent: 0.3 is at most 0.475, above 0.45, and 0.1 is at most 0.325
    harness.planner = ThresholdPlanner(ThresholdKnobs(decode_kv_scale_down_threshold=0.45))
    harness.silent = silent
    assert harness.run(30).targets == targets


@pytest.mark.parametrize(("silent", "targets"), [(1, {}), (0, {"decode": 5})])
def test_a_silent_worker_counts_as_empty_for_scale_up(silent: int, targets: dict[str, int]) -> None:
    harness = ThresholdHarness(DECODE, workers=4)
    harness.kv = 1.0  # with one of four silent: at least 0.75
    harness.silent = silent
    assert harness.run(30).targets == targets


def test_a_silent_prefill_worker_may_have_a_queue() -> None:
    harness = prefill()
    harness.silent = 1
    assert harness.run(30).targets == {}


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_missing_metric_is_unknown_and_not_zero(role: str) -> None:
    harness = ThresholdHarness(PREFILL if role == "prefill" else DECODE)
    for _ in range(31):
        harness.now += PULL_MS
        harness.report_without_load(role)
        recommendation = harness.plan()
    assert recommendation.targets == {}, "an engine that does not publish the signal must not look idle"
