"""Rolling windows, compared with direct computations."""

from hypothesis import assume, given
from hypothesis import strategies as st

from loadline.core.fleet.windows import RollingMax, RollingSamples

WINDOW_MS = 100
steps = st.lists(st.tuples(st.integers(0, 60), st.integers(-3, 9)), max_size=60)


def at_times(pushes: list[tuple[int, int]]) -> list[tuple[int, int]]:
    now, pushed = 1_000, []
    for wait_ms, value in pushes:
        now += wait_ms
        pushed.append((now, value))
    return pushed


@given(steps, st.integers(0, 300))
def test_a_window_holds_the_samples_within_its_length(pushes: list[tuple[int, int]], later_ms: int) -> None:
    window = RollingSamples(WINDOW_MS)
    pushed = at_times(pushes)
    for count, (now, value) in enumerate(pushed, start=1):
        window.push(now, float(value))
        inside = [float(v) for at, v in pushed[:count] if at >= now - WINDOW_MS]
        assert window.values == inside
        assert window.mean_with(5.0) == (sum(inside) + 5.0) / (len(inside) + 1)
    end = (pushed[-1][0] if pushed else 0) + later_ms
    window.prune(end)
    assert window.values == [v for at, v in pushed if at >= end - WINDOW_MS]
    assert len(window.at_ms) == len(window.values)


def test_a_sample_exactly_as_old_as_the_window_counts() -> None:
    window = RollingSamples(WINDOW_MS)
    window.push(0, 1.0)
    window.push(WINDOW_MS, 2.0)
    assert window.values == [1.0, 2.0]
    window.prune(WINDOW_MS + 1)
    assert window.values == [2.0]


def test_the_mean_of_an_empty_window_is_the_current_value() -> None:
    window = RollingSamples(WINDOW_MS)
    assert window.mean_with(0.7) == 0.7
    window.push(0, 1.0)
    window.clear()
    assert (window.at_ms, window.values) == ([], [])


def brute_max(pushed: list[tuple[int, int]], now: int) -> int | None:
    """Compute the maximum of the values that held at any time in the window; each holds until the next one."""
    ends = [*(at for at, _ in pushed[1:]), now + 1][: len(pushed)]
    held = [value for (_, value), end in zip(pushed, ends, strict=True) if end > now - WINDOW_MS]
    return max(held, default=None)


@given(steps, st.lists(st.integers(0, 150), max_size=4))
def test_the_maximum_equals_that_of_a_direct_computation(pushes: list[tuple[int, int]], later: list[int]) -> None:
    window = RollingMax(WINDOW_MS)
    pushed = at_times(pushes)
    for count, (now, value) in enumerate(pushed, start=1):
        window.push(now, value)
        assert window.max(now) == brute_max(pushed[:count], now)
        assert len(window.values) <= len({v for _, v in pushes}), "bounded by the number of distinct values"
    now = pushed[-1][0] if pushed else 0
    for wait_ms in later:
        now += wait_ms
        assert window.max(now) == brute_max(pushed, now)


def test_a_window_of_length_zero_has_the_current_value() -> None:
    window = RollingMax(0)
    window.push(1, 9)
    window.push(2, 3)
    assert window.max(2) == 3


def test_a_value_holds_until_the_next_one() -> None:
    window = RollingMax(WINDOW_MS)
    window.push(0, 9)
    assert window.max(10_000) == 9
    window.push(10_000, 2)
    assert window.max(10_000 + WINDOW_MS - 1) == 9
    assert window.max(10_000 + WINDOW_MS) == 2


def test_oscillating_values_do_not_retain_an_old_maximum() -> None:
    window = RollingMax(WINDOW_MS)
    window.push(0, 9)
    for now in range(10, 10 + WINDOW_MS + 1, 10):
        window.push(now, 3 if now % 20 else 4)
    assert window.max(10 + WINDOW_MS) == 4


@given(steps, st.integers(-3, 9))
def test_a_maximum_falls_below_a_value_at_the_time_that_is_returned(pushes: list[tuple[int, int]], value: int) -> None:
    window, now = RollingMax(WINDOW_MS), 1_000
    for now, pushed in at_times(pushes):
        window.push(now, pushed)
    window.push(now, value - 1)
    highest = window.max(now)
    assume(highest is not None and highest >= value)
    below_ms = window.falls_below_ms(value, now)
    assert now < below_ms <= now + WINDOW_MS
    assert [window.max(at) >= value for at in (below_ms - 1, below_ms)] == [True, False]  # type: ignore[operator]


@given(steps, st.integers(-3, 9))
def test_the_last_sample_of_a_value_leaves_at_the_time_that_is_returned(
    pushes: list[tuple[int, int]], value: int
) -> None:
    window, now = RollingSamples(WINDOW_MS), 1_000
    for now, pushed in at_times(pushes):
        window.push(now, float(pushed))
    below_ms, is_reached = window.falls_below_ms(value, now), max(window.values, default=-9.0) >= value
    assert (below_ms > now) is is_reached
    window.prune(below_ms - 1)
    assert (max(window.values, default=-9.0) >= value) is is_reached
    window.prune(below_ms)
    assert max(window.values, default=-9.0) < value
