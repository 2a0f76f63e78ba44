"""Headroom of the pools of a role, and the pools that grow or shrink for it."""

import pytest

from loadline.core.planning.sizing.headroom import (
    Candidate,
    PoolCapacity,
    balance,
    grow,
    grow_beyond_maximum,
    resize,
    shrink,
)

CHEAP = Candidate("cheap", cost=1.0, capacity=10.0, current=4)
DEAR = Candidate("dear", cost=3.0, capacity=20.0, current=2)


def test_missing_and_excess_capacity_exclude_each_other() -> None:
    for demand in range(0, 200, 5):
        found = balance(demand, 100.0, 100.0, 0.85, 0.7)
        assert min(found.required, found.headroom) == 0.0
    assert balance(77.0, 100.0, 100.0, 0.85, 0.7).required == balance(77.0, 100.0, 100.0, 0.85, 0.7).headroom == 0.0


def test_growth_is_assigned_to_pools_by_cost_per_capacity() -> None:
    assert grow(25.0, [DEAR, CHEAP]) == {"cheap": 7, "dear": 2}
    bounded = Candidate("cheap", 1.0, 10.0, current=4, replicas_max=5)
    assert grow(25.0, [DEAR, bounded]) == {"cheap": 5, "dear": 3}
    assert grow(25.0, [Candidate("b", 1.0, 10.0, 1), Candidate("a", 1.0, 10.0, 1)]) == {"a": 4, "b": 1}


def test_what_exceeds_all_maximums_is_recommended_in_the_cheapest_pool() -> None:
    cheap, dear = (Candidate(one.name, one.cost, one.capacity, 4, replicas_max=5) for one in (CHEAP, DEAR))
    for required, counts in ((30.0, {"cheap": 5, "dear": 5}), (31.0, {"cheap": 6, "dear": 5})):
        assert grow_beyond_maximum(required, [dear, cheap]) == counts
    full = [PoolCapacity(one, ready=4) for one in (dear, cheap)]
    assert resize(full, 175.0, 175.0, 1.0, 0.7).counts == {"dear": 5, "cheap": 8}
    assert grow_beyond_maximum(10.0, [Candidate("useless", cost=9.0, capacity=0.0, current=3)]) == {"useless": 3}


def test_a_pool_above_its_maximum_is_not_shrunk_by_growth() -> None:
    assert grow(25.0, [Candidate("a", 1.0, 10.0, current=8, replicas_max=5)]) == {"a": 8}


def test_a_shrink_takes_the_most_expensive_pool_first_down_to_its_minimum() -> None:
    assert shrink(45.0, [CHEAP, DEAR]) == {"cheap": 4, "dear": 0}
    least = Candidate("dear", 3.0, 20.0, current=2, replicas_min=1)
    assert shrink(45.0, [CHEAP, least]) == {"cheap": 2, "dear": 1}


def test_a_pool_whose_workers_serve_nothing_neither_grows_nor_shrinks() -> None:
    useless = Candidate("useless", cost=9.0, capacity=0.0, current=3)
    assert grow(25.0, [useless, CHEAP]) == {"useless": 3, "cheap": 7}
    assert shrink(25.0, [useless, CHEAP]) == {"useless": 3, "cheap": 2}
    assert resize([PoolCapacity(useless, ready=3)], 5.0, 5.0, 0.85, 0.7).counts == {"useless": 3}


def test_the_last_worker_of_all_pools_is_kept() -> None:
    assert shrink(1_000.0, [CHEAP]) == {"cheap": 1}
    assert shrink(1_000.0, [CHEAP, DEAR]) == {"cheap": 1, "dear": 0}


def test_quotients_are_rounded_as_if_exact() -> None:
    assert grow(0.1 * 3, [Candidate("a", 1.0, 0.1, 0)]) == {"a": 3}
    assert shrink(1.0 - 0.9, [Candidate("a", 1.0, 0.1, 5)]) == {"a": 4}


@pytest.mark.parametrize(
    ("pool", "falling", "count"),
    [
        (PoolCapacity(CHEAP, ready=4), 14.0, 2),
        (PoolCapacity(CHEAP, ready=3), 14.0, 3),  # one worker is pending and has no load yet
        (PoolCapacity(CHEAP, ready=9), 14.0, 2),  # five workers are draining
        (PoolCapacity(CHEAP, ready=4, silent=True), 0.0, 4),
    ],
)
def test_only_ready_workers_with_data_are_removed(pool: PoolCapacity, falling: float, count: int) -> None:
    assert resize([pool], 0.0, falling, 0.85, 0.7).counts == {"cheap": count}


def test_pools_with_overdue_workers_are_excluded_unless_there_is_no_other() -> None:
    late, other = PoolCapacity(CHEAP, ready=4, overdue=True), PoolCapacity(DEAR, ready=2)
    assert resize([late, other], 80.0, 80.0, 0.85, 0.7).counts == {"cheap": 4, "dear": 3}
    assert resize([late], 80.0, 80.0, 0.85, 0.7).counts == {"cheap": 10}
