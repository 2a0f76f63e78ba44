"""The threshold planner where workers are missing: on their way, late, or silent."""

import pytest

from loadline.core.planning.planners.threshold import ThresholdKnobs, ThresholdPlanner
from loadline.core.vocabulary.reasons import ReasonCode
from tests.support.threshold import DECODE, PREFILL, PULL_MS, Bench, codes, decode, prefill, reason


def test_no_workers_and_no_data_are_holds() -> None:
    bench = Bench(DECODE, workers=0)
    assert codes(bench.run(40)) == {ReasonCode.NO_WORKERS}
    bench.grow("decode", 2)
    bench.now += 40_000
    assert codes(bench.plan()) == {ReasonCode.NO_DATA}


def test_growth_waits_for_workers_that_are_on_their_way() -> None:
    bench = decode()
    bench.kv = 1.0
    bench.pool("decode").set_desired(3, bench.now)
    opinion = bench.run(40)
    assert (opinion.targets, codes(opinion)) == ({}, {ReasonCode.WORKERS_PENDING})
    opinion = bench.run(21)
    assert (opinion.targets, codes(opinion)) == ({}, {ReasonCode.PENDING_UNREACHED})
    assert reason(opinion, "decode").numbers["missing"] == 1


def test_a_shrink_starts_from_what_there_is_once_the_rest_is_late() -> None:
    bench = decode()
    bench.kv = 0.1
    bench.pool("decode").set_desired(5, bench.now)
    assert bench.run(60).targets == {"decode": 4}
    assert bench.run(1).targets == {"decode": 1}


def test_pending_workers_of_one_pool_do_not_hold_another() -> None:
    bench = Bench(PREFILL, DECODE)
    bench.pool("prefill").set_desired(3, bench.now)
    bench.kv, bench.queue = 1.0, 3
    assert bench.run(31).targets == {"decode": 3}


@pytest.mark.parametrize(("kv", "silent", "targets"), [(0.3, 1, {}), (0.3, 0, {"decode": 3}), (0.1, 1, {"decode": 3})])
def test_a_silent_worker_counts_as_full_when_shrinking(kv: float, silent: int, targets: dict[str, int]) -> None:
    bench = Bench(DECODE, workers=4)
    bench.kv = kv  # with one of four silent: 0.3 is at most 0.475, above 0.45, and 0.1 is at most 0.325
    bench.planner = ThresholdPlanner(ThresholdKnobs(decode_kv_scale_down_threshold=0.45))
    bench.silent = silent
    assert bench.run(30).targets == targets


@pytest.mark.parametrize(("silent", "targets"), [(1, {}), (0, {"decode": 5})])
def test_a_silent_worker_counts_as_empty_when_growing(silent: int, targets: dict[str, int]) -> None:
    bench = Bench(DECODE, workers=4)
    bench.kv = 1.0  # with one of four silent: at least 0.75
    bench.silent = silent
    assert bench.run(30).targets == targets


def test_a_silent_prefill_worker_may_have_a_queue() -> None:
    bench = prefill()
    bench.silent = 1
    assert bench.run(30).targets == {}


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_what_a_worker_does_not_say_is_unknown_and_not_zero(role: str) -> None:
    bench = Bench(PREFILL if role == "prefill" else DECODE)
    for _ in range(31):
        bench.now += PULL_MS
        bench.say_nothing_of_load(role)
        opinion = bench.plan()
    assert opinion.targets == {}, "an engine that does not publish the signal must not look idle"
