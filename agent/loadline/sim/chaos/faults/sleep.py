"""Faults of models that scale to zero and from zero."""

from functools import partial
from typing import Final

from loadline.sim.chaos.fault_injector import FaultInjector, Undo
from loadline.sim.chaos.night_settings import NIGHT, NIGHT_POOL
from loadline.sim.chaos.plan import Fault
from loadline.sim.chaos.world import WakeFault

_PEAK: Final = 3.0


def model_idle(injector: FaultInjector, fault: Fault) -> Undo:
    """Let no request arrive for longer than the idle time, and a peak afterwards."""
    del fault
    demand = injector.world.demand
    demand[NIGHT, NIGHT_POOL] = 0.0
    return partial(demand.__setitem__, (NIGHT, NIGHT_POOL), _PEAK)


def wakes_slow(injector: FaultInjector, fault: Fault) -> Undo:
    """Let the first workers of a pool start slowly, in some cases after their deadline."""
    del fault
    return _set_fault(injector, "slow")


def wakes_fail(injector: FaultInjector, fault: Fault) -> Undo:
    """Let the first workers of a pool end before they are ready."""
    del fault
    return _set_fault(injector, "fails")


def _set_fault(injector: FaultInjector, fault: WakeFault) -> Undo:
    injector.world.wake_fault = fault
    return partial(setattr, injector.world, "wake_fault", "none")
