"""The net is tested: without any one rail at least one seed of the CI set breaks an invariant."""

import pytest

from loadline.sim.chaos.invariants import INVARIANTS
from tests.simulation.rails import CI_SEEDS, RAILS, broken


@pytest.mark.parametrize("name", RAILS)
def test_a_rail_that_is_off_is_missed(name: str) -> None:
    rail = RAILS[name]
    assert rail.seed in CI_SEEDS
    violation = broken(name, rail.seed).violation
    assert violation is not None, "nothing broke; find another seed: python -m tests.simulation.rails"
    assert violation.name == rail.breaks


def test_every_rail_breaks_what_is_in_the_list() -> None:
    assert {rail.breaks for rail in RAILS.values()} <= set(INVARIANTS)
