"""Faults of the bus and of the store."""

from functools import partial
from typing import Final

from msgspec.structs import replace

from loadline.core.vocabulary.effects import AnnounceDecision
from loadline.sim.chaos.fault_injector import FaultInjector, Undo, no_undo
from loadline.sim.chaos.plan import Fault
from loadline.sim.world.bus import VirtualBus
from loadline.sim.world.store import StoreBackup
from loadline.wire.keys import Keys

_TIMES: Final = 5.0
_LEAST: Final = 0.1
_MOST: Final = 0.9
_HEARD_LATE: Final = 0.5
_DECIDED: Final = 0.5
_ANNOUNCED_MS: Final = 100.0
"""Time in which an announcement has reached the scaler, and no worker that it requests has registered."""
_LATE_MS: Final = 6_000.0
"""Watch delay beyond the next renewal, which reports the loss of the lease as well."""


def bus_down(injector: FaultInjector, fault: Fault) -> Undo:
    """Stop the bus."""
    del fault
    injector.world.bus.set_available(available=False)
    return partial(injector.world.bus.set_available, available=True)


def store_down(injector: FaultInjector, fault: Fault) -> Undo:
    """Stop the store."""
    del fault
    injector.world.store.set_available(available=False)
    return partial(injector.world.store.set_available, available=True)


def store_wiped(injector: FaultInjector, fault: Fault) -> Undo:
    """Stop the store, and start it without data; in half of the cases once a decision has been announced."""
    world = injector.world

    def wipe() -> None:
        if not _may_lose_data(injector):
            return
        world.store.set_available(available=False)
        world.store.restore(StoreBackup())
        injector.undo_after(fault.duration_ms, partial(world.store.set_available, available=True))

    if fault.level > _DECIDED:
        injector.on_next_effect(AnnounceDecision, lambda _agent: world.timeline.call_later(_ANNOUNCED_MS, wipe))
    else:
        wipe()
    return no_undo


def store_restored(injector: FaultInjector, fault: Fault) -> Undo:
    """Back up the store, and restore the backup at the end."""
    del fault
    store = injector.world.store
    backup = store.back_up()
    return lambda: store.restore(backup) if _may_lose_data(injector) else None


def _may_lose_data(injector: FaultInjector) -> bool:
    """Return True if the store may lose data now: epochs rise by the clocks alone if all agents restart after it."""
    plan, now_ms = injector.world.plan, injector.world.timeline.now_ms
    jumped = any(fault.kind == "agent_clock_jumps" and fault.at_ms <= now_ms for fault in plan.faults)
    return not (jumped or plan.clock_skew_ms_max or plan.clock_drift_max)


def bus_worse(injector: FaultInjector, fault: Fault) -> Undo:
    """Raise the loss, duplication and delay of the bus."""
    del fault
    return worsen(injector.world.bus)


def worsen(bus: VirtualBus) -> Undo:
    """Raise the loss, duplication and delay of a bus."""
    usual = bus.faults
    bus.faults = replace(usual, loss=_worse(usual.loss), duplicate=_worse(usual.duplicate), late=_worse(usual.late))
    return lambda: setattr(bus, "faults", usual)


def store_worse(injector: FaultInjector, fault: Fault) -> Undo:
    """Raise the rates of refused, slow and unknown calls of the store."""
    del fault
    store = injector.world.store
    usual = store.faults
    store.faults = replace(usual, refused=_worse(usual.refused), unknown=_worse(usual.unknown), slow=_worse(usual.slow))
    return lambda: setattr(store, "faults", usual)


def leader_revoked(injector: FaultInjector, fault: Fault) -> Undo:
    """Revoke the lease of each leader; in half of the cases all watches are delayed."""
    store = injector.world.store
    for agent in injector.world.agents.values() if fault.level > _HEARD_LATE else ():
        agent.store.delay_watches(_LATE_MS)
    for scope in sorted(set(injector.world.scopes.values())):
        entry = store.keys.get(Keys("default").leader(scope))
        if entry is not None and store.available:
            injector.world.deposed_epochs.add((scope, injector.world.epoch_of(scope)))
            store.revoke(entry.lease_id)
    return no_undo


def _worse(probability: float) -> float:
    return min(_MOST, max(_LEAST, probability * _TIMES))
