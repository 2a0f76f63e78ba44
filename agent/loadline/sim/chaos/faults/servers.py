"""What happens to the bus and to the store."""

from functools import partial
from typing import Final

from msgspec.structs import replace

from loadline.sim.chaos.fault_injector import FaultInjector, Undo, no_undo
from loadline.sim.chaos.plan import Fault
from loadline.sim.world.bus import VirtualBus
from loadline.wire.keys import Keys

_TIMES: Final = 5.0
_LEAST: Final = 0.1
_MOST: Final = 0.9
_HEARD_LATE: Final = 0.5
_LATE_MS: Final = 6_000.0
"""Longer than it takes until the lease is to be renewed, which tells it too."""


def bus_down(injector: FaultInjector, fault: Fault) -> Undo:
    """Nobody reaches the bus."""
    del fault
    injector.world.bus.set_available(available=False)
    return partial(injector.world.bus.set_available, available=True)


def store_down(injector: FaultInjector, fault: Fault) -> Undo:
    """Nobody reaches the store."""
    del fault
    injector.world.store.set_available(available=False)
    return partial(injector.world.store.set_available, available=True)


def bus_worse(injector: FaultInjector, fault: Fault) -> Undo:
    """Frames are lost, doubled and late some times as often."""
    del fault
    return worsen(injector.world.bus)


def worsen(bus: VirtualBus) -> Undo:
    """Have a bus lose, double and delay frames some times as often."""
    usual = bus.faults
    bus.faults = replace(usual, loss=_worse(usual.loss), duplicate=_worse(usual.duplicate), late=_worse(usual.late))
    return lambda: setattr(bus, "faults", usual)


def store_worse(injector: FaultInjector, fault: Fault) -> Undo:
    """Calls are refused, slow and of unknown outcome some times as often."""
    del fault
    store = injector.world.store
    usual = store.faults
    store.faults = replace(usual, refused=_worse(usual.refused), unknown=_worse(usual.unknown), slow=_worse(usual.slow))
    return lambda: setattr(store, "faults", usual)


def leader_revoked(injector: FaultInjector, fault: Fault) -> Undo:
    """An operator revokes the leader's lease; of every second time that is heard of late."""
    store = injector.world.store
    for agent in injector.world.agents.values() if fault.level > _HEARD_LATE else ():
        agent.store.delay_watches(_LATE_MS)
    entry = store.keys.get(Keys("default").leader("all"))
    if entry is not None and store.available:
        injector.world.deposed_epochs.add(entry.create_revision)
        store.revoke(entry.lease_id)
    return no_undo


def _worse(probability: float) -> float:
    return min(_MOST, max(_LEAST, probability * _TIMES))
