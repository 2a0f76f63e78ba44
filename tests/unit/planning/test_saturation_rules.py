"""Boundaries of llm-d's saturation analyser; its cases are in tests/vectors."""

import pytest

from loadline.core.planning.sizing.saturation.rules import Reading, SaturationThresholds, Variant, analyse, step

T = SaturationThresholds()


@pytest.mark.parametrize(
    ("readings", "up", "down_safe"),
    [
        ([], False, False),
        ([Reading(0.7, 0)] * 3, False, False),  # exactly the configured headroom
        ([Reading(0.71, 0)] * 3, True, False),
        ([Reading(0.2, 2)] * 3, False, False),
        ([Reading(0.2, 3)] * 3, True, False),
        ([Reading(0.35, 0)] * 2, False, True),
        ([Reading(0.36, 0)] * 2, False, False),
        ([Reading(0.1, 1)] * 2, False, True),
        ([Reading(0.8, 0), Reading(0.1, 5)], True, False),  # all workers are saturated
        ([Reading(0.0, 0)], False, False),  # the last worker stays
    ],
)
def test_upper_threshold_is_exclusive_lower_is_not(readings: list[Reading], up: bool, down_safe: bool) -> None:  # noqa: FBT001
    found = analyse(readings, T)
    assert (found.scale_up, found.scale_down_safe) == (up, down_safe)


def test_saturated_workers_have_no_headroom() -> None:
    found = analyse([Reading(0.95, 50)] * 8 + [Reading(0.0, 0)] * 2, T)
    assert (found.unsaturated, found.scale_up, found.scale_down_safe) == (2, False, True)
    assert found.kv_headroom == pytest.approx(0.8)


UP, DOWN = analyse([Reading(0.9, 0)], T), analyse([Reading(0.0, 0)] * 2, T)


def test_the_cheapest_pool_grows_and_the_most_expensive_shrinks() -> None:
    variants = [Variant("a", 2.0, 3, 3), Variant("b", 1.0, 3, 3), Variant("c", 2.0, 3, 3)]
    assert step(variants, UP) == {"a": 3, "b": 4, "c": 3}
    assert step(variants, DOWN) == {"a": 3, "b": 3, "c": 2}


def test_a_pool_in_transition_keeps_its_desired_count() -> None:
    moving = Variant("a", 1.0, 2, 2, desired=4)
    assert step([moving], UP) == step([moving], DOWN) == {"a": 4}
    assert step([moving, Variant("b", 9.0, 1, 1)], UP) == {"a": 4, "b": 2}


def test_the_last_worker_is_kept() -> None:
    assert step([Variant("a", 9.0, 1, 1), Variant("b", 1.0, 2, 2)], DOWN) == {"a": 1, "b": 1}
