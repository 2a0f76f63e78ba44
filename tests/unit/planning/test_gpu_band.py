"""Counts within a band of GPUs: limits, direction of changes and stability."""

from collections.abc import Sequence
from itertools import product

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from loadline.core.planning.guardrails.gpu_band import GpuBand, PoolGpus, ceil_div, fit, total_of, widest
from loadline.core.planning.guardrails.pool_changes import PoolChange, fit_changes, fit_direction
from loadline.core.planning.sizing.forecast_steps import limit_step
from loadline.core.vocabulary.reasons import ReasonCode

COUNT, WIDTH = st.integers(0, 40), st.integers(1, 8)
BOUND = st.none() | st.integers(0, 200)


@st.composite
def bands(draw: st.DrawFn) -> GpuBand:
    floor, ceiling = draw(BOUND), draw(BOUND)
    return GpuBand(floor, ceiling if ceiling is None or floor is None else max(floor, ceiling))


@st.composite
def shares(draw: st.DrawFn) -> PoolGpus:
    least = draw(st.integers(0, 3))
    return PoolGpus(draw(COUNT), draw(WIDTH), least, draw(st.none() | st.integers(least, 40)))


@st.composite
def pool_changes(draw: st.DrawFn, most: int = 40) -> PoolChange:
    """Draw the change of a pool whose current count is within its bounds."""
    least = draw(st.integers(0, 3))
    highest = draw(st.none() | st.integers(least, most))
    counts = st.integers(least, most if highest is None else highest)
    return PoolChange(draw(counts), draw(counts), draw(WIDTH), least, highest)


POOLS = st.lists(shares(), min_size=1, max_size=4)
POOL_CHANGES = st.lists(pool_changes(), min_size=1, max_size=4)


def gpus(changes: Sequence[PoolChange], counts: Sequence[int]) -> int:
    return total_of([change.current_gpus() for change in changes], counts)


def directions(changes: Sequence[PoolChange], counts: Sequence[int]) -> set[int]:
    """Return the directions of the changes."""
    return {change.step for change, count in zip(changes, counts, strict=True) if count != change.current}


@given(POOLS, bands())
@example([PoolGpus(0, 1, 2)], GpuBand(2, 2))
@example([PoolGpus(1, 2)], GpuBand(5, 5))
def test_fitted_counts_respect_ceiling_and_replica_bounds(pools: list[PoolGpus], band: GpuBand) -> None:
    fitted, unchanged = fit(pools, band), [pool.replicas for pool in pools]
    infeasible = band.is_exceeded_by(sum(pool.replicas_min * pool.gpus for pool in pools))
    assert not band.is_exceeded_by(total_of(pools, fitted))
    if fitted != unchanged and not infeasible:
        assert all(count >= min(pool.replicas_min, pool.replicas) for pool, count in zip(pools, fitted, strict=True))
        assert all(count <= max(pool.capped(count), pool.replicas) for pool, count in zip(pools, fitted, strict=True))


@given(POOLS, bands())
def test_fit_is_idempotent(pools: list[PoolGpus], band: GpuBand) -> None:
    once = fit(pools, band)
    assume(any(once))
    again = [
        PoolGpus(count, pool.gpus, pool.replicas_min, pool.replicas_max)
        for count, pool in zip(once, pools, strict=True)
    ]
    assert fit(again, band) == once


@given(POOLS, st.integers(0, 400))
def test_without_a_ceiling_the_floor_is_reached_unless_all_pools_are_at_their_maximum(
    pools: list[PoolGpus], floor: int
) -> None:
    fitted = fit(pools, GpuBand(floor))
    assert total_of(pools, fitted) >= floor or all(
        pool.capped(10**6) <= n for pool, n in zip(pools, fitted, strict=True)
    )


def test_gpus_beyond_the_maximum_of_one_pool_go_to_others() -> None:
    assert fit([PoolGpus(4, 1), PoolGpus(4, 2, replicas_max=4)], GpuBand(18)) == [10, 4]
    assert fit([PoolGpus(4, 1), PoolGpus(4, 2), PoolGpus(4, 1)], GpuBand(24)) == [6, 6, 6]
    assert fit([PoolGpus(4, 1), PoolGpus(4, 2), PoolGpus(4, 1)], GpuBand(ceiling=12)) == [3, 3, 3]


