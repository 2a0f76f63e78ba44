"""Every kind of fault in a plan has a function that injects it."""

from loadline.sim.chaos.faults import FAULTS
from loadline.sim.chaos.plan import FAULT_KINDS


def test_every_kind_of_fault_can_be_injected() -> None:
    assert FAULTS.keys() == set(FAULT_KINDS)
