"""Migrations that an agent has commanded and whose end it has not seen."""

from collections.abc import Collection

from msgspec import Struct

from loadline.core.fleet.fleet import Fleet
from loadline.core.vocabulary import events as ev
from loadline.core.vocabulary.effects import SendMigrate
from loadline.core.vocabulary.migrations import Migration, MigrationEndpoint


class OutstandingMigration(Struct):
    """A migration that an agent has commanded."""

    migration: Migration
    requests: int
    """Requests that may be in flight: first the command's limit, then those that the source has not finished."""
    until_ms: int


class OutstandingMigrations:
    """Migrations that an agent must count as in flight."""

    def __init__(self) -> None:
        self._migrations: dict[str, OutstandingMigration] = {}

    def record(self, event: ev.MigrationAnswered | ev.MigrationReported) -> None:
        """Record an answer or a report. Before the first answer a command may count or not."""
        outstanding = self._migrations.get(event.command_id)
        if outstanding is None:
            return
        if isinstance(event, ev.MigrationAnswered):
            outstanding.requests = event.requests if event.accepted else 0
        else:
            outstanding.requests = event.requests - event.moved - event.failed
        if outstanding.requests <= 0:
            del self._migrations[event.command_id]

    def clear(self) -> None:
        """Forget all migrations, at the start of an epoch."""
        self._migrations.clear()

    def add(self, effect: SendMigrate, now: int) -> None:
        """Add a migration that the agent commands."""
        migration = effect.migration
        self._migrations[migration.command_id] = OutstandingMigration(
            migration, migration.requests_max, now + effect.ttl_ms
        )

    def drop_worker(self, pool: str, worker: str) -> None:
        """Drop the migrations of a worker that has left, even if it returns."""
        lost_worker = (pool, worker)
        self._migrations = {
            name: one for name, one in self._migrations.items() if lost_worker not in _ends(one.migration)
        }

    def retain_workers(self, workers: Collection[tuple[str, str]]) -> None:
        """Keep only migrations between these workers, given by pool and name."""
        self._migrations = {
            name: one for name, one in self._migrations.items() if all(end in workers for end in _ends(one.migration))
        }

    def others_of(self, migration: Migration, fleet: Fleet, now: int) -> list[OutstandingMigration]:
        """Return the model's other migrations in flight; a migration ends with either of its workers."""
        self._migrations = {
            name: one
            for name, one in self._migrations.items()
            if now < one.until_ms and _known(fleet, one.migration, one.migration.source, one.migration.destination)
        }
        others = (one for name, one in self._migrations.items() if name != migration.command_id)
        return [one for one in others if one.migration.model == migration.model]


def _ends(migration: Migration) -> list[tuple[str, str]]:
    return [(end.pool, end.worker) for end in (migration.source, migration.destination)]


def _known(fleet: Fleet, migration: Migration, *ends: MigrationEndpoint) -> bool:
    """Return True if all these endpoints are current workers of the fleet."""
    model = fleet.models.get(migration.model)
    pools = {} if model is None else model.pools
    found = ((end, pools[end.pool].workers.get(end.worker)) for end in ends if end.pool in pools)
    return sum(worker is not None and worker.record.incarnation == end.incarnation for end, worker in found) == len(
        ends
    )