@given(POOL_CHANGES, bands())
def test_fitted_changes_never_reverse_the_proposal(changes: list[PoolChange], band: GpuBand) -> None:
    fitted = fit_changes(changes, band)
    if fitted.code is ReasonCode.GPU_BUDGET_RECONCILE:
        return
    assert all(change.between(count) for change, count in zip(changes, fitted.counts, strict=True))
    current = tuple(change.current for change in changes)
    tolerance = band.tolerance(*(change.gpus for change in changes))
    assert fitted.counts == current or band.contains(gpus(changes, fitted.counts), tolerance)
    if fitted.code is ReasonCode.GPU_BUDGET_HOLD:
        assert fitted.counts == current


@given(POOL_CHANGES, st.integers(0, 8), st.integers(0, 8))
def test_without_free_gpus_opposite_steps_apply_together_or_not_at_all(
    changes: list[PoolChange], above_floor: int, below_ceiling: int
) -> None:
    current = gpus(changes, [change.current for change in changes])
    fitted = fit_changes(changes, GpuBand(current - above_floor, current + below_ceiling))
    if {1, -1} <= {change.step for change in changes}:
        free = ({1} if below_ceiling else set()) | ({-1} if above_floor else set())
        assert directions(changes, fitted.counts) >= {1, -1} or directions(changes, fitted.counts) <= free


@pytest.mark.parametrize(
    ("band", "expected"),
    [
        (GpuBand(11, 11), (5, 3)),  # a fixed fleet: no pool shrinks for a growth that cannot apply
        (GpuBand(ceiling=11), (4, 3)),  # the floor allows it: one more free GPU, and the wide worker fits
        (GpuBand(ceiling=12), (4, 4)),
    ],
)
def test_a_narrow_worker_may_be_removed_before_a_wide_one_fits(band: GpuBand, expected: tuple[int, int]) -> None:
    assert fit_changes([PoolChange(5, 4, 1), PoolChange(3, 4, 2)], band).counts == expected


def test_a_pool_grows_alone_into_free_gpus() -> None:
    assert fit_changes([PoolChange(5, 6, 1), PoolChange(3, 2, 2)], GpuBand(floor=11)).counts == (6, 3)


@given(POOL_CHANGES, bands())
def test_fitted_counts_are_stable(changes: list[PoolChange], band: GpuBand) -> None:
    once = fit_changes(changes, band)
    assume(once.code is not ReasonCode.GPU_BUDGET_RECONCILE)
    again = [
        PoolChange(n, n, change.gpus, change.replicas_min, change.replicas_max)
        for n, change in zip(once.counts, changes, strict=True)
    ]
    assert fit_changes(again, band).counts == once.counts


@given(st.lists(pool_changes(most=6), min_size=1, max_size=3), bands())
def test_fit_direction_is_as_near_to_the_proposal_as_the_band_allows(changes: list[PoolChange], band: GpuBand) -> None:
    tolerance = band.tolerance(*(change.gpus for change in changes))
    assume(band.contains(gpus(changes, [change.current for change in changes]), tolerance))
    opposite = {1, -1} <= {change.step for change in changes}

    def distance(counts: Sequence[int]) -> int:
        return sum(abs(count - change.proposed) for change, count in zip(changes, counts, strict=True))

    spans = [
        range(min(change.current, change.proposed), max(change.current, change.proposed) + 1) for change in changes
    ]
    possible = [
        counts
        for counts in product(*spans)
        if band.contains(gpus(changes, counts), tolerance)
        and not (opposite and len(directions(changes, counts) - {0}) == 1)
    ]
    found = fit_direction(changes, band)
    assert found in possible
    assert distance(found) == min(map(distance, possible))


@given(st.integers(0, 10_000), st.integers(0, 10**6), st.integers(0, 5), st.integers(1, 100))
def test_minimum_replicas_override_the_band(now: int, needed: int, least: int, most: int) -> None:
    count = limit_step(now, needed, least, most)
    assert count == least or abs(count - now) <= most
    assert count >= least


def test_widest_ignores_unknown_widths_and_ceil_div_rounds_up() -> None:
    assert widest(-1) == widest(0, -1) == 0
    assert widest(1, 0, 2, -1) == 2
    assert [ceil_div(number, 2) for number in (6, 7, 8)] == [3, 4, 4]


def test_a_pool_below_its_minimum_grows_at_the_expense_of_others() -> None:
    changes = [PoolChange(24, 23, 1, replicas_min=30), PoolChange(40, 39, 1, replicas_min=8)]
    fitted = fit_changes(changes, GpuBand(64, 64))
    assert (fitted.counts, fitted.code) == ((30, 34), ReasonCode.GPU_BUDGET_RECONCILE)
    assert fit_changes([PoolChange(1, 2, 4, replicas_min=3)], GpuBand(ceiling=12)).counts == (3,)
    assert fit_changes([PoolChange(9, 9, 1, replicas_max=4), PoolChange(2, 2, 1)], GpuBand(8)).counts == (4, 4), (
        "a pool above its maximum shrinks"
    )


