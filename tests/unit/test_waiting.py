"""Waits for a free worker, held against what is known of queues."""

from math import exp, factorial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadline.core.models.waiting import share_waiting, workers_within


@pytest.mark.parametrize(("workers", "busy"), [(1, 0.3), (2, 1.5), (5, 4.0), (20, 17.0)])
def test_it_is_erlangs_formula(workers: int, busy: float) -> None:
    full = busy**workers / factorial(workers) / (1 - busy / workers)
    assert share_waiting(workers, busy) == pytest.approx(
        full / (sum(busy**k / factorial(k) for k in range(workers)) + full)
    )


def test_one_worker_is_as_busy_as_requests_wait() -> None:
    assert share_waiting(1, 0.7) == pytest.approx(0.7)
    assert share_waiting(1, 1.0) == 1.0
    assert share_waiting(3, 3.5) == 1.0


def test_one_worker_is_enough_exactly_while_the_wait_of_mm1_is_short_enough() -> None:
    """In M/M/1 a share ``rho * exp(-(1 - rho) * t / s)`` waits longer than t."""
    for wait_ms in (0.0, 50.0, 200.0, 900.0):
        late = 0.6 * exp(-0.4 * wait_ms / 100.0)
        assert workers_within(0.6, 100.0, [(wait_ms, 1.0)], 1 - late - 1e-9, spread=1.0) == 1
        assert workers_within(0.6, 100.0, [(wait_ms, 1.0)], 1 - late + 1e-6, spread=1.0) == 2


def test_without_a_share_it_is_the_mean() -> None:
    assert [workers_within(busy, 100.0, [(0.0, 1.0)], 0.0) for busy in (0.0, 0.2, 1.0, 1.1, 7.0)] == [0, 1, 1, 2, 7]
    assert workers_within(5_000.4, 100.0, [(10.0, 1.0)], 0.95) == 5_001, "of so many a few make no difference"


@given(st.floats(0.01, 300.0), st.floats(1.0, 1e4), st.floats(0.0, 1e5), st.floats(0.01, 0.999))
def test_they_are_more_than_are_busy_and_no_more_than_needed(
    busy: float, service: float, wait: float, share: float
) -> None:
    count = workers_within(busy, service, [(wait, 1.0)], share)
    assert count > busy
    late = share_waiting(count, busy) * exp(-(count - busy) * 2.0 * wait / service)
    assert late <= 1.0 - share + 1e-9
    assert count <= workers_within(busy, service, [(wait / 2.0, 1.0)], share)
