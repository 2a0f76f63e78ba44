"""Everything that migration remembers, as one encodable Struct: a snapshot holds it, so a replay may begin anywhere."""

from typing import Final

from msgspec import Struct, field

from loadline.core.migration.failed_workers import VANISHED_MS, VanishedWorker
from loadline.core.migration.in_flight import InFlightMigrations
from loadline.core.migration.model_state import ModelMigrationState

STALL_MS: Final = 1_000
"""Longest time between a due turn and its start. After a longer one, reports may wait unread."""


class MigrationMemory(Struct):
    """Memory of each model, and what spans models."""

    in_flight: InFlightMigrations = field(default_factory=InFlightMigrations)
    models: dict[str, ModelMigrationState] = field(default_factory=dict)
    vanished: dict[str, VanishedWorker] = field(default_factory=dict)
    """Vanished workers by ``worker_key``, in the order in which they vanished."""
    last_turn_at_ms: int = -1
    listening_since_ms: int = -1
    """End of the last stall: silence before it means nothing, since reports were waiting unread."""

    def model(self, name: str) -> ModelMigrationState:
        """Return the memory of a model, which is created if it is new."""
        found = self.models.get(name)
        if found is None:
            found = self.models[name] = ModelMigrationState()
        return found

    def forget(self, name: str) -> None:
        """Forget a model that is gone or whose migration is disabled."""
        self.models.pop(name, None)
        for migration in self.in_flight.of_model(name):
            del self.in_flight.open[migration.command.command_id]

    def schedule_all(self, now: int) -> None:
        """Make a full round of every model due."""
        for model in self.models.values():
            if model.due_ms is not None:
                model.due_ms = now

    def expire_vanished(self, now: int) -> None:
        """Forget workers that vanished more than ``VANISHED_MS`` ago."""
        while self.vanished:
            key, first = next(iter(self.vanished.items()))
            if now - first.vanished_at_ms <= VANISHED_MS:
                return
            del self.vanished[key]

    def detect_stall(self, now: int) -> None:
        """Record a stall if a turn was due more than ``STALL_MS`` ago and none took place."""
        due_ms = self._next_due()
        if self.last_turn_at_ms >= 0 and now - max(self.last_turn_at_ms, now if due_ms is None else due_ms) > STALL_MS:
            self.listening_since_ms = now
        self.last_turn_at_ms = now

    def next_wake(self) -> int | None:
        """Return the time of the next full round or of the next end of a migration; None if there is neither."""
        wakes = [self._next_due(), self.in_flight.next_wake()]
        return min((wake for wake in wakes if wake is not None), default=None)

    def _next_due(self) -> int | None:
        return min((model.due_ms for model in self.models.values() if model.due_ms is not None), default=None)


def worker_key(model: str, pool: str, worker: str) -> str:
    """Return one key for a worker; no name contains the separator."""
    return f"{model}\0{pool}\0{worker}"
