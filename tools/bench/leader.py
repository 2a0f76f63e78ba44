"""Controller of a leader without I/O, for benchmarks of its turns."""

from collections.abc import Iterable
from typing import Final

from loadline.core.controller import Controller
from loadline.core.state.settings import Settings
from loadline.core.vocabulary.effects import AnyEffect, FitForecast
from loadline.core.vocabulary.events import (
    BusConnectionChanged,
    DecisionsRead,
    ForecastFitted,
    LeadershipWon,
    LeaseRenewed,
    RegistryRead,
    StoreConnectionChanged,
)
from loadline.core.vocabulary.samples import RegisteredWorker, WorkerRecord
from loadline.forecast import forecast

_LEASE: Final = 1


def leading_controller(settings: Settings, workers: Iterable[WorkerRecord], now_ms: int) -> Controller:
    """Return the controller of an agent that leads, has read an empty store, and knows the workers."""
    controller = Controller(settings)
    controller.handle([BusConnectionChanged(connected=True), StoreConnectionChanged(connected=True)], now_ms)
    controller.handle([LeadershipWon(settings.scope, 1, _LEASE, now_ms, 1)], now_ms)
    registered = [RegisteredWorker(record, _LEASE) for record in workers]
    controller.handle([RegistryRead(registered), DecisionsRead(controller.state.read_request, [], 1)], now_ms)
    return controller


def renewal(controller: Controller, now_ms: int) -> LeaseRenewed:
    """Return the renewal of the leader's lease."""
    return LeaseRenewed(controller.settings.scope, _LEASE, now_ms)


def answers(effects: Iterable[AnyEffect]) -> list[ForecastFitted]:
    """Return the forecasts that the effects ask for."""
    return [
        ForecastFitted(effect.model, effect.request, [forecast(query) for query in effect.queries])
        for effect in effects
        if isinstance(effect, FitForecast)
    ]
