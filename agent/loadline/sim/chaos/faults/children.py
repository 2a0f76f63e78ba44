"""Faults of the children that compute forecasts and allocations."""

from functools import partial

from loadline.sim.chaos.fault_injector import FaultInjector, Undo
from loadline.sim.chaos.faulty_fitter import FitFault
from loadline.sim.chaos.plan import Fault


def fits_fail(injector: FaultInjector, fault: Fault) -> Undo:
    """Let no child answer: the agents wait until the deadline."""
    del fault
    return _set_fault(injector, "late")


def fits_garbled(injector: FaultInjector, fault: Fault) -> Undo:
    """Let the children answer garbage."""
    del fault
    return _set_fault(injector, "garbled")


def _set_fault(injector: FaultInjector, fault: FitFault) -> Undo:
    fitter = injector.world.fitter
    fitter.fault = fault
    return partial(setattr, fitter, "fault", "none")
