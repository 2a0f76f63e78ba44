"""What happens to the scaler: its moods, and the way to it."""

from collections.abc import Callable
from functools import partial
from typing import Final

from loadline.sim.chaos.fault_injector import FaultInjector, Undo
from loadline.sim.chaos.plan import Fault
from loadline.sim.chaos.scaler_faults import ScalerFault

_OBEDIENT: Final[frozenset[ScalerFault]] = frozenset({"good", "slow", "mute", "repeats"})


def _feels(mood: ScalerFault) -> Callable[[FaultInjector, Fault], Undo]:
    """It has this mood for a while."""

    def fault(injector: FaultInjector, _strike: Fault) -> Undo:
        world = injector.world

        def feel(mood: ScalerFault) -> None:
            world.scaler_bus.fault = mood
            world.scaler.applies_decisions = mood in _OBEDIENT

        feel(mood)
        return partial(feel, "good")

    return fault


scaler_slow = _feels("slow")
"""It hears of decisions late."""
scaler_mute = _feels("mute")
"""It answers nothing."""
scaler_refuses = _feels("refuses")
"""It refuses every decision."""
scaler_lies = _feels("lies")
"""It says that all is done, and does nothing."""
scaler_contradicts = _feels("contradicts")
"""It says that it is done, with other counts."""
scaler_repeats = _feels("repeats")
"""It says what it said before again, with everything that it says."""


def scaler_off_bus(injector: FaultInjector, fault: Fault) -> Undo:
    """It is cut off."""
    del fault
    injector.world.scaler_bus.set_partitioned(partitioned=True)
    return partial(injector.world.scaler_bus.set_partitioned, partitioned=False)