@pytest.mark.parametrize(
    ("current", "proposed", "expected"),
    [
        ((24, 40), (32, 48), (24, 40)),
        ((24, 40), (23, 48), (23, 41)),
        ((24, 36), (32, 44), (26, 38)),
        ((20, 20, 20), (22, 22, 24), (21, 21, 22)),
        ((20, 20, 24), (22, 18, 26), (21, 18, 25)),
    ],
)
def test_a_ceiling_limits_a_proposal_as_expected(
    current: tuple[int, ...], proposed: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    changes = [PoolChange(now, new, 1) for now, new in zip(current, proposed, strict=True)]
    assert fit_changes(changes, GpuBand(ceiling=64)).counts == expected


@pytest.mark.parametrize(
    ("pools", "band", "expected"),
    [
        # A wide worker that exceeds the ceiling by rounding is not added, while those that fit are.
        ([PoolGpus(0, 4, 0)], GpuBand(5, 6), [1]),
        ([PoolGpus(7, 2, 0, 4), PoolGpus(6, 1, 2)], GpuBand(25, 27, exact=True), [7, 13]),
        ([PoolGpus(8, 3, 1, 4), PoolGpus(1, 2, 2)], GpuBand(29, 29, exact=True), [8, 2]),
        # Rounding alone exceeds the ceiling, so the floor is missed.
        ([PoolGpus(3, 3, 1, 4), PoolGpus(2, 2, 2)], GpuBand(29, 29, exact=True), [3, 2]),
        # At the ceiling nothing shrinks, not even for the minimum of another pool.
        ([PoolGpus(1, 2, 3), PoolGpus(5, 2)], GpuBand(5, 12, exact=True), [1, 5]),
        # Minimums are reserved by their GPUs.
        ([PoolGpus(6, 4, 2, 7)], GpuBand(19, 21, exact=True), [5]),
        # Pools without workers share a floor evenly, as far as others leave it.
        ([PoolGpus(0, 2, 0, 5), PoolGpus(1, 1, 0, 6)], GpuBand(2), [0, 2]),
        ([PoolGpus(0, 1, 0), PoolGpus(0, 1, 0), PoolGpus(0, 2, 0)], GpuBand(12), [4, 4, 2]),
        ([PoolGpus(3, 1, 0), PoolGpus(0, 4, 0)], GpuBand(6), [6, 0]),
    ],
)
def test_counts_of_unequal_workers_in_a_band(pools: list[PoolGpus], band: GpuBand, expected: list[int]) -> None:
    assert fit(pools, band) == expected


@pytest.mark.parametrize(
    ("changes", "band", "expected"),
    [
        # Growth that one worker each cannot reach takes a shrink along.
        ([PoolChange(7, 2, 2), PoolChange(2, 3, 4, 0)], GpuBand(22, 24, exact=True), (5, 3)),
        # Both pools come as far as the band allows, the one that is less far first.
        ([PoolChange(5, 9, 2, 2), PoolChange(3, 5, 2, 3, 9)], GpuBand(11, 24, exact=True), (8, 4)),
        # Opposite steps at the ceiling come as near to the proposal as the floor allows, with its tolerance.
        ([PoolChange(7, 1, 3, 1, 7), PoolChange(1, 2, 2, 1, 2)], GpuBand(19, 23), (4, 2)),
        # A pool grows alone into free GPUs where the other one is at its minimum.
        ([PoolChange(4, 9, 2, 3), PoolChange(3, 2, 1, 3, 3)], GpuBand(ceiling=16), (6, 3)),
        # At its maximum or minimum, a count is within its bounds.
        ([PoolChange(0, 0, 2, 0, 0)], GpuBand(0, 5, exact=True), (0,)),
        ([PoolChange(1, 2, 1, 1, 2)], GpuBand(0, 8, exact=True), (2,)),
    ],
)
def test_changes_of_unequal_workers_in_a_band(
    changes: list[PoolChange], band: GpuBand, expected: tuple[int, ...]
) -> None:
    fitted = fit_changes(changes, band)
    assert (fitted.counts, fitted.code) == (expected, None)


def test_counts_that_no_growth_reaches_within_the_band_stay() -> None:
    fitted = fit_changes([PoolChange(3, 3, 3, 3, 8), PoolChange(5, 0, 4, 3)], GpuBand(24, 30, exact=True))
    assert (fitted.counts, fitted.code) == ((3, 5), ReasonCode.GPU_BUDGET_HOLD)
