"""Saturation planner: cases that the original misses, and interaction of pools and roles."""

import pytest

from loadline.core.engines.accelerator import AcceleratorKnobs
from loadline.core.fleet.pool import PoolKnobs
from loadline.core.vocabulary.events import TrafficReported
from loadline.core.vocabulary.reasons import ReasonCode, Recommendation
from loadline.core.vocabulary.samples import TrafficSample
from tests.support.saturation_harness import POOL, STEP_MS, ReportedLoad, SaturationHarness, noisy

IDLE = ReportedLoad(kv=0.0, running=0)
DROWNING = ReportedLoad(kv=0.95, waiting=50)
MIDDLE = ReportedLoad(kv=0.66)
"""Between the boundaries: 0.66 / 0.8 = 82 % of a worker."""
MINUTES = 240


def codes(recommendation: Recommendation) -> dict[str, list[ReasonCode]]:
    found: dict[str, list[ReasonCode]] = {}
    for one in recommendation.reasons:
        found.setdefault(one.pool, []).append(one.code)
    return found


def test_several_overloaded_workers_grow_the_pool_by_more_than_one() -> None:
    recommendation = SaturationHarness(workers=10).run_loads(60, a=[DROWNING] * 8 + [IDLE] * 2)
    assert recommendation.targets["a"] > 20
    upstream = SaturationHarness(workers=10, profile="upstream").run_loads(60, a=[DROWNING] * 8 + [IDLE] * 2)
    assert upstream.targets == {"a": 9}, "the original shrinks it"


def test_waiting_requests_are_sized_for_in_one_step() -> None:
    waiting = [ReportedLoad(kv=0.7, waiting=250)] * 2
    assert SaturationHarness().run_loads(60, a=waiting).targets["a"] >= 10
    assert SaturationHarness(profile="upstream").run_loads(60, a=waiting).targets == {"a": 3}


def test_growth_does_not_wait_for_a_complete_window() -> None:
    harness = SaturationHarness(workers=4)
    assert harness.run_loads(300, a=[MIDDLE] * 4).targets == {}
    assert harness.run_loads(1, a=[ReportedLoad(kv=0.9, waiting=40)] * 4).targets["a"] > 4


def test_a_sustained_overload_grows_at_once_and_a_spike_does_not() -> None:
    harness = SaturationHarness(workers=4)
    harness.run_loads(300, a=[MIDDLE] * 4)
    assert harness.run_loads(1, a=[ReportedLoad(kv=0.9, waiting=60)] * 4).targets == {"a": 10}, (
        "one of 15 samples is a spike"
    )
    harness = SaturationHarness(workers=4)
    harness.run_loads(300, a=[MIDDLE] * 4)
    assert harness.run_loads(1, a=[ReportedLoad(kv=0.8, waiting=1)] * 4).targets == {}


@pytest.mark.parametrize(("kv", "targets"), [(0.71, {}), (0.73, {"a": 11})])
def test_it_grows_above_90_percent_utilisation(kv: float, targets: dict[str, int]) -> None:
    assert SaturationHarness(workers=10).run_loads(60, a=[ReportedLoad(kv=kv)] * 10).targets == targets


@pytest.mark.parametrize(("kv", "targets"), [(0.55, {}), (0.53, {"a": 9}), (0.20, {"a": 4})])
def test_it_shrinks_to_75_percent_utilisation(kv: float, targets: dict[str, int]) -> None:
    assert SaturationHarness(workers=10).run_loads(MINUTES, a=[ReportedLoad(kv=kv)] * 10).targets == targets


def test_a_shrink_waits_until_the_last_peak_is_over() -> None:
    harness = SaturationHarness(workers=10)
    harness.run_loads(30, a=[MIDDLE] * 10)
    assert harness.run_loads(150, a=[ReportedLoad(kv=0.2)] * 10).targets == {}
    assert harness.run_loads(60, a=[ReportedLoad(kv=0.2)] * 10).targets == {"a": 4}


def test_an_overdue_worker_does_not_prevent_growth() -> None:
    harness = SaturationHarness()
    harness.pool("a").set_decided(3, harness.now)
    high = [ReportedLoad(kv=0.9)] * 2
    assert harness.run_loads(30, a=high).targets == {}, "the pending worker suffices"
    assert harness.run_loads(600, a=[ReportedLoad(kv=0.9, waiting=20)] * 2).targets["a"] > 3


