"""Waits for a free worker, compared with results of queueing theory."""

from math import exp, factorial
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadline.core.planning.sizing.erlang import ServiceWaits, workers_within


def share_waiting(workers: int, busy: float) -> float:
    """Compute Erlang C from its definition."""
    full = busy**workers / factorial(workers) / (1 - busy / workers)
    return full / (sum(busy**k / factorial(k) for k in range(workers)) + full)


@pytest.mark.parametrize(("workers", "busy"), [(1, 0.3), (2, 1.5), (5, 4.0), (20, 17.0)])
def test_the_probability_of_any_wait_is_erlang_c(workers: int, busy: float) -> None:
    late = share_waiting(workers, busy)
    assert workers_within(busy, 100.0, [(0.0, 1.0)], 1 - late - 1e-9) == workers
    assert workers_within(busy, 100.0, [(0.0, 1.0)], 1 - late + 1e-9) == workers + 1


def test_a_longer_allowed_wait_lowers_the_late_fraction() -> None:
    late = share_waiting(5, 4.0)
    assert workers_within(4.0, 100.0, [(0.0, 0.5), (1e6, 0.5)], 1 - late / 2 - 1e-9) == 5
    assert workers_within(4.0, 100.0, [(0.0, 0.5), (1e6, 0.5)], 1 - late / 2 + 1e-9) == 6


def test_a_request_at_a_busy_worker_waits_for_the_request_in_service() -> None:
    """At any count, four fifths of the requests that find all workers busy wait more than a fifth of a service."""
    late = share_waiting(40, 36.0) * 0.8
    assert workers_within(36.0, 100.0, [(20.0, 1.0)], 1 - late - 1e-9) == 40
    assert workers_within(36.0, 100.0, [(20.0, 1.0)], 1 - late + 1e-9) == 41


def test_at_full_utilisation_no_count_avoids_the_residual_service_time() -> None:
    for busy in (36.0, 5_000.0):
        assert ServiceWaits(100.0, [(80.0, 1.0)], 0.81, always_busy=True).workers(busy) is None
    assert ServiceWaits(100.0, [(80.0, 1.0)], 0.79, always_busy=True).workers(36.0) is not None
    assert ServiceWaits(100.0, [(-1.0, 1.0)], 0.1, always_busy=True).workers(36.0) is None


def test_the_wait_is_the_residual_service_time_plus_the_queue() -> None:
    rng, workers, busy, wait_ms = Random(1), 3, 2.5, 130.0
    waiting, queue_ms = share_waiting(workers, busy), 50.0 / (workers - busy)
    drawn = [
        rng.random() * 100.0 + (rng.expovariate(1.0 / queue_ms) if rng.random() < waiting else 0.0)
        for _ in range(40_000)
    ]
    late = sum(one > wait_ms for one in drawn) / len(drawn)
    assert ServiceWaits(100.0, [(wait_ms, 1.0)], 1 - late * 1.05, always_busy=True).workers(busy) == workers
    assert ServiceWaits(100.0, [(wait_ms, 1.0)], 1 - late * 0.95, always_busy=True).workers(busy) == workers + 1


def test_one_worker_suffices_exactly_while_the_wait_of_mm1_does() -> None:
    """In M/M/1, the fraction ``rho * exp(-(1 - rho) * t / s)`` waits longer than t."""
    for wait_ms in (0.0, 50.0, 200.0, 900.0):
        late = 0.6 * exp(-0.4 * wait_ms / 100.0)
        assert workers_within(0.6, 100.0, [(wait_ms, 1.0)], 1 - late - 1e-9, variability=1.0) == 1
        assert workers_within(0.6, 100.0, [(wait_ms, 1.0)], 1 - late + 1e-6, variability=1.0) == 2


def test_without_an_attainment_the_mean_wait_counts() -> None:
    assert [workers_within(busy, 100.0, [(0.0, 1.0)], 0.0) for busy in (0.0, 0.2, 1.0, 1.1, 7.0)] == [0, 1, 1, 2, 7]
    assert workers_within(5_000.4, 100.0, [(10.0, 1.0)], 0.95) == 5_001, "a few waits hardly change the mean"


@given(st.floats(0.01, 300.0), st.floats(1.0, 1e4), st.floats(0.0, 1e5), st.floats(0.01, 0.999))
def test_the_count_exceeds_the_busy_workers_and_is_minimal(
    busy: float, service: float, wait: float, share: float
) -> None:
    count = workers_within(busy, service, [(wait, 1.0)], share)
    shorter = workers_within(busy, service, [(wait / 2.0, 1.0)], share)
    assert count is not None
    assert shorter is not None
    assert busy < count <= shorter
