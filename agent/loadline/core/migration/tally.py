"""Counts of the outcomes of the migrations of one model."""

from functools import lru_cache
from typing import Final, get_args

from msgspec import Struct, field

from loadline.core.migration.in_flight import InFlightMigration, MigrationPhase
from loadline.core.migration.knobs import DRAIN, PolicyName
from loadline.core.vocabulary.status import RecentMigration

TRIGGERS: Final = frozenset((*get_args(PolicyName), DRAIN))
"""Triggers that are counted by name. Adopted migrations may report other triggers, which count as ``other``."""
RECENT_MS: Final = 300_000
"""Time after its end for which a migration is recent."""
RECENT_MAX: Final = 64
"""Recent migrations of a model that are kept, some 8 kB in its status."""


class MigrationTally(Struct):
    """Counts of commands, migrated requests and phases of one model."""

    commands: dict[str, int] = field(default_factory=dict)
    """Commands by policy, outcome and reason, such as ``decode_load:refused:no_slots``."""
    requests: dict[str, int] = field(default_factory=dict)
    """Migrated requests by policy."""
    tokens: dict[str, int] = field(default_factory=dict)
    """Migrated KV tokens by policy."""
    phases: dict[str, int] = field(default_factory=dict)
    """Migrations that left a phase, by phase."""
    phases_ms: dict[str, int] = field(default_factory=dict)
    """Total time in each phase, in ms."""
    emptied: int = 0
    """Drained workers."""
    emptied_ms: int = 0
    """Total time of drains, in ms."""
    ended: list[RecentMigration] = field(default_factory=list)
    """Latest migrations that moved requests, oldest first."""

    def count_command(self, policy: str, outcome: str, reason: str = "", count: int = 1) -> None:
        """Count an outcome of one or more commands."""
        key = _key(policy, outcome, reason)
        self.commands[key] = self.commands.get(key, 0) + count

    def count_phase(self, phase: MigrationPhase, took_ms: int) -> None:
        """Count a migration that left a phase after ``took_ms``."""
        self.phases[phase] = self.phases.get(phase, 0) + 1
        self.phases_ms[phase] = self.phases_ms.get(phase, 0) + took_ms

    def count_ended(self, migration: InFlightMigration, now: int) -> None:
        """Count the requests and tokens of a migration that ended."""
        command, moved = migration.command, migration.moved
        if not moved:
            return
        trigger = _known(command.trigger)
        self.requests[trigger] = self.requests.get(trigger, 0) + moved
        self.tokens[trigger] = self.tokens.get(trigger, 0) + migration.tokens
        ended = RecentMigration(command.source.worker, command.destination.worker, trigger, moved, now)
        self.ended = [*self.ended[1 - RECENT_MAX :], ended]

    def recent(self, now: int) -> tuple[RecentMigration, ...]:
        """Return the migrations that moved requests lately, oldest first."""
        return tuple(one for one in self.ended if now - one.ended_at_ms <= RECENT_MS)

    def count_lost(self, migration: InFlightMigration, reason: str, now: int) -> None:
        """Count a migration whose end was not reported in time."""
        self.count_command(migration.command.trigger, "lost", reason)
        self.count_phase(migration.phase, now - migration.since_ms)

    def count_drain(self, took_ms: int) -> None:
        """Count a drained worker."""
        self.emptied += 1
        self.emptied_ms += took_ms


@lru_cache(256)
def _key(policy: str, outcome: str, reason: str) -> str:
    return ":".join(word for word in (_known(policy), outcome, reason) if word)


def _known(trigger: str) -> str:
    return trigger if trigger in TRIGGERS else "other"
