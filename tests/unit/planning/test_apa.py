"""APA planner: manual calculations for the rules of AIBrix."""

import pytest

from loadline.core.fleet.pool import PoolKnobs
from loadline.core.planning.planners.baselines.apa import ApaKnobs, ApaPlanner
from loadline.core.vocabulary.reasons import Recommendation
from loadline.core.vocabulary.scalars import Role
from tests.support.fleet_harness import FleetHarness

RESYNC_MS = 10_000


class ApaHarness(FleetHarness):
    """Pool whose workers report the same KV usage; its first worker has all waiting requests."""

    def __init__(self, workers: int, role: Role = "decode", **knobs: float) -> None:
        super().__init__([PoolKnobs("p", role, replicas_max=1_000)], workers)
        self.planner = ApaPlanner(ApaKnobs(**knobs))  # type: ignore[arg-type]
        self.pool("p").reset_decided(workers, self.now)

    def evaluate(self, kv: float = 0.0, waiting: int = 0) -> Recommendation:
        self.report("p", kv, waiting)
        return self.planner.plan(self.refresh(), self.now)

    def sync(self, kv: float = 0.0, waiting: int = 0) -> int:
        """Return the count after the next sync, which is applied at once."""
        self.now += RESYNC_MS
        pool = self.pool("p")
        count = self.evaluate(kv, waiting).targets.get("p", pool.effective_target(self.now))
        pool.set_decided(count, self.now)
        while pool.ready > count:
            self.remove_newest("p")
        self.add_workers("p", count - pool.ready)
        return count


# Of a target of 0.5, with tolerances of 0.1 and 0.2.
RATIOS = {
    "just above the band": (4, 0.56, 5),  # 4 x 1.12
    "its upper end": (4, 0.55, 4),
    "its lower end": (5, 0.4, 5),
    "just below the band": (10, 0.39, 8),  # 10 x 0.78
    "the rate limits growth": (4, 1.0, 6),  # 4 x 2, but 1.5 times
    "the rate limits a shrink": (10, 0.05, 4),  # 10 x 0.1, but a 2.5th
    "a limited count is rounded up for growth": (3, 1.0, 5),  # 4.5
    "a limited count is rounded down for a shrink": (6, 0.01, 2),  # 2.4
    "idle": (1, 0.0, 1),
}


@pytest.mark.parametrize("case", RATIOS)
def test_the_ratio_to_the_target_proposes_a_count_within_band_and_rates(case: str) -> None:
    workers, kv, count = RATIOS[case]
    rates = {"max_scale_up_rate": 1.5, "max_scale_down_rate": 2.5}
    band = {"scale_up_tolerance": 0.1, "scale_down_tolerance": 0.2}
    harness = ApaHarness(workers, "decode", scale_down_cooldown_window_ms=0, **rates, **band)
    assert harness.sync(kv) == count


def test_a_prefill_pool_is_sized_by_its_queue() -> None:
    assert ApaHarness(4, "prefill").sync(waiting=70) == 7  # 17.5 of 10 each: 4 x 1.75


def test_the_metric_is_averaged_over_its_window() -> None:
    harness = ApaHarness(4, observe_window_ms=30_000)
    assert [harness.sync(0.5), harness.sync(0.5)] == [4, 4]
    assert harness.sync(0.7) == 5  # (0.5 + 0.5 + 0.7) / 3 is 1.13 of the target
    assert harness.sync(0.5) == 6  # (0.5 + 0.7 + 0.5) / 3, again
    assert harness.sync(0.44) == 6  # (0.7 + 0.5 + 0.44) / 3 is within the band


def test_pending_workers_are_part_of_the_count_that_is_multiplied() -> None:
    harness = ApaHarness(2)
    harness.pool("p").set_decided(4, harness.now)
    assert harness.evaluate(kv=0.9).targets == {"p": 8}  # 4 x 1.8


def test_a_scale_down_takes_the_highest_proposal_of_the_window() -> None:
    harness = ApaHarness(8, observe_window_ms=10_000, scale_down_cooldown_window_ms=60_000)
    assert harness.sync(0.5) == 8
    counts = [harness.sync(0.3) for _ in range(7)]
    assert counts == [8] * 5 + [5] * 2  # 8 x 0.6 rounded up once the 8 is 60 s old; now these 5 are in the window


def test_growth_that_was_refused_does_not_turn_a_scale_down_into_growth() -> None:
    harness = ApaHarness(4, observe_window_ms=10_000)
    assert harness.evaluate(kv=1.0).targets == {"p": 8}
    harness.now += RESYNC_MS  # the guardrails kept 4
    assert harness.evaluate(kv=0.1).targets == {}


def test_the_count_never_falls_to_zero() -> None:
    harness = ApaHarness(1, scale_down_cooldown_window_ms=0)
    assert [harness.sync(0.0) for _ in range(5)] == [1] * 5


def test_other_settings_resize_the_windows() -> None:
    harness = ApaHarness(2)
    harness.sync(0.5)
    harness.planner.apply_settings(ApaKnobs(observe_window_ms=60_000, scale_down_cooldown_window_ms=120_000))
    history = harness.planner.histories["p"]
    assert (history.values.window_ms, history.recommendations.window_ms) == (59_999, 119_999)
    assert harness.planner.next_wake() == 0
