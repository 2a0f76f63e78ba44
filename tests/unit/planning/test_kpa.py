"""KPA planner: manual calculations, and cases of Knative's tests."""

import pytest

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.planners.baselines.kpa import KpaHistory, KpaKnobs, KpaPlanner
from loadline.core.planning.recommendation import samples_within
from loadline.core.vocabulary.reasons import Reason, ReasonCode, Recommendation
from loadline.core.vocabulary.scalars import Role
from tests.support.fleet_harness import START, FleetHarness, reported, sample

SECOND_MS = 1_000
STABLE_MS = 60_000
# Settings of the tests of Knative.
RATES = {"target_utilization": 1.0, "max_scale_up_rate": 10.0, "max_scale_down_rate": 10.0}


class KpaHarness(FleetHarness):
    """Pool whose first worker has all requests in flight; the others are idle or silent."""

    def __init__(self, workers: int, role: Role = "decode", **knobs: float) -> None:
        super().__init__([PoolKnobs("p", role, replicas_max=10_000)], workers)
        self.planner = KpaPlanner(KpaKnobs(**knobs))  # type: ignore[arg-type]
        self.pool("p").reset_decided(workers, self.now)

    def evaluate(self, in_flight: int, silent: int = 0) -> Recommendation:
        self.report("p", waiting=in_flight, running=0, silent=silent)
        return self.planner.plan(self.refresh(), self.now)

    def run(self, seconds: int, in_flight: int) -> Recommendation:
        """Evaluate once per second for some seconds."""
        for _ in range(seconds):
            self.now += SECOND_MS
            recommendation = self.evaluate(in_flight)
        return recommendation

    def count(self, recommendation: Recommendation) -> int:
        return recommendation.targets.get("p", self.pool("p").effective_target(self.now))

    def ready(self, count: int) -> None:
        """Set the number of ready workers."""
        pool = self.pool("p")
        pool.reset_decided(count, self.now)
        while pool.ready > count:
            self.remove_newest("p")
        self.add_workers("p", count - pool.ready)


class KpaTicks:
    """Ticks with given means of both windows, as in Knative's tests."""

    def __init__(self, ready: int = 1, **knobs: float) -> None:
        self.line = FleetHarness([PoolKnobs("p", "decode", replicas_max=1_000)], ready)
        self.planner = KpaPlanner(KpaKnobs(**(RATES | knobs)))  # type: ignore[arg-type]
        delay_ms = self.planner.knobs.scale_down_delay_ms
        self.watch = KpaHistory(samples_within(STABLE_MS), samples_within(delay_ms), panic_minimum=ready)
        self.reasons: tuple[Reason, ...] = ()

    def at(self, seconds: float, stable: float, panic: float, ready: int | None = None) -> int:
        """Return the count at a time, for means over a stable window of 60 samples and a panic window of 6."""
        now, pool = START + int(seconds * SECOND_MS), self.line.pool("p")
        while ready is not None and pool.ready > ready:
            self.line.remove_newest("p")
        if ready is not None:
            self.line.add_workers("p", ready - pool.ready)
        window = self.watch.in_flight
        window.clear()
        for age_s in reversed(range(60)):
            window.push(now - age_s * SECOND_MS, panic if age_s < 6 else (60 * stable - 6 * panic) / 54)
        change = self.planner._tick(pool, self.watch, now)
        self.reasons = change.reasons
        return pool.effective_target(now) if change.replicas is None else change.replicas


# -- tables of Knative: target, ready, stable, panic, count -------------------------------------------------

CASES = {
    "StableModeUnlimitedTBC": (181, 1, 21, 26, 1),
    "0TBC": (10, 1, 50, 49, 5),
    "StableModeNoChange": (10, 1, 50, 50, 5),
    "StableModeNoChangeAlreadyScaled": (10, 5, 50, 50, 5),
    "PanicModeDoublePodCount": (10, 1, 50, 100, 10),
    "StableModeIncreaseWithConcurrencyDefault": (10, 1, 50, 10, 5),
    "RateLimitScaleUp": (10, 1, 1_000, 1_001, 10),
    "RateLimitScaleUp, again": (10, 10, 1_000, 1_001, 100),
    "RateLimitScaleDown": (10, 100, 1, 1, 10),
    "RateLimitScaleDown, again": (10, 10, 1, 1, 1),
    "NoTraffic: never to zero": (10, 1, 0, 0, 1),
    "one more than a whole number of workers": (10, 4, 41, 41, 5),
    "a whole number of workers": (10, 4, 40, 40, 4),
}


