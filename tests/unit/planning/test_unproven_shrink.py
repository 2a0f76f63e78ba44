"""A shrink that no load has proven is tried once the kept worker has cost as much as the risk of a failure."""

from math import inf

import pytest

from loadline.core.planning.sizing.needs.unproven_shrink import UnprovenShrink
from loadline.core.vocabulary.reasons import ReasonCode
from tests.unit.planning.test_auto_planner import SERVES, START_UP_S, AutoWorld

NOW_MS = 1_000_000
RATE = 18.0
WAIT_S = 0.25 * RATE * START_UP_S * 20.0 / SERVES
"""All requests of a start-up time are late if one worker is too few, and each of them costs 20 served ones. One trial
in four is taken to fail."""


def test_a_trial_waits_until_the_kept_worker_has_cost_as_much_as_the_risk() -> None:
    trial = UnprovenShrink()
    assert trial.left_ms(2, 1_200.0, NOW_MS) == 300_000
    assert trial.left_ms(2, 1_200.0, NOW_MS + 299_999) == 1
    assert trial.left_ms(2, 1_200.0, NOW_MS + 300_000) == 0
    trial.record_trial(2, NOW_MS + 300_000)
    assert trial.left_ms(2, 1_200.0, NOW_MS + 301_000) == 0, "a guardrail may hold the shrink"
    assert trial.left_ms(1, 1_200.0, NOW_MS + 302_000) == 300_000, "another worker less is another trial"
    assert trial.left_ms(1, 1_200.0, NOW_MS + 402_000) == 200_000
    trial.forget()
    assert trial.left_ms(1, 1_200.0, NOW_MS + 402_000) == 300_000


def test_each_failure_doubles_the_wait_up_to_a_day() -> None:
    trial = UnprovenShrink()
    for failures, wait_s in ((1, 600), (2, 1_200), (3, 2_400)):
        trial.record_trial(2, NOW_MS)
        trial.record_growth(1, NOW_MS + 600_000)
        assert (trial.failures, trial.left_ms(2, 1_200.0, NOW_MS)) == (failures, 1_000 * wait_s)
    assert trial.left_ms(2, inf, NOW_MS) == 86_400_000


@pytest.mark.parametrize(("tried_at_ms", "replicas"), [(-1, 1), (NOW_MS - 600_001, 1), (NOW_MS - 1, 2)])
def test_a_growth_long_after_a_trial_or_one_that_was_held_is_no_failure(tried_at_ms: int, replicas: int) -> None:
    trial = UnprovenShrink(tried_at_ms=tried_at_ms, tried_from=2)
    trial.record_growth(replicas, NOW_MS)
    assert (trial.failures, trial.tried_at_ms) == (0, -1)


def test_a_steady_load_that_one_of_two_workers_serves_ends_on_one() -> None:
    world = AutoWorld(2)
    world.run(RATE, 120)
    assert world.target == 2
    [reason] = [one for one in world.last.reasons if one.code is ReasonCode.TRIAL_PENDING]
    assert "1 held at 2: with 1, a worker would serve" in reason.sentence()
    assert "it is tried if nothing changes for " in reason.sentence()
    left_s = int(reason.numbers["left_ms"] / 1_000.0)
    assert WAIT_S - 120 <= left_s <= 1.3 * WAIT_S
    world.run(RATE, int(2 * WAIT_S))
    assert world.target == 1
    assert world.planner._state(world.pool).unproven_shrink.tried_at_ms > 0
    world.run(RATE, 1_200)
    assert set(world.counts[-1_200:]) == {1}


def test_a_trial_begins_its_wait_again_after_a_change() -> None:
    world = AutoWorld(2)
    world.run(RATE, 120)
    trial = world.planner._state(world.pool).unproven_shrink
    assert trial.since_ms > 0
    world.run(2.0 * RATE, 60)
    assert trial.since_ms == -1
    assert world.target == 2


def test_a_growth_soon_after_a_trial_is_its_failure() -> None:
    world = AutoWorld(2)
    world.run(RATE, 120 + int(2 * WAIT_S))
    assert world.target == 1
    world.run(2.0 * RATE, 60)
    assert world.target > 1
    assert world.planner._state(world.pool).unproven_shrink.failures == 1


def test_nothing_is_tried_that_the_loads_within_the_objectives_do_not_promise() -> None:
    """One worker would serve 28 requests/s at an ITL of 90 ms."""
    world = AutoWorld(2)
    world.run(28.0, 3_600)
    assert set(world.counts[600:]) == {2}
