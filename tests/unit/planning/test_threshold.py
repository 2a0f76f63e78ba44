"""The threshold planner, rule by rule."""

import pytest

from loadline.core.vocabulary.reasons import ReasonCode
from tests.support.belief import STALE_MS
from tests.support.threshold import BOTH, DECODE, PREFILL, PULL_MS, Bench, codes, decode, prefill, reason

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
def test_the_mean_queue_against_its_thresholds(queue: int, targets: dict[str, int], code: ReasonCode) -> None:
    bench = prefill(prefill_queue_scale_up_threshold=5, prefill_queue_scale_down_threshold=2)
    bench.queue = queue
    opinion = bench.run(30)
    assert (opinion.targets, codes(opinion)) == (targets, {code})


def test_the_queue_is_that_of_the_whole_pool() -> None:
    bench = Bench(PREFILL, workers=10)
    bench.queue = 1  # one of ten workers has one request waiting
    assert bench.run(30).targets == {"prefill": 11}


def test_a_queue_that_will_be_gone_needs_no_worker() -> None:
    bench = prefill(adjustment_interval_ms=2_000)
    opinion = bench.follow(9, 8, 6)
    assert opinion.targets == {}
    assert reason(opinion, "prefill").code == ReasonCode.QUEUE_TREND_FALLING
    assert reason(opinion, "prefill").numbers["predicted"] == 6 + (6 - 9) * 3


@pytest.mark.parametrize(("last", "grows"), [(6, False), (7, True)])
def test_the_trend_must_stay_above_the_threshold(last: int, *, grows: bool) -> None:
    # predicted = last + (last - 8) * 3: 0 for 6, and 4 for 7
    bench = prefill(adjustment_interval_ms=2_000, prefill_queue_scale_up_threshold=2)
    assert bool(bench.follow(8, 7, last).targets) is grows


def test_a_trend_exactly_at_the_threshold_is_not_above_it() -> None:
    bench = prefill(adjustment_interval_ms=2_000, prefill_queue_scale_up_threshold=4)
    assert bench.follow(8, 7, 7).targets == {}


def test_without_trend_intervals_only_the_last_sample_counts() -> None:
    bench = prefill(adjustment_interval_ms=2_000, prefill_queue_trend_intervals=0)
    assert bench.follow(9, 5, 1).targets == {"prefill": 3}


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
def test_the_mean_kv_load_against_its_thresholds(kv: float, targets: dict[str, int], code: ReasonCode) -> None:
    bench = decode(decode_kv_scale_up_threshold=0.75)
    bench.kv = kv
    opinion = bench.run(30)
    assert (opinion.targets, codes(opinion)) == (targets, {code})


@pytest.mark.parametrize(("running", "load"), [(1, 0.75 + 0.02 * 4 / 2), (0, 0.75)])
def test_a_waiting_request_is_load_where_something_runs(running: int, load: float) -> None:
    bench = decode()
    bench.report("decode", kv=0.75, waiting=4, running=running)  # 4 wait at the first of two workers
    opinion = bench.plan()
    assert opinion.inputs["decode.kv_load_now"] == pytest.approx(load)


@pytest.mark.parametrize(("interval_number", "shrinks"), [(2, False), (3, True)])
def test_a_new_decode_worker_is_given_time(interval_number: int, *, shrinks: bool) -> None:
    bench = decode()
    bench.pool("decode").set_desired(1, bench.now)
    bench.pool("decode").set_desired(2, bench.now)
    bench.kv = 0.1
    opinion = bench.run(30 * interval_number)
    assert bool(opinion.targets) is shrinks
    assert codes(opinion) == {ReasonCode.KV_USAGE_LOW if shrinks else ReasonCode.NEW_WORKER_GRACE}


def test_no_grace_when_it_is_switched_off() -> None:
    bench = decode(new_decode_worker_grace_intervals=0)
    bench.pool("decode").set_desired(1, bench.now)
    bench.pool("decode").set_desired(2, bench.now)
    bench.kv = 0.1
    assert bench.run(30).targets == {"decode": 1}


# -- windows -----------------------------------------------------------------------------------------------------------


def test_nothing_before_a_whole_window_of_data() -> None:
    bench = decode()
    bench.kv = 1.0
    early = bench.run(29)
    assert (early.targets, codes(early)) == ({}, {ReasonCode.ADJUSTMENT_INTERVAL})
    bench.now += PULL_MS
    assert bench.look_once().targets == {"decode": 3}