@pytest.mark.parametrize("case", CASES)
def test_counts_equal_those_of_knatives_test_table(case: str) -> None:
    target, ready, stable, panic, count = CASES[case]
    assert KpaTicks(ready, target_concurrency=float(target)).at(0, stable, panic) == count


@pytest.mark.parametrize(
    ("knobs", "ready", "in_flight", "count"),
    [
        (
            {"target_concurrency": 1.0, "max_scale_up_rate": 1.1},
            2,
            3,
            3,
        ),  # 2.2 is rounded up: one more is always allowed
        ({"target_concurrency": 10.0, "max_scale_down_rate": 1.1}, 100, 1, 90),  # 90.9 is rounded down
    ],
)
def test_small_rates_allow_a_change_by_one(knobs: dict[str, float], ready: int, in_flight: int, count: int) -> None:
    scale = KpaTicks(ready, **knobs)
    assert scale.at(0, in_flight, in_flight) == count


@pytest.mark.parametrize(("stable", "panic", "count"), [(50, 30, 50), (20, 30, 30)])
def test_in_panic_the_higher_of_both_windows_counts(stable: float, panic: float, count: int) -> None:
    scale = KpaTicks(5, target_concurrency=1.0)
    scale.watch.panic_at_ms = START - 5 * SECOND_MS
    assert scale.at(0, stable, panic) == count
    assert scale.reasons[0].code == ReasonCode.PANIC


def test_each_surge_begins_a_panic() -> None:
    scale = KpaTicks(1, target_concurrency=1.0)
    for second, ready in enumerate((1, 6, 36, 216)):
        assert scale.at(second, ready * 6, ready * 6, ready) == ready * 6
        assert scale.watch.panic_at_ms == START + second * SECOND_MS


def test_panic_ends_after_a_slow_increase() -> None:
    scale = KpaTicks(10, target_concurrency=1.0)
    assert scale.at(0, 11, 25) == 25
    assert scale.at(30, 30, 41, 40) == 41
    assert scale.watch.panic_at_ms == START, "41 is not twice 40"
    assert scale.at(62, 50, 56, 55) == 50, "after the panic the stable window counts"
    assert scale.watch.panic_at_ms == -1


def test_panic_continues_during_the_surge() -> None:
    scale = KpaTicks(10, target_concurrency=1.0)
    assert scale.at(0, 11, 25) == 25
    assert scale.at(30, 30, 80, 40) == 80
    assert scale.watch.panic_at_ms == START + 30 * SECOND_MS


def test_panic_keeps_the_highest_count_until_it_ends() -> None:
    scale = KpaTicks(1, target_concurrency=10.0)
    assert scale.at(0, 100, 100) == 10
    assert scale.at(0, 100, 1_000, 10) == 100
    assert scale.at(30, 1, 1) == 100
    assert scale.at(60, 1, 1) == 100, "the panic lasts a whole stable window"
    assert scale.reasons[0].numbers["left_ms"] == 0
    assert scale.at(61, 1, 1) == 1
    assert scale.at(70, 10, 40, 1) == 4, "the minimum of the last panic is reset"


def test_panic_begins_at_the_threshold_and_not_below() -> None:
    for in_flight, panics in ((19, False), (20, True)):
        scale = KpaTicks(10, target_concurrency=1.0)
        scale.at(0, 5, in_flight)
        assert (scale.watch.panic_at_ms >= 0) is panics


def test_a_scale_down_waits_for_its_delay() -> None:
    scale = KpaTicks(1, target_concurrency=10.0, panic_threshold=100.0, scale_down_delay_ms=300_000)
    assert scale.at(2, 40, 40) == 4
    assert scale.at(300, 0, 0) == 4
    assert [r.code for r in scale.reasons] == [ReasonCode.CONCURRENCY_TARGET, ReasonCode.HIGHEST_RECOMMENDATION]
    assert scale.at(302, 0, 0) == 1
    assert scale.at(540, 40, 40) == 4
    assert scale.at(600, 30, 30) == 4
    assert scale.at(660, 0, 0) == 4
    assert scale.at(840, 0, 0) == 3
    assert scale.at(900, 0, 0) == 1


def test_without_a_delay_it_scales_down_at_once() -> None:
    scale = KpaTicks(1, target_concurrency=10.0, panic_threshold=100.0)
    assert [scale.at(0, 40, 40), scale.at(0.5, 20, 20)] == [4, 2]


