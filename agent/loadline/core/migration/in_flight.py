"""Ledger of migrations in flight: their commands, their progress, and their effect on the load of both workers.

    asked --accepted--> admitted --> copying --> switched ... --> done | aborted
      |--refused: removed; the source is excluded until its next report
      +--no answer: unknown, until a report arrives or the deadline passes

A migration counts at both workers from its command until both have reported after its end. Otherwise, their last
reports, which do not show it yet, would cause the same migration again.
"""

import hashlib
from typing import Final, Literal, get_args

from msgspec import Struct, field

from loadline.core.vocabulary.events import MigrationAnswered, MigrationReported
from loadline.core.vocabulary.migrations import Migration

MigrationPhase = Literal["asked", "unknown", "accepted", "admitted", "copying", "switched", "done", "aborted"]
_PHASES: Final[tuple[MigrationPhase, ...]] = get_args(MigrationPhase)
ENDED: Final[frozenset[MigrationPhase]] = frozenset({"done", "aborted"})
ENDED_RETENTION_MS: Final = 5_000
"""Longest time for which an ended migration counts at a worker that does not report."""
_GRACE_MS: Final = 2_000
"""Delay allowed for the last report of a source, whose deadline counts from the arrival of the command."""
_DIGITS: Final = 16


class InFlightMigration(Struct):
    """One migration. Times are in ms of the agent's clock."""

    command: Migration
    requests: int
    """Requests that are expected to migrate: an estimate until the source has selected them."""
    tokens: int
    """Tokens that are expected to migrate: an estimate until the source has selected the requests."""
    sent_at_ms: int
    ends_by_ms: int
    phase: MigrationPhase = "asked"
    """Furthest phase that one of its requests has reached."""
    moved: int = 0
    """Requests that the destination has taken over."""
    failed: int = 0
    """Selected requests that stay at the source."""
    since_ms: int = 0
    """Start of the phase."""
    ended_at_ms: int = -1
    adopted: bool = False
    """True if an earlier leader sent the command, according to the source."""
    progress: list[tuple[int, int, int]] = field(default_factory=list)
    """Time, migrated requests and migrated tokens so far, after each increase."""

    @property
    def slots(self) -> int:
        """Migration slots occupied at both workers; all that the command allows until the source answers."""
        if self.ended or self.phase == "unknown":
            return 0  # otherwise, a source that does not answer would block slots of its destination until the deadline
        if self.phase == "asked":
            return self.command.requests_max
        return max(self.requests - self.moved - self.failed, 0)

    @property
    def slots_freed_at_ms(self) -> int:
        """Time of the last release of slots; -1: never."""
        return max(self.ended_at_ms, self.progress[-1][0] if self.progress else -1)

    @property
    def ended(self) -> bool:
        """True if it ended. It then counts only until both workers have reported."""
        return self.ended_at_ms >= 0

    def unobserved(self, seen_at_ms: int) -> tuple[int, int]:
        """Return the requests and tokens whose migration the worker's report of ``seen_at_ms`` does not show yet."""
        if not (self.progress or self.failed):
            return self.requests, self.tokens
        moved, copied = next(((step[1], step[2]) for step in reversed(self.progress) if step[0] < seen_at_ms), (0, 0))
        remaining = self.requests - moved
        expected, tokens = remaining - self.failed, max(self.tokens - copied, 0)
        return expected, tokens if self.ended or not remaining else tokens * expected // remaining

    def is_duplicate(self, event: MigrationReported) -> bool:
        """Return True if a report repeats the known state, or is about another migration with the same id."""
        command = self.command
        identity = (command.model, command.epoch, command.source, command.destination)
        state = (self.phase, self.moved, self.failed)
        reported = (event.phase, event.moved, event.failed)
        return reported == state or (event.model, event.epoch, event.source, event.destination) != identity