def test_the_mean_is_that_of_the_window_and_of_this_moment() -> None:
    bench = decode(adjustment_interval_ms=2_000)
    bench.follow(0.1, 0.2, 0.6, 0.8)
    bench.now += 10  # no sample is due
    bench.kv = 1.0
    opinion = bench.look_once()
    assert opinion.inputs["decode.kv_load_mean"] == pytest.approx((0.2 + 0.6 + 0.8 + 1.0) / 4)


def test_a_sample_that_carries_the_mean_over_the_threshold_is_acted_on_at_once() -> None:
    bench = prefill()
    bench.queue = 0
    bench.run(29)
    bench.now += PULL_MS - 1
    bench.queue = 100
    assert bench.look_once().targets == {}, "not a whole window yet"
    bench.now += 1
    assert bench.look_once().targets == {"prefill": 3}


def test_after_a_gap_the_window_begins_again() -> None:
    bench = decode()
    bench.kv = 1.0
    bench.run(30)
    bench.now += STALE_MS + 1
    assert codes(bench.plan()) == {ReasonCode.NO_DATA}
    assert codes(bench.run(29)) == {ReasonCode.ADJUSTMENT_INTERVAL}
    bench.now += PULL_MS
    assert bench.look_once().targets == {"decode": 3}


def test_a_shrink_waits_for_an_interval_without_a_change_of_the_pools_workers() -> None:
    bench = Bench(PREFILL, DECODE)
    bench.kv, bench.queue = 0.1, 0
    assert bench.run(30).targets == {"prefill": 1, "decode": 1}
    bench.grow("decode", 1)
    assert bench.run(29).targets == {"prefill": 1}, "each pool minds its own"
    bench.now += PULL_MS
    assert set(bench.look_once().targets) == {"prefill", "decode"}


def test_growth_does_not_wait_for_workers_to_settle() -> None:
    bench = Bench(PREFILL, DECODE)
    bench.kv, bench.queue = 1.0, 3
    bench.run(30)
    bench.shrink("decode")
    assert set(bench.look_once().targets) == {"prefill", "decode"}, "there are too few: all the more"


def test_growth_waits_for_an_interval_after_the_workers_asked_for_have_come() -> None:
    bench = Bench(DECODE)
    bench.pool("decode").set_desired(2, bench.now)
    bench.kv = 1.0
    bench.run(30)
    bench.pool("decode").set_desired(3, bench.now)
    bench.run(60)
    bench.grow("decode", 1)
    assert codes(bench.run(29)) == {ReasonCode.ADJUSTMENT_INTERVAL}
    bench.now += PULL_MS
    assert bench.look_once().targets == {"decode": 4}


@pytest.mark.parametrize("replicas", [1, 3])
def test_no_change_of_a_pool_within_an_interval_of_its_last_decision(replicas: int) -> None:
    bench = Bench(PREFILL, DECODE)
    bench.pool("decode").set_desired(2, bench.now)
    bench.kv = 1.0
    bench.run(30)
    bench.pool("decode").set_desired(replicas, bench.now)
    assert ReasonCode.ADJUSTMENT_INTERVAL in codes(bench.run(29))


# -- aggregated --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("queue", "kv", "target"),
    [
        (1, 0.7, 3),  # either may need more
        (0, 1.0, 3),
        (1, 1.0, 3),
        (0, 0.1, 1),  # both must need less
        (0, 0.7, None),
        (1, 0.1, 3),
    ],
)
def test_an_aggregated_worker_does_both_jobs(queue: int, kv: float, target: int | None) -> None:
    bench = Bench(BOTH)
    bench.queue, bench.kv = queue, kv
    opinion = bench.run(30)
    assert opinion.targets == ({} if target is None else {"agg": target})
    assert len(opinion.reasons) == 1


def test_a_low_queue_alone_says_that_signals_are_within() -> None:
    bench = Bench(BOTH)
    assert codes(bench.run(30)) == {ReasonCode.WITHIN_THRESHOLDS}


# -- what it says of itself --------------------------------------------------------------------------------------------


def test_the_reasons_of_what_changes_come_first() -> None:
    bench = Bench(PREFILL, DECODE)
    bench.queue, bench.kv = 1, 0.1
    bench.pool("prefill").set_desired(3, bench.now)
    opinion = bench.run(30)
    assert [(r.pool, r.code) for r in opinion.reasons] == [
        ("decode", ReasonCode.KV_USAGE_LOW),
        ("prefill", ReasonCode.WORKERS_PENDING),
    ]
    assert opinion.reasons[0].sentence() == "decode: mean KV load 0.10 is below 0.5"


def test_it_samples_once_an_interval_however_often_it_is_asked() -> None:
    bench = decode()
    for _ in range(100):
        bench.now += 10
        bench.look_once()
    assert len(bench.planner.watches["decode"].kv.low.values) == 1
    assert bench.planner.next_wake() > bench.now