def test_another_pool_of_the_role_grows_if_workers_are_overdue() -> None:
    expensive = PoolKnobs("b", "aggregated", gpus_per_worker=4, replicas_max=100)
    harness = SaturationHarness(POOL, expensive)
    high = [ReportedLoad(kv=0.9)] * 2
    assert harness.run_loads(30, a=high, b=high).targets == {"a": 3}, "the cheaper pool grows"
    harness.pool("a").set_decided(3, harness.now)
    recommendation = harness.run_loads(90, a=high, b=high)
    assert recommendation.targets == {"b": 3}
    assert ReasonCode.PENDING_UNREACHED in codes(recommendation)["a"]


def test_growth_takes_the_pool_with_the_highest_capacity_per_cost() -> None:
    small = PoolKnobs("a", "aggregated", gpus_per_worker=1, replicas_max=100)
    large = PoolKnobs("b", "aggregated", gpus_per_worker=2, replicas_max=100)
    harness = SaturationHarness(small, large)
    harness.pool("b").accelerator = AcceleratorKnobs("cheap", "old", cost_per_hour=0.1)
    high = [ReportedLoad(kv=0.9)] * 2
    assert harness.run_loads(30, a=high, b=high).targets == {"b": 3}
    low = [ReportedLoad(kv=0.4)] * 2
    assert harness.run_loads(MINUTES, a=low, b=low).targets == {"a": 1}, "the most expensive is removed first"


def test_a_silent_worker_counts_as_neither_idle_nor_loaded() -> None:
    harness = SaturationHarness(workers=4)
    assert harness.run_loads(MINUTES, a=[ReportedLoad(kv=0.45)] * 4).targets == {"a": 3}
    harness = SaturationHarness(workers=4)
    assert harness.run_loads(MINUTES, a=[ReportedLoad(kv=0.45)] * 3 + [None]).targets == {}, (
        "the silent worker may be full"
    )
    harness = SaturationHarness(workers=4)
    assert harness.run_loads(MINUTES, a=[ReportedLoad(kv=0.85)] * 3 + [None]).targets == {}, (
        "the silent worker may be empty"
    )


@pytest.mark.parametrize("missing", [ReportedLoad(kv=None), ReportedLoad(waiting=None)])
def test_a_missing_metric_is_not_zero(missing: ReportedLoad) -> None:
    assert SaturationHarness(workers=4).run_loads(MINUTES, a=[ReportedLoad(kv=0.45)] * 3 + [missing]).targets == {}
    recommendation = SaturationHarness(workers=4).run_loads(MINUTES, a=[missing] * 4)
    assert (recommendation.targets, codes(recommendation)) == ({}, {"a": [ReasonCode.NO_DATA]})


def test_an_empty_pool_grows_for_the_load_of_its_role() -> None:
    empty = PoolKnobs("b", "aggregated", replicas_min=0, replicas_max=8)
    full = PoolKnobs("a", "aggregated", replicas_max=2)
    harness = SaturationHarness(full, empty)
    for _ in range(2):
        harness.remove_newest("b")
    harness.pool("b").set_decided(0, harness.now)
    recommendation = harness.run_loads(30, a=[ReportedLoad(kv=0.9)] * 2)
    assert recommendation.targets == {"b": 1}
    assert harness.run_loads(600, a=[MIDDLE] * 2).targets == {}


def test_a_silent_pool_prevents_shrinks_of_its_role() -> None:
    other = PoolKnobs("b", "aggregated", gpus_per_worker=4, replicas_max=100)
    recommendation = SaturationHarness(POOL, other, workers=4).run_loads(
        MINUTES, a=[ReportedLoad(kv=0.56)] * 4, b=[None] * 4
    )
    assert (recommendation.targets, codes(recommendation)["b"]) == ({}, [ReasonCode.NO_DATA])


def test_excess_capacity_of_other_pools_is_removed_despite_a_silent_pool() -> None:
    other = PoolKnobs("b", "aggregated", gpus_per_worker=4, replicas_max=100)
    mute = [ReportedLoad(kv=None)] * 4
    assert SaturationHarness(POOL, other, workers=4).run_loads(
        MINUTES, a=[ReportedLoad(kv=0.2)] * 4, b=mute
    ).targets == {"a": 2}


def test_overdue_workers_are_not_cancelled_for_growth() -> None:
    harness = SaturationHarness()
    harness.pool("a").set_decided(5, harness.now)
    harness.run_loads(90, a=[MIDDLE] * 2)
    recommendation = harness.run_loads(30, a=[ReportedLoad(kv=0.9)] * 2)
    assert (recommendation.targets, codes(recommendation)["a"]) == (
        {},
        [ReasonCode.SATURATION_HIGH, ReasonCode.PENDING_UNREACHED],
    )


