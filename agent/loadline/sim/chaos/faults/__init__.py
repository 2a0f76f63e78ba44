"""One function for each kind of strike, in the module of what it strikes. Each gives back how to undo it."""

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


def inject_fault(nemesis: FaultInjector, one: Fault) -> None:
    """Do it now, and undo it when its time is over."""
    nemesis.struck[one.kind] = nemesis.struck.get(one.kind, 0) + 1
    nemesis.undo_after(one.lasts_ms, FAULTS[one.kind](nemesis, one))
