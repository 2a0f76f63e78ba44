"""Migration state that spans models, as one encodable Struct."""

from typing import Final

from msgspec import Struct, field

from loadline.core.migration.failed_workers import VANISHED_MS, VanishedWorker
from loadline.core.migration.in_flight import InFlightMigrations

STALL_MS: Final = 1_000
"""Delay of a due turn above which the agent was stalled, so that reports may wait unread."""


class MigrationMemory(Struct):
    """Migration state that spans models; ``ModelMigrationState`` is that of one model."""

    in_flight: InFlightMigrations = field(default_factory=InFlightMigrations)
    vanished: dict[str, VanishedWorker] = field(default_factory=dict)
    """Vanished workers by ``worker_key``, oldest first."""
    last_turn_at_ms: int = -1
    listening_since_ms: int = -1
    """End of the last stall. Silence before it means nothing, since reports waited unread."""

    def expire_vanished(self, now: int) -> None:
        """Remove workers that vanished more than ``VANISHED_MS`` ago."""
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
    """Return the key of a worker. Names do not contain the separator."""
    return f"{model}\0{pool}\0{worker}"
