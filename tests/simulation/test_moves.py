"""Requests that move while everything fails: each rail that keeps them safe is missed when it is off.

That nothing breaks with all of them on is what ``test_seeds`` plays.
"""

import pytest

from loadline.sim.chaos.invariants import INVARIANTS
from tests.simulation.move_rails import RAILS
from tests.simulation.rails import assert_missed


@pytest.mark.parametrize("name", RAILS)
def test_a_rail_of_moves_that_is_off_is_missed(name: str) -> None:
    assert_missed(RAILS[name])


def test_every_invariant_of_moves_can_break() -> None:
    named = {name for name in INVARIANTS if name.startswith(("I20-", "I21-", "L6-"))}
    assert {rail.breaks for rail in RAILS.values()} == named
