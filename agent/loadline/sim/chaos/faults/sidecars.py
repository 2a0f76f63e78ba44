"""Faults of sidecars and of the engines behind them."""

from loadline.sim.chaos.chaos_sidecar import ChaosSidecar
from loadline.sim.chaos.fault_injector import FaultInjector, Undo, no_undo, pick
from loadline.sim.chaos.plan import Fault


def engine_dies(injector: FaultInjector, fault: Fault) -> Undo:
    """Kill the engine of one sidecar; it is started again at once, and has to load."""
    for sidecar in _one(injector, fault):
        sidecar.engine.start()
    return no_undo


def engine_hangs(injector: FaultInjector, fault: Fault) -> Undo:
    """Let the engine of one sidecar not answer for a while."""
    sidecars = _one(injector, fault)
    for sidecar in sidecars:
        sidecar.engine.hang()
    return lambda: _recover(sidecars)


def engine_stalls(injector: FaultInjector, fault: Fault) -> Undo:
    """Let the engine of one sidecar answer with the same figures for a while."""
    sidecars = _one(injector, fault)
    for sidecar in sidecars:
        sidecar.engine.stall()
    return lambda: _recover(sidecars)


def engine_restarts(injector: FaultInjector, fault: Fault) -> Undo:
    """Restart the engine of one sidecar between two of its pages."""
    for sidecar in _one(injector, fault):
        sidecar.engine.restart_at_once()
    return no_undo


def sidecar_dies(injector: FaultInjector, fault: Fault) -> Undo:
    """Kill one sidecar, and start another one for the same engine, which keeps running."""
    for sidecar in _one(injector, fault):
        sidecar.crash(fault.duration_ms)
    return no_undo


def _one(injector: FaultInjector, fault: Fault) -> list[ChaosSidecar]:
    """Return one sidecar whose engine has loaded."""
    sidecars = sorted(injector.world.night.sidecars.items())
    return pick([one for _, one in sidecars if one.alive and one.engine.state == "up"], fault.level)


def _recover(sidecars: list[ChaosSidecar]) -> None:
    for sidecar in sidecars:
        sidecar.engine.recover()
