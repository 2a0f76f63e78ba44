"""Subscriptions of a shard to the reports of its models."""

from collections.abc import Callable

from loadline.core.vocabulary.events import BusConnectionChanged
from loadline.ports import Bus, FramesHandler, Unsubscribe
from loadline.wire.subjects import Subjects


class Reports:
    """Reports of the models that a shard follows. To the core, a bus is connected while it delivers them.

    Args:
        bus: Delivers the reports.
        subjects: Subjects of the agent's root.
        offer: Receives the reports.
        put: Receives the changes of the connection.
    """

    def __init__(
        self, bus: Bus, subjects: Subjects, offer: FramesHandler, put: Callable[[BusConnectionChanged], None]
    ) -> None:
        self._bus = bus
        self._subjects = subjects
        self._offer = offer
        self._put = put
        self._open: dict[str, list[Unsubscribe]] = {}
        self._wanted: list[str] = []
        self._changing = False
        self._connected = self._delivers = False

    def connection_changed(self, connected: bool) -> None:  # noqa: FBT001 - a fact, not a mode
        """Record that the bus connected or disconnected."""
        self._connected = connected
        self._report()

    async def follow(self, models: list[str]) -> None:
        """Subscribe to the reports of these models and to no others; a later call overrides one in progress."""
        self._wanted = models
        if self._changing:
            return
        self._changing = True
        try:
            while self._wanted != list(self._open):
                await self._change(self._wanted)
        finally:
            self._changing = False
        self._report()

    async def _change(self, models: list[str]) -> None:
        for model in self._open.keys() - set(models):
            for unsubscribe in self._open.pop(model):
                await unsubscribe()
        for model in models:
            if model not in self._open:
                subjects = self._subjects.reports_of(model)
                self._open[model] = [await self._bus.subscribe_batches(subject, self._offer) for subject in subjects]
        self._open = {model: self._open[model] for model in models}

    def _report(self) -> None:
        delivers = self._connected and bool(self._open) and not self._changing
        if delivers != self._delivers:
            self._delivers = delivers
            self._put(BusConnectionChanged(delivers))
