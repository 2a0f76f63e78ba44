"""Holds of scale-downs, which lulls make longer or shorter."""

from loadline.core.planning.sizing.shrink_hold import ShrinkHold

START_UP_MS = 30_000


def shrunk(*, needed: int = 6, kept: int = 1) -> ShrinkHold:
    """Return the hold of a pool that shrank from ``needed`` workers at 130 s, a start-up after its peak."""
    hold = ShrinkHold()
    hold.update(needed, needed, START_UP_MS, 0)
    hold.update(kept, needed, START_UP_MS, 100_000)
    hold.update(kept, kept, START_UP_MS, 130_000)
    return hold


def test_a_count_is_held_for_a_start_up() -> None:
    hold = shrunk()
    assert hold.needed.max(129_999) == 6
    assert hold.needed.max(130_001) == 1


def test_a_lull_that_cost_more_than_idle_workers_is_held_next_time() -> None:
    hold = shrunk()
    hold.record_growth(6, lost_worker_s=1_000.0, now=160_000)
    assert hold.learned_ms == 75_000, "1.25 times the lull of 60 s"
    hold.update(6, 6, START_UP_MS, 160_000)
    hold.update(1, 6, START_UP_MS, 220_000)
    assert hold.needed.max(290_000) == 6


def test_a_lull_that_idle_workers_would_have_cost_more_shortens_the_hold() -> None:
    hold = shrunk()
    hold.learned_ms = 100_000
    hold.record_growth(6, lost_worker_s=10.0, now=160_000)
    assert hold.learned_ms == 70_000


def test_growth_without_a_shrink_before_teaches_nothing() -> None:
    hold = ShrinkHold()
    hold.record_growth(6, lost_worker_s=1_000.0, now=160_000)
    assert hold.learned_ms == 0


def test_the_first_of_several_shrinks_counts() -> None:
    hold = shrunk(kept=3)
    hold.update(1, 1, START_UP_MS, 140_000)
    assert (hold.shrunk_at_ms, hold.shrunk_from) == (130_000, 6)


def test_the_hold_is_bounded() -> None:
    hold = shrunk()
    hold.record_growth(6, lost_worker_s=1e9, now=7_200_000)
    assert hold.learned_ms == 900_000