def test_rounding_errors_add_no_worker() -> None:
    # 3 x 0.7 is 2.0999999999999996 in floats, and 8.4 divided by it a little more than 4.
    scale = KpaTicks(4, target_concurrency=3.0, target_utilization=0.7)
    assert scale.at(0, 8.4, 8.4) == 4


# -- the windows -------------------------------------------------------------------------------------------------------


def test_means_cover_60_and_6_samples() -> None:
    harness = KpaHarness(1, target_concurrency=100.0, target_utilization=1.0, panic_threshold=1_000.0)
    harness.run(60, in_flight=0)
    recommendation = harness.run(3, in_flight=60)  # at odd seconds there is a sample and no tick
    watch = harness.planner.histories["p"]
    assert watch.means(6_000, harness.now) == (180 / 60, 180 / 6)
    assert recommendation.inputs == {"p.ready": 1.0, "p.in_flight": 60.0}
    harness.run(60, in_flight=60)
    assert watch.means(6_000, harness.now) == (60, 60)


def test_the_load_of_silent_workers_is_the_mean_of_the_others() -> None:
    harness = KpaHarness(4, target_concurrency=10.0, target_utilization=1.0)
    recommendation = harness.evaluate(in_flight=20, silent=2)  # 20 at the two workers that report: 40 at four
    assert recommendation.inputs["p.in_flight"] == 40
    assert harness.planner.histories["p"].in_flight.values == [40.0]


@pytest.mark.parametrize(("role", "target"), [("decode", 70.0), ("aggregated", 70.0), ("prefill", 0.7)])
def test_default_targets_by_role(role: Role, target: float) -> None:
    (reason,) = KpaHarness(1, role).evaluate(in_flight=0).reasons
    assert reason.numbers["target"] == pytest.approx(target)


def test_between_ticks_the_recommendation_is_repeated() -> None:
    harness = KpaHarness(1)
    assert harness.evaluate(in_flight=139).targets == {"p": 2}
    harness.now += 1
    assert harness.evaluate(in_flight=0).targets == {"p": 2}
    assert harness.planner.next_wake() == START + 1_000
    harness.now = START + 1_000
    assert harness.evaluate(in_flight=1_000).targets == {"p": 2}
    harness.now = START + 2_000
    assert harness.evaluate(in_flight=1_000).targets == {"p": 11}  # (139 + 1000 + 1000) / 3 / 70, in panic


# -- starts and gaps ---------------------------------------------------------------------------------------------------


def test_several_workers_start_in_panic_and_do_not_scale_down() -> None:
    harness = KpaHarness(8)
    harness.evaluate(in_flight=0)
    assert harness.count(harness.run(60, in_flight=0)) == 8
    assert harness.count(harness.run(2, in_flight=0)) == 4
    harness.ready(4)
    assert harness.count(harness.run(2, in_flight=0)) == 2


def test_one_worker_starts_outside_of_panic() -> None:
    harness = KpaHarness(1)
    assert [r.code for r in harness.evaluate(in_flight=0).reasons] == [ReasonCode.CONCURRENCY_TARGET]
    harness.ready(3)
    assert harness.count(harness.run(2, in_flight=0)) == 1


def test_a_lost_history_begins_a_panic() -> None:
    harness = KpaHarness(8)
    harness.run(70, in_flight=560)  # 70 requests for each worker
    assert harness.planner.histories["p"].panic_at_ms == -1
    harness.now += STABLE_MS
    recommendation = harness.evaluate(in_flight=0)
    assert (harness.count(recommendation), recommendation.reasons[0].code) == (8, ReasonCode.PANIC)


def test_a_short_gap_is_a_hold_without_panic() -> None:
    harness = KpaHarness(8)
    harness.run(70, in_flight=560)
    harness.now += harness.fleet.knobs.stale_after_ms + 1
    recommendation = harness.planner.plan(harness.refresh(), harness.now)
    assert (recommendation.targets, [r.code for r in recommendation.reasons]) == ({}, [ReasonCode.NO_DATA])
    harness.now += 2_000
    harness.evaluate(in_flight=0)
    assert harness.planner.histories["p"].panic_at_ms == -1


# -- convergence -------------------------------------------------------------------------------------------------------


