"""Every mutation of a safeguard violates its invariant in at least one seed of the CI set, or in a longer run of it."""

import pytest

from loadline.sim.chaos.invariants import INVARIANTS
from tests.simulation.mutation_runs import CI_SEEDS, assert_detected
from tests.simulation.mutations import MUTATIONS


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_disabled_safeguard_is_detected(name: str) -> None:
    assert MUTATIONS[name].seed in CI_SEEDS
    assert_detected(MUTATIONS[name])


def test_every_mutation_violates_a_listed_invariant() -> None:
    assert {mutation.violates for mutation in MUTATIONS.values()} <= set(INVARIANTS)