def test_either_signal_grows_an_aggregated_pool_and_both_shrink_it() -> None:
    assert SaturationHarness(workers=4).run_loads(30, a=[ReportedLoad(kv=0.2, waiting=6)] * 4).targets["a"] > 4
    assert SaturationHarness(workers=4).run_loads(30, a=[ReportedLoad(kv=0.9)] * 4).targets["a"] > 4
    assert SaturationHarness(workers=4).run_loads(MINUTES, a=[ReportedLoad(kv=0.2, waiting=3)] * 4).targets == {}
    assert SaturationHarness(workers=4).run_loads(MINUTES, a=[ReportedLoad(kv=0.2)] * 4).targets == {"a": 2}


def test_prefill_is_sized_by_busy_workers_and_queue_and_decode_by_cache() -> None:
    pools = PoolKnobs("p", "prefill", replicas_max=20), PoolKnobs("d", "decode", replicas_max=20)
    harness = SaturationHarness(*pools, workers=4)
    busy, idle = ReportedLoad(kv=0.02, running=1), ReportedLoad(kv=0.02, running=0)
    assert harness.run_loads(60, p=[busy] * 4, d=[MIDDLE] * 4).targets == {"p": 5}
    harness = SaturationHarness(*pools, workers=4)
    assert harness.run_loads(MINUTES, p=[busy, busy, idle, idle], d=[MIDDLE] * 4).targets == {"p": 3}
    harness = SaturationHarness(*pools, workers=4)
    queued = ReportedLoad(kv=0.02, running=1, waiting=10)
    assert harness.run_loads(30, p=[queued, idle, idle, idle], d=[ReportedLoad(kv=0.9)] * 4).targets == {"d": 5}


def test_requests_queued_at_frontends_count() -> None:
    harness = SaturationHarness(workers=4)

    def report_queue() -> None:
        sample = TrafficSample(harness.sequence + 1, 1_000, 10, queued=90)
        harness.model.traffic.ingest(TrafficReported("m", "f", 1, sample), harness.now)

    harness.run_loads(30, a=[MIDDLE] * 4)
    report_queue()
    assert harness.run_loads(1, a=[MIDDLE] * 4).targets == {"a": 7}, (
        "90 requests at 30 per worker need three more workers"
    )


def test_draining_workers_are_not_removed_twice() -> None:
    harness = SaturationHarness(workers=10)
    low = [ReportedLoad(kv=0.48)] * 10
    assert harness.run_loads(MINUTES, a=low).targets == {"a": 8}
    harness.pool("a").set_decided(8, harness.now)
    assert harness.run_loads(5, a=low).targets == {}


def test_the_recommendation_has_demand_and_capacities_of_each_role() -> None:
    (need,) = SaturationHarness(workers=10).run_loads(60, a=[ReportedLoad(kv=0.8)] * 10).demands
    assert (need.role, need.capacities) == ("aggregated", {"a": 1.0})
    assert need.demand == pytest.approx(10 / 0.9)
    (need,) = SaturationHarness(workers=10).run_loads(MINUTES, a=[ReportedLoad(kv=0.4)] * 10).demands
    assert need.demand == pytest.approx(5 / 0.75)
    (need,) = SaturationHarness(workers=10).run_loads(60, a=[MIDDLE] * 10).demands
    assert need.demand == pytest.approx(10.0), "the whole capacity"


def test_can_remove_one_is_true_if_one_worker_less_suffices() -> None:
    for kv, safe in ((0.5, True), (0.58, False), (0.9, False)):
        harness = SaturationHarness(workers=10)
        harness.run_loads(MINUTES, a=[ReportedLoad(kv=kv)] * 10)
        assert harness.planner.removable == {"a": safe}


def changes(mean: float, seed: int, hours: int = 2, **knobs: object) -> list[int]:
    """Return the successive counts of a fleet of five that applies recommendations at once."""
    harness, counts = SaturationHarness(workers=5, **knobs), []
    for load in noisy(mean, 0.05, hours * 3_600, seed=seed):
        harness.now += STEP_MS
        count = harness.pool("a").ready
        harness.report_each("a", *[ReportedLoad(kv=min(1.0, load / count))] * count)
        if harness.apply_targets(harness.plan()):
            counts.append(harness.pool("a").ready)
    return counts


@pytest.mark.parametrize("seed", range(3))
def test_a_load_that_oscillates_around_a_threshold_changes_nothing(seed: int) -> None:
    at_own, at_upstream = 0.72 * 5, 0.70 * 5
    assert changes(at_own, seed) == [6], "the count rises once and stays"
    assert len(changes(at_upstream, seed, profile="upstream")) / 2 >= 10, "for an hour"