def test_a_surge_scales_up_in_seconds_and_is_kept_for_a_minute() -> None:
    harness = KpaHarness(1)
    harness.evaluate(in_flight=10)
    harness.run(60, in_flight=10)
    assert harness.count(harness.run(6, in_flight=700)) >= 9  # 700 / 70 = 10 once the panic window is full of it
    assert harness.count(harness.run(2, in_flight=700)) == 10
    harness.ready(10)
    assert harness.count(harness.run(54, in_flight=10)) == 10
    assert harness.count(harness.run(10, in_flight=10)) == 5  # half of the ready workers


@pytest.mark.parametrize("in_flight", [0, 50, 140, 500, 3_000])
def test_a_load_independent_of_the_count_converges(in_flight: int) -> None:
    harness = KpaHarness(3)
    for _ in range(300):
        harness.ready(harness.count(harness.run(1, in_flight)))
    assert harness.pool("p").ready == max(1, -(-in_flight // 70))


def test_kv_usage_alone_is_no_data() -> None:
    harness = KpaHarness(1)
    harness.fleet.ingest(reported("p0", sample(1, 0.5, None, None), pool="p"), harness.now)
    assert [r.code for r in harness.planner.plan(harness.refresh(), harness.now).reasons] == [ReasonCode.NO_DATA]


# -- the rules of AIBrix -----------------------------------------------------------------------------------------------


class AibrixTicks(KpaTicks):
    """Ticks by the rules of AIBrix, with its rates, for a count in force of which some workers start."""

    def __init__(self, ready: int, count: int, **knobs: float) -> None:
        rates = {"max_scale_up_rate": 2.0, "max_scale_down_rate": 2.0, "target_concurrency": 10.0}
        super().__init__(ready, **(rates | knobs), rules="aibrix")  # type: ignore[arg-type]
        self.decide(count)

    def decide(self, count: int) -> None:
        self.line.pool("p").reset_decided(count, START)


def test_aibrix_doubles_the_count_in_force_while_its_workers_start() -> None:
    scale = AibrixTicks(1, 1)
    for tick, count in enumerate((2, 4, 8, 16, 16)):
        assert scale.at(10 * tick, 160, 160) == count
        scale.decide(count)


@pytest.mark.parametrize(("in_flight", "count"), [(36.0, 4), (44.0, 4), (44.1, 5), (35.9, 4), (29.9, 3)])
def test_aibrix_keeps_the_count_within_a_tenth_of_the_target(in_flight: float, count: int) -> None:
    scale = AibrixTicks(2, 4)
    assert scale.at(0, in_flight, in_flight) == count
    near = 36.0 <= in_flight <= 44.0
    assert (scale.reasons[0].code == ReasonCode.WITHIN_TOLERANCE) is near


@pytest.mark.parametrize(("panic", "count", "code"), [(40.0, 2, "concurrency_target"), (40.1, 5, "panic")])
def test_aibrix_panics_by_the_ratio_of_the_two_means(panic: float, count: int, code: str) -> None:
    scale = AibrixTicks(3, 3)
    assert (scale.at(0, 20, panic), scale.reasons[0].code) == (count, code)


def test_aibrix_ends_its_panic_with_the_first_evaluation_without() -> None:
    scale = AibrixTicks(3, 3)
    assert scale.at(0, 20, 60) == 6
    scale.decide(6)
    assert scale.at(10, 30, 60) == 3
    assert [r.code for r in scale.reasons] == [ReasonCode.CONCURRENCY_TARGET]


def test_aibrix_does_not_begin_in_panic_with_several_workers() -> None:
    harness = KpaHarness(8, rules="aibrix")  # type: ignore[arg-type]
    assert harness.count(harness.evaluate(in_flight=0)) == 4


def test_aibrix_scales_down_to_the_highest_count_of_its_delay_but_not_above_the_one_in_force() -> None:
    scale = AibrixTicks(4, 4, scale_down_delay_ms=300_000)
    assert scale.at(0, 80, 80) == 8
    assert scale.at(10, 20, 20) == 4, "8 were not granted"
    assert scale.reasons[-1].code == ReasonCode.HIGHEST_RECOMMENDATION
    assert scale.at(310, 20, 20) == 2


@pytest.mark.parametrize("in_flight", [0, 50, 140, 500, 3_000])
def test_aibrix_converges_within_its_tolerance(in_flight: int) -> None:
    harness = KpaHarness(3, rules="aibrix")  # type: ignore[arg-type]
    for _ in range(300):
        harness.ready(harness.count(harness.run(1, in_flight)))
    assert 0.9 * in_flight <= 70 * harness.pool("p").ready * 1.1
    assert harness.pool("p").ready <= max(1, -(-in_flight // 63))
