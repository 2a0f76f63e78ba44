"""A shrink that a steady load has reversed is not repeated."""

from loadline.core.planning.sizing.needs.reversed_shrink import ReversedShrink
from loadline.core.vocabulary.reasons import ReasonCode
from tests.unit.planning.test_auto_planner import AutoWorld

SHRUNK_MS, GROWN_MS = 1_000_000, 1_200_000


def reversed_shrink(*, growing: float = 18.5, error: float = 0.0, grown_ms: int = GROWN_MS) -> ReversedShrink:
    """Return what is known after a shrink to two workers of 18 requests/s, and a growth."""
    found = ReversedShrink()
    found.record_shrink(SHRUNK_MS)
    found.record_growth(growing, 18.0, 2, error, grown_ms)
    return found


def test_the_load_that_reversed_a_shrink_keeps_the_added_worker() -> None:
    found = reversed_shrink()
    assert found.replicas_min(18.0, 0.0, GROWN_MS + 60_000) == 3
    assert found.replicas_min(16.5, 0.0, GROWN_MS + 60_000) == 3, "the mean of a minute varies"
    assert found.replicas_min(16.0, 0.0, GROWN_MS + 60_000) == 2, "the load has fallen"
    assert found.replicas_min(36.0, 0.0, GROWN_MS + 60_000) == 5, "the load of each worker counts"


def test_it_is_forgotten_after_half_an_hour() -> None:
    assert reversed_shrink().replicas_min(18.0, 0.0, GROWN_MS + 1_800_000) == 3
    assert reversed_shrink().replicas_min(18.0, 0.0, GROWN_MS + 1_800_001) == 0


def test_a_growth_for_a_rising_load_or_long_after_the_shrink_reverses_none() -> None:
    assert reversed_shrink(growing=20.0).replicas_min(18.0, 0.0, GROWN_MS) == 0
    assert reversed_shrink(grown_ms=SHRUNK_MS + 600_001).replicas_min(18.0, 0.0, SHRUNK_MS + 600_001) == 0
    assert ReversedShrink().replicas_min(18.0, 0.0, GROWN_MS) == 0


def test_arrivals_that_vary_more_are_steady_within_three_standard_errors() -> None:
    """The expected load is the mean of 15 s, and varies by 6 % at 18 requests/s; that of a minute by 3 %."""
    assert reversed_shrink(growing=20.5).replicas_min(18.0, 0.03, GROWN_MS) == 0
    found = reversed_shrink(growing=20.5, error=0.06)
    assert found.replicas_min(15.8, 0.03, GROWN_MS) == 3
    assert found.replicas_min(15.6, 0.03, GROWN_MS) == 2
    assert found.replicas_min(9.1, 9.0, GROWN_MS) == 3, "half of the load is a fall in any case"
    assert found.replicas_min(9.0, 9.0, GROWN_MS) == 2


def test_a_second_growth_needs_a_shrink_of_its_own() -> None:
    found = reversed_shrink()
    found.record_growth(9.0, 9.0, 3, 0.0, GROWN_MS + 1_000)
    assert found.replicas_min(18.0, 0.0, GROWN_MS + 2_000) == 3


def test_the_planner_keeps_the_worker_and_says_why_and_for_how_long() -> None:
    """Four workers of which two would do, and a growth that reversed a scale-down at 10.5 requests/s of each."""
    world = AutoWorld(4)
    world.run(36.0, 30)
    state = world.planner._state(world.pool)
    state.reversed_shrink.per_worker, state.reversed_shrink.at_ms = 10.5, world.fleet.now
    world.run(36.0, 240)
    assert world.target == 4
    assert ReasonCode.SHRINK_REVERSED in world.codes
    [sentence] = [one.sentence() for one in world.last.reasons if one.code is ReasonCode.SHRINK_REVERSED]
    assert "held at 4: a scale-down to 10.50 requests/s of each worker was reversed, for 26 min more" in sentence
    world.run(36.0, 1_800)
    assert world.target < 4
