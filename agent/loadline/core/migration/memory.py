"""Memory of migration that spans models, as one encodable Struct: a snapshot holds it."""

from typing import Final

from msgspec import Struct, field

from loadline.core.migration.failed_workers import VANISHED_MS, VanishedWorker
from loadline.core.migration.in_flight import InFlightMigrations

STALL_MS: Final = 1_000
"""Longest time between a due turn and its start. After a longer one, reports may wait unread."""


class MigrationMemory(Struct):
    """Memory of migration that spans models. That of a single model is a ``ModelMigrationState``."""

    in_flight: InFlightMigrations = field(default_factory=InFlightMigrations)
    vanished: dict[str, VanishedWorker] = field(default_factory=dict)
    """Vanished workers by ``worker_key``, in the order in which they vanished."""
    last_turn_at_ms: int = -1
    listening_since_ms: int = -1
    """End of the last stall: silence before it means nothing, since reports were waiting unread."""

    def expire_vanished(self, now: int) -> None:
        """Forget workers that vanished more than ``VANISHED_MS`` ago."""
        while self.vanished:
            key, first = next(iter(self.vanished.items()))
            if now - first.vanished_at_ms <= VANISHED_MS:
                return
            del self.vanished[key]

    def detect_stall(self, due_ms: int, now: int) -> None:
        """Record a stall if a round was due at ``due_ms``, more than ``STALL_MS`` ago, and no turn took place."""
        if self.last_turn_at_ms >= 0 and now - max(self.last_turn_at_ms, due_ms) > STALL_MS:
            self.listening_since_ms = now
        self.last_turn_at_ms = now


def worker_key(model: str, pool: str, worker: str) -> str:
    """Return one key for a worker; no name contains the separator."""
    return f"{model}\0{pool}\0{worker}"
