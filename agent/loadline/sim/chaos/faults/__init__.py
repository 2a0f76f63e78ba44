"""One function for each kind of fault, in a module for each target. Each injects the fault and returns its undo."""

from collections.abc import Callable, Mapping
from typing import Final

from loadline.sim.chaos.fault_injector import FaultInjector, Undo
from loadline.sim.chaos.faults import (
    agents,
    children,
    decisions,
    external,
    frontends,
    migrations,
    scalers,
    servers,
    sidecars,
    sleep,
    workers,
)
from loadline.sim.chaos.plan import FAULT_KINDS, Fault

_MODULES: Final = (
    agents,
    children,
    decisions,
    external,
    frontends,
    migrations,
    scalers,
    servers,
    sidecars,
    sleep,
    workers,
)
FAULTS: Final[Mapping[str, Callable[[FaultInjector, Fault], Undo]]] = {
    kind: getattr(module, kind) for module in _MODULES for kind in FAULT_KINDS if hasattr(module, kind)
}
"""Kind -> function that injects it."""


def inject_fault(injector: FaultInjector, one: Fault) -> None:
    """Inject a fault now and undo it after its duration."""
    injector.injected[one.kind] = injector.injected.get(one.kind, 0) + 1
    injector.undo_after(one.duration_ms, FAULTS[one.kind](injector, one))
