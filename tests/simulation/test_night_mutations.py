"""Every mutation of a safeguard of traffic, schedules, scale to zero, forecasts or sidecars violates its invariant."""

import pytest

from loadline.sim.chaos.invariants import INVARIANTS
from tests.simulation.mutation_runs import NIGHT_SEEDS, assert_detected
from tests.simulation.night_mutations import MUTATIONS


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_disabled_safeguard_is_detected(name: str) -> None:
    assert MUTATIONS[name].seed in NIGHT_SEEDS
    assert_detected(MUTATIONS[name], NIGHT_SEEDS)


def test_every_invariant_of_the_model_has_a_mutation() -> None:
    named = {name for name in INVARIANTS if name.startswith(("F", "S", "Z", "E", "L7-"))}
    assert {mutation.violates for mutation in MUTATIONS.values()} == named
