"""Faults of the scaler and of its connection."""

from collections.abc import Callable
from functools import partial

from loadline.sim.chaos.fault_injector import FaultInjector, Undo, partition
from loadline.sim.chaos.plan import Fault
from loadline.sim.chaos.scaler_faults import APPLYING, ScalerFault


def _scaler_fault(scaler_fault: ScalerFault) -> Callable[[FaultInjector, Fault], Undo]:
    """Return an injection that sets this fault of the scaler for a while."""

    def inject(injector: FaultInjector, _fault: Fault) -> Undo:
        world = injector.world

        def set_fault(scaler_fault: ScalerFault) -> None:
            world.scaler_bus.fault = scaler_fault
            world.scaler.applies_decisions = scaler_fault in APPLYING

        set_fault(scaler_fault)
        return partial(set_fault, "none")

    return inject


scaler_slow = _scaler_fault("slow")
"""Decisions arrive late."""
scaler_mute = _scaler_fault("silent")
"""No answer is published."""
scaler_refuses = _scaler_fault("refuses")
"""All decisions are refused."""
scaler_lies = _scaler_fault("false_done")
"""Decisions are answered ``done`` and not applied."""
scaler_contradicts = _scaler_fault("wrong_counts")
"""Decisions are answered ``done`` with wrong counts."""
scaler_repeats = _scaler_fault("repeats")
"""Earlier answers are repeated with each new one."""


def scaler_off_bus(injector: FaultInjector, fault: Fault) -> Undo:
    """Partition the scaler from the bus."""
    del fault
    return partition(lambda: [injector.world.scaler_bus])
