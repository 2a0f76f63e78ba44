"""Crashes of an agent before and after every kind of effect, with a restart and with a takeover."""

from functools import cache

import pytest

from tests.simulation.crashes import KINDS, RECOVERIES, SIDES, Recovery, Side, crash, occurrences

cached_occurrences = cache(occurrences)


@pytest.mark.parametrize("recovery", RECOVERIES)
def test_the_scenario_has_every_kind_of_effect(recovery: Recovery) -> None:
    assert set(cached_occurrences(recovery)) == set(KINDS)


@pytest.mark.parametrize("recovery", RECOVERIES)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", KINDS)
def test_all_invariants_hold_after_a_crash(kind: str, side: Side, recovery: Recovery) -> None:
    count = cached_occurrences(recovery)[kind]
    for occurrence in sorted({1, count}):  # crashes in between are among the faults of ``test_seeds``
        violation = crash(kind, side, recovery, occurrence)
        assert violation is None, f"number {occurrence} of {count}: {violation}"
