"""One function for each kind of fault, in the module of what it faults. Each gives back how to undo it."""

from collections.abc import Callable, Mapping
from typing import Final

from loadline.sim.chaos.fault_injector import FaultInjector, Undo
from loadline.sim.chaos.faults import agents, scalers, servers, workers
from loadline.sim.chaos.faults import external as outside
from loadline.sim.chaos.faults import migrations as moves
from loadline.sim.chaos.plan import FAULT_KINDS, Fault

FAULTS: Final[Mapping[str, Callable[[FaultInjector, Fault], Undo]]] = {
    kind: getattr(module, kind)
    for module in (agents, servers, workers, scalers, outside, moves)
    for kind in FAULT_KINDS
    if hasattr(module, kind)
}
"""Kind -> what it does."""


def inject_fault(injector: FaultInjector, one: Fault) -> None:
    """Do it now, and undo it when its time is over."""
    injector.injected[one.kind] = injector.injected.get(one.kind, 0) + 1
    injector.undo_after(one.duration_ms, FAULTS[one.kind](injector, one))
