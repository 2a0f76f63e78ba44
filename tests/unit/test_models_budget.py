"""GPUs for one pool or two: never too many, in the direction that was meant, and once is enough."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from loadline.core.models.budget import Band, Share, ceil_div, fit_pair, fit_single, widest
from loadline.core.models.direction import (
    HELD,
    RECONCILED,
    Guarded,
    Leg,
    fit_direction,
    guard_pair,
    guard_single,
    settle_pair,
)
from loadline.core.models.throughput import bounded, lower_bound, lower_bounds

COUNT, WIDTH = st.integers(0, 40), st.integers(1, 8)
BOUND = st.none() | st.integers(0, 200)
BANDS = st.builds(Band, BOUND, BOUND)
SHARES = st.builds(Share, COUNT, WIDTH, st.integers(0, 3))
LEGS = st.builds(Leg, COUNT, COUNT, WIDTH, st.integers(0, 3))


def gpus(first: Share | Leg, second: Share | Leg, counts: tuple[int, int]) -> int:
    return counts[0] * first.gpus + counts[1] * second.gpus


@given(SHARES, SHARES, BANDS)
def test_a_fit_never_exceeds_the_ceiling_nor_ever_cuts_below_the_least(first: Share, second: Share, band: Band) -> None:
    fitted = fit_pair(first, second, band)
    assert not band.above(gpus(first, second, fitted))
    unchanged = (first.replicas, second.replicas)
    assert fitted in {(0, 0), unchanged} or (fitted[0] >= first.least and fitted[1] >= second.least)


@given(SHARES, SHARES, BANDS)
def test_a_second_fit_changes_nothing(first: Share, second: Share, band: Band) -> None:
    once = fit_pair(first, second, band)
    if once == (0, 0):
        return
    twice = fit_pair(Share(once[0], first.gpus, first.least), Share(once[1], second.gpus, second.least), band)
    assert twice == once


@given(SHARES, BANDS)
@example(Share(0, 1, 2), Band(2, 1))
@example(Share(1, 2), Band(5, 5))
def test_the_only_pool_likewise(pool: Share, band: Band) -> None:
    once = fit_single(pool, band)
    assert not band.above(once * pool.gpus)
    assert once in {0, pool.replicas} or once >= pool.least
    assert once == 0 or fit_single(Share(once, pool.gpus, pool.least), band) == once


@given(LEGS, LEGS, BANDS)
def test_a_guard_never_says_the_opposite(first: Leg, second: Leg, band: Band) -> None:
    guarded = guard_pair(first, second, band)
    if guarded.why == RECONCILED:
        return
    assert first.between(guarded.prefill)
    assert second.between(guarded.decode)
    counts = (guarded.prefill, guarded.decode)
    standing = (first.current, second.current)
    assert counts == standing or band.holds(gpus(first, second, counts), band.tolerance(first.gpus, second.gpus))
    if guarded.why == HELD:
        assert counts == standing


@given(LEGS, LEGS, BANDS)
def test_two_opposite_steps_happen_both_or_neither_where_nothing_is_free(first: Leg, second: Leg, band: Band) -> None:
    standing = gpus(first, second, (first.current, second.current))
    if first.step * second.step >= 0 or not (band.full(standing) or band.spent(standing)):
        return
    guarded = guard_pair(first, second, band)
    if guarded.why != RECONCILED:
        assert (guarded.prefill == first.current) == (guarded.decode == second.current)


@given(LEGS, LEGS, BANDS)
def test_a_second_guard_changes_nothing(first: Leg, second: Leg, band: Band) -> None:
    once = guard_pair(first, second, band)
    if once.why == RECONCILED:
        return
    again = guard_pair(
        Leg(once.prefill, once.prefill, first.gpus, first.least),
        Leg(once.decode, once.decode, second.gpus, second.least),
        band,
    )
    assert (again.prefill, again.decode) == (once.prefill, once.decode)


@given(LEGS, LEGS, BANDS)
def test_the_fit_of_a_direction_is_the_nearest_that_the_band_holds(first: Leg, second: Leg, band: Band) -> None:
    tolerance = band.tolerance(first.gpus, second.gpus)
    found = fit_direction(first, second, band)
    opposite = first.step * second.step < 0

    def distance(counts: tuple[int, int]) -> int:
        return abs(counts[0] - first.proposed) + abs(counts[1] - second.proposed)

    possible = [
        (p, d)
        for p in range(max(min(first.current, first.proposed), first.least), max(first.current, first.proposed) + 1)
        for d in range(
            max(min(second.current, second.proposed), second.least), max(second.current, second.proposed) + 1
        )
        if band.holds(gpus(first, second, (p, d)), tolerance)
        and not (opposite and (p == first.current) != (d == second.current))
    ]
    if possible:
        assert found in possible
        assert distance(found) == min(map(distance, possible))
    else:
        assert found == (first.current, second.current)


@given(LEGS, BANDS)
def test_the_guard_of_the_only_pool(pool: Leg, band: Band) -> None:
    count, why = guard_single(pool, band)
    assert why == RECONCILED or pool.between(count)
    assert why == RECONCILED or count == pool.current or not band.above(count * pool.gpus)


@given(st.integers(0, 10_000), st.none() | st.integers(0, 10**6), st.integers(0, 5), st.integers(1, 100))
def test_an_observation_moves_by_so_much_and_the_least_is_stronger(
    now: int, needed: int | None, least: int, most: int
) -> None:
    count = bounded(now, needed, least, most)
    assert count == least or abs(count - now) <= most
    assert count >= least
    if needed is None:
        assert count == max(now, least)


def test_an_unknown_width_is_not_fitted() -> None:
    assert fit_pair(Share(9, 0), Share(9, 1), Band(ceiling=4)) == (9, 9)
    assert fit_single(Share(9, 0), Band(ceiling=4)) == 9
    assert guard_pair(Leg(9, 8, 0), Leg(9, 8, 1), Band(ceiling=4)) == Guarded(8, 8)
    assert guard_single(Leg(9, 8, 0), Band(ceiling=4)) == (8, None)
    assert widest(0, -1) == 0
    assert ceil_div(7, 2) == 4


def test_a_pool_below_its_least_count_is_brought_up_at_the_others_expense() -> None:
    prefill, decode = Leg(24, 23, 1, least=30), Leg(40, 39, 1, least=8)
    assert settle_pair(prefill, decode, Band(64, 64)) == Guarded(30, 34, RECONCILED)
    assert lower_bounds(prefill, decode, 64) == (30, 34)
    assert lower_bound(Leg(1, 2, 4, least=3), 12) == 3


@pytest.mark.parametrize(
    ("current", "proposed", "fitted"),
    [((24, 40), (32, 48), (24, 40)), ((24, 40), (23, 48), (23, 41)), ((24, 36), (32, 44), (26, 38))],
)
def test_what_a_ceiling_leaves_of_a_need(
    current: tuple[int, int], proposed: tuple[int, int], fitted: tuple[int, int]
) -> None:
    legs = [Leg(now, new, 1) for now, new in zip(current, proposed, strict=True)]
    assert lower_bounds(legs[0], legs[1], 64) == fitted


def test_the_floor_of_the_budget_is_no_demand() -> None:
    assert lower_bounds(Leg(4, 2, 1), Leg(4, 3, 1), 64) == (2, 3)
    assert lower_bound(Leg(4, 2, 1), 64) == 2
