"""The net is tested: without any one rail at least one seed of the CI set breaks an invariant."""

import pytest

from loadline.sim.chaos.invariants import INVARIANTS
from tests.simulation.rails import CI_SEEDS, RAILS, assert_missed


@pytest.mark.parametrize("name", RAILS)
def test_a_rail_that_is_off_is_missed(name: str) -> None:
    assert RAILS[name].seed in CI_SEEDS
    assert_missed(RAILS[name])


def test_every_rail_breaks_what_is_in_the_list() -> None:
    assert {rail.breaks for rail in RAILS.values()} <= set(INVARIANTS)
