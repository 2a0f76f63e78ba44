"""Every mutation of a safeguard of migrations violates its invariant.

``test_seeds`` checks that nothing is violated without mutations.
"""

import pytest

from loadline.sim.chaos.invariants import INVARIANTS
from tests.simulation.migration_mutations import MUTATIONS
from tests.simulation.mutation_runs import assert_detected


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_disabled_safeguard_of_migrations_is_detected(name: str) -> None:
    assert_detected(MUTATIONS[name])


def test_every_invariant_of_migrations_has_a_mutation() -> None:
    named = {name for name in INVARIANTS if name.startswith(("I20-", "I21-", "L6-"))}
    assert {mutation.violates for mutation in MUTATIONS.values()} == named
