"""Every kind of effect, before and after it, with a restart and with a takeover: all invariants, and liveness."""

from functools import cache

import pytest

from tests.simulation.crashes import KINDS, SIDES, WAYS, Side, Way, crash, occurrences

counted = cache(occurrences)


@pytest.mark.parametrize("way", WAYS)
def test_the_scenario_has_every_kind_of_effect(way: Way) -> None:
    assert set(counted(way)) == set(KINDS)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kind", KINDS)
def test_everything_comes_right_after_a_crash(kind: str, side: Side, way: Way) -> None:
    count = counted(way)[kind]
    for occurrence in sorted({1, (count + 1) // 2, count}):
        violation = crash(kind, side, way, occurrence)
        assert violation is None, f"number {occurrence} of {count}: {violation}"
