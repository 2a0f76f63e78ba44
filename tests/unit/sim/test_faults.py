"""Faults of plans: each can be injected, and none where its invariants would not hold."""

import pytest

from loadline.sim.chaos.faults import FAULTS
from loadline.sim.chaos.plan import FAULT_KINDS, Fault, FaultPlan
from loadline.sim.chaos.runner import ChaosRun

JUMP = Fault("agent_clock_jumps", 5_000.0, 60_000.0)


def test_every_kind_of_fault_can_be_injected() -> None:
    assert FAULTS.keys() == set(FAULT_KINDS)


@pytest.mark.parametrize("kind", ["store_wiped", "store_restored"])
@pytest.mark.parametrize(("faults", "losses"), [((), 1), ((JUMP,), 0)])
def test_etcd_loses_data_only_while_all_clocks_agree(kind: str, faults: tuple[Fault, ...], losses: int) -> None:
    """An agent that starts later would begin a term with a lower epoch than one whose clock has jumped."""
    run = ChaosRun(FaultPlan(1, 0.01, faults=(*faults, Fault(kind, 8_000.0, 2_000.0, 0.0))))
    assert run.run().violation is None
    assert run.world.store.lives == 1 + losses
