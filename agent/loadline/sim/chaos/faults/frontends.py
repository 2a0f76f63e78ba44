"""Faults of the frontends that report traffic."""

from collections.abc import Sequence
from typing import Any, Final

from loadline.sim.chaos.fault_injector import FaultInjector, Undo, no_undo, partition, pick
from loadline.sim.chaos.plan import Fault
from loadline.sim.chaos.traffic_frontend import TrafficFrontend

_LATE_MS_MAX: Final = 8_000.0
_OLDER_MS: Final = 600_000
_SET_BACK: Final = 0.5
"""Fraction of restarts after which the clock of the frontend is behind."""


def frontend_silent(injector: FaultInjector, fault: Fault) -> Undo:
    """Let one frontend publish no report."""
    return _set(pick(injector.world.night.frontends, fault.level), "silent", on=True, off=False)


def frontends_silent(injector: FaultInjector, fault: Fault) -> Undo:
    """Let no frontend publish a report."""
    del fault
    return _set(injector.world.night.frontends, "silent", on=True, off=False)


def frontend_late(injector: FaultInjector, fault: Fault) -> Undo:
    """Delay the reports of one frontend by different times, so that later ones overtake them."""
    return _set(pick(injector.world.night.frontends, fault.level), "late_ms_max", on=_LATE_MS_MAX, off=0.0)


def frontend_repeats(injector: FaultInjector, fault: Fault) -> Undo:
    """Repeat the newest reports of one frontend with each new one."""
    return _set(pick(injector.world.night.frontends, fault.level), "repeats", on=True, off=False)


def frontend_restarts(injector: FaultInjector, fault: Fault) -> Undo:
    """Restart one frontend, in some cases with a clock that is behind."""
    frontends = injector.world.night.frontends
    place = fault.level * len(frontends)
    frontends[int(place) % len(frontends)].restart(_OLDER_MS if place % 1.0 < _SET_BACK else 0)
    return no_undo


def frontends_off_bus(injector: FaultInjector, fault: Fault) -> Undo:
    """Partition all frontends from the bus."""
    del fault
    return partition(lambda: [frontend.bus for frontend in injector.world.night.frontends])


def _set(frontends: Sequence[TrafficFrontend], name: str, *, on: Any, off: Any) -> Undo:
    def set_all(value: Any) -> None:
        for frontend in frontends:
            setattr(frontend, name, value)

    set_all(on)
    return lambda: set_all(off)
