"""Holds of scale-downs, which lulls make longer or shorter."""

from loadline.core.planning.sizing.needs.shrink_hold import ShrinkHold

START_UP_MS = 30_000


MORE_MS = 30_000
"""Hold beyond a start-up time."""
SERVES = 100.0
"""Work/s of a worker."""


def shrunk(*, needed: int = 6, kept: int = 1) -> ShrinkHold:
    """Return the hold of a pool that shrank from ``needed`` workers at 160 s, when the hold of its peak ended."""
    hold = ShrinkHold()
    hold.update(needed, SERVES, needed, START_UP_MS, 0)
    hold.update(kept, SERVES, needed, START_UP_MS, 100_000)
    hold.update(kept, SERVES, kept, START_UP_MS, 160_000)
    return hold


def grow(hold: ShrinkHold, wanted: int, *, late: float, now: int) -> None:
    """Scale up, and wait until the new workers are ready; a late request costs 10 worker-seconds."""
    current = hold.current
    hold.record_growth(wanted, 10.0, START_UP_MS, now)
    hold.record_excess(late)
    hold.update(wanted, SERVES, current, START_UP_MS, now + START_UP_MS)


def test_a_count_is_held_for_a_start_up_and_half_a_minute() -> None:
    hold = shrunk()
    end_ms = 100_000 + START_UP_MS + MORE_MS
    assert hold.needed.max(end_ms - 1) == 6
    assert hold.needed.max(end_ms + 1) == 1


def test_a_lull_that_cost_more_than_idle_workers_teaches_to_hold_for_that_cost() -> None:
    """The next lull may be longer than the one of 80 s that taught."""
    hold = shrunk()
    grow(hold, 6, late=100.0, now=180_000)
    assert hold.learned_ms == 200_000, "100 late requests cost as much as five workers in 200 s"
    hold.update(6, SERVES, 6, START_UP_MS, 299_999)
    hold.update(1, SERVES, 6, START_UP_MS, 300_000)
    assert hold.needed.max(499_000) == 6
    assert hold.needed.max(501_000) == 1


def test_a_lull_that_was_worth_holding_is_held_to_its_end() -> None:
    """The pool shrank after 60 s: another 190 s of five workers cost less than the 200 s that the requests cost."""
    hold = shrunk()
    grow(hold, 6, late=100.0, now=350_000)
    assert hold.learned_ms == 250_000


def test_a_growth_beyond_the_removed_workers_counts_as_a_whole() -> None:
    """More workers are missed than were removed, and late for each is a part of the requests."""
    hold = shrunk(needed=2)
    grow(hold, 8, late=140.0, now=170_000)
    assert hold.learned_ms == 200_000, "140 late requests cost as much as seven workers in 200 s"


def test_a_milder_return_does_not_shorten_the_hold() -> None:
    hold = shrunk()
    hold.learned_ms = 300_000
    grow(hold, 6, late=100.0, now=180_000)
    assert hold.learned_ms == 300_000


def test_a_lull_that_idle_workers_would_have_cost_more_shortens_the_hold() -> None:
    hold = shrunk()
    hold.learned_ms = 100_000
    grow(hold, 6, late=1.0, now=180_000)
    assert hold.learned_ms == 70_000


def test_a_burst_counts_as_it_is_when_the_workers_are_ready() -> None:
    hold = shrunk()
    hold.record_growth(2, 10.0, START_UP_MS, 180_000)
    hold.record_growth(6, 10.0, START_UP_MS, 190_000)
    hold.record_excess(100.0)
    hold.update(6, SERVES, 1, START_UP_MS, 179_999 + START_UP_MS)
    assert hold.learned_ms == 0, "the workers of the first step are not ready"
    hold.update(6, SERVES, 1, START_UP_MS, 180_000 + START_UP_MS)
    assert hold.learned_ms == 200_000


def test_growth_without_a_shrink_before_teaches_nothing() -> None:
    hold = ShrinkHold()
    grow(hold, 6, late=100.0, now=160_000)
    assert hold.learned_ms == 0


def test_the_first_of_several_shrinks_counts() -> None:
    hold = shrunk(kept=3)
    hold.update(1, SERVES, 1, START_UP_MS, 170_000)
    assert (hold.shrunk_at_ms, hold.shrunk_from) == (160_000, 6)


def test_the_hold_is_bounded() -> None:
    hold = shrunk()
    grow(hold, 6, late=1e8, now=7_200_000)
    assert hold.learned_ms == 900_000


def test_a_burst_that_does_not_come_costs_nothing() -> None:
    hold = shrunk()
    hold.learned_ms = 100_000
    hold.record_growth(60, 10.0, START_UP_MS, 180_000)
    for _ in range(30):
        hold.record_excess(-5.0)
    hold.update(6, SERVES, 1, START_UP_MS, 180_000 + START_UP_MS)
    assert hold.learned_ms == 70_000


def test_requests_that_are_served_later_are_late_once() -> None:
    hold = shrunk()
    hold.record_excess(1_000.0)
    hold.record_growth(6, 10.0, START_UP_MS, 180_000)
    for requests in (30.0, 30.0, -50.0, -50.0, 20.0):
        hold.record_excess(requests)
    assert hold.late_requests_max == 60.0


def test_a_worker_that_turns_out_to_serve_more_shortens_what_is_held() -> None:
    """Six workers were needed while one seemed to serve 100/s. At 150/s four do the same work."""
    hold = ShrinkHold()
    hold.update(6, SERVES, 6, START_UP_MS, 0)
    assert [hold.held(serves, 1_000) for serves in (SERVES, 150.0, 300.0, 1e9)] == [6, 4, 2, 1]


def test_a_worker_that_turns_out_to_serve_less_does_not_lengthen_it() -> None:
    hold = ShrinkHold()
    hold.update(6, SERVES, 6, START_UP_MS, 0)
    assert hold.held(50.0, 1_000) == 6


def test_counts_from_before_a_capacity_is_known_are_held() -> None:
    hold = ShrinkHold()
    hold.update(6, 0.0, 6, START_UP_MS, 0)
    hold.update(2, 0.0, 6, START_UP_MS, 5_000)
    hold.update(2, SERVES, 6, START_UP_MS, 10_000)
    assert hold.held(SERVES, 11_000) == 6


def test_a_hold_ends_when_the_work_of_a_count_was_too_long_ago() -> None:
    """Four workers of 150/s do what six did at 0 s; what three do at 10 s is held for longer."""
    hold = ShrinkHold()
    hold.update(6, SERVES, 6, START_UP_MS, 0)
    hold.update(3, 150.0, 6, START_UP_MS, 10_000)
    hold.update(1, 150.0, 6, START_UP_MS, 20_000)
    assert hold.held(150.0, 21_000) == 4
    left_ms = hold.left_ms(4, 150.0, 21_000)
    assert left_ms == START_UP_MS + MORE_MS - 11_000
    assert [hold.held(150.0, 21_000 + left_ms + later_ms) for later_ms in (-1, 0)] == [4, 3]


def test_a_capacity_that_falls_for_hours_takes_no_memory() -> None:
    hold = ShrinkHold()
    for second in range(10_000):
        hold.update(1, SERVES * (1.0 - 1e-5) ** second, 1, START_UP_MS, 1_000 * second)
    assert len(hold.work.values) <= 62


def test_work_beyond_64_bits_is_bounded() -> None:
    hold = ShrinkHold()
    hold.update(6, 1e300, 6, START_UP_MS, 0)
    assert max(hold.work.values) < 2**63
    assert hold.held(1e300, 1_000) == 1