class InFlightMigrations(Struct):
    """The migrations in flight of all models."""

    number: int = 0
    """Commands sent so far."""
    open: dict[str, InFlightMigration] = field(default_factory=dict)
    """Migrations by command id, oldest first."""

    def of_model(self, model: str) -> list[InFlightMigration]:
        """Return the migrations of a model, oldest first."""
        return [migration for migration in self.open.values() if migration.command.model == model]

    def remove_model(self, model: str) -> None:
        """Remove the migrations of a model."""
        for migration in self.of_model(model):
            del self.open[migration.command.command_id]

    def next_id(self, model: str, epoch: int) -> str:
        """Return a unique id for a command."""
        self.number += 1
        return hashlib.sha256(f"{model}\0{epoch}\0move\0{self.number}".encode()).hexdigest()[:_DIGITS]

    def start(self, command: Migration, requests: int, tokens: int, ttl_ms: int, now: int) -> None:
        """Add a migration whose command is sent at ``now`` (ms)."""
        self.open[command.command_id] = InFlightMigration(
            command, requests, tokens, now, now + ttl_ms + _GRACE_MS, since_ms=now
        )

    def record_answer(self, event: MigrationAnswered, now: int) -> InFlightMigration | None:
        """Record the answer to a command, or its absence. A refused migration is removed.

        Returns:
            The migration; None if it is unknown or a report overtook the answer.
        """
        migration = self.open.get(event.command_id)
        if migration is None or migration.phase not in {"asked", "unknown"}:
            return None
        if event.accepted is False:
            del self.open[event.command_id]
        elif event.accepted is None:
            migration.phase, migration.since_ms = "unknown", now
        else:
            migration.phase, migration.since_ms = "accepted", now
            migration.requests = min(event.requests, migration.command.requests_max)
            migration.tokens = event.tokens
        return migration

    def record_report(
        self, event: MigrationReported, ttl_ms: int, requests_max: int, now: int
    ) -> InFlightMigration | None:
        """Record the progress of a migration, and adopt one that an earlier leader started.

        Args:
            event: The report of the source.
            ttl_ms: Time limit of an adopted migration.
            requests_max: Maximum requests that a source may send at a time. It bounds the slots that invented
                migrations of a faulty source occupy.
            now: Time in ms.

        Returns:
            The migration; None if the report changes nothing.
        """
        migration = self.open.get(event.command_id)
        is_end = event.phase in ENDED
        if migration is None:
            others = (one for one in self.open.values() if one.command.source == event.source and not one.ended)
            allowed = requests_max - sum(one.requests for one in others)
            if is_end or allowed < 1:
                return None
            migration = self._adopt(event, ttl_ms, min(allowed, max(event.requests, 1)), now)
        elif migration.command.source != event.source or migration.ended or migration.is_duplicate(event):
            return None
        if _PHASES.index(event.phase) > _PHASES.index(migration.phase):
            migration.phase, migration.since_ms = event.phase, now
        migration.requests = min(event.requests, migration.command.requests_max)
        moved, migration.moved = migration.moved, min(event.moved, migration.requests)
        migration.failed = min(event.failed, migration.requests - migration.moved)
        if migration.moved > moved:
            migration.progress.append((now, migration.moved, event.tokens))
        if is_end:
            migration.ended_at_ms, migration.tokens = now, event.tokens
        return migration

    def _adopt(self, event: MigrationReported, ttl_ms: int, requests_max: int, now: int) -> InFlightMigration:
        command = Migration(
            event.command_id,
            event.model,
            event.epoch,
            event.source,
            event.destination,
            event.trigger,
            "NUM_REQ",
            "LCR",
            0.0,
            requests_max=requests_max,
        )
        ends_by_ms = now + ttl_ms + _GRACE_MS
        migration = self.open[event.command_id] = InFlightMigration(
            command, requests_max, event.tokens, now, ends_by_ms, "accepted", since_ms=now, adopted=True
        )
        return migration

    def expire(self, now: int) -> list[InFlightMigration]:
        """Remove migrations past their deadline and those that ended long ago; return the former."""
        lost: list[InFlightMigration] = []
        for command_id, migration in list(self.open.items()):
            if migration.ended and now - migration.ended_at_ms >= ENDED_RETENTION_MS:
                del self.open[command_id]
            elif not migration.ended and now >= migration.ends_by_ms:
                del self.open[command_id]
                lost.append(migration)
        return lost

    def next_wake(self) -> int | None:
        """Return the time at which ``expire`` next removes a migration; None without migrations."""
        ends = (one.ended_at_ms + ENDED_RETENTION_MS if one.ended else one.ends_by_ms for one in self.open.values())
        return min(ends, default=None)
