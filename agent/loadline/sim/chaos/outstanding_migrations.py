"""The moves that an agent has asked for and of which it heard no end."""

from collections.abc import Collection

from msgspec import Struct

from loadline.core.fleet.fleet import Fleet
from loadline.core.vocabulary import events as ev
from loadline.core.vocabulary.effects import SendMigrate
from loadline.core.vocabulary.migrations import Migration, MigrationEndpoint


class OutstandingMigration(Struct):
    """A move that an agent asked for."""

    migration: Migration
    requests: int
    """That may still be under way: as many as it allows, then what the source has chosen and not done."""
    until_ms: int


class OutstandingMigrations:
    """The moves of which an agent must believe that they are in flight: it asked for them, and heard of no end."""

    def __init__(self) -> None:
        self._migrations: dict[str, OutstandingMigration] = {}

    def record(self, event: ev.MigrationAnswered | ev.MigrationReported) -> None:
        """What an agent is told of a move. One that was not answered may be in flight or not: it may think either."""
        flight = self._migrations.get(event.command_id)
        if flight is None:
            return
        if isinstance(event, ev.MigrationAnswered):
            flight.requests = event.requests if event.accepted else 0
        else:
            flight.requests = event.requests - event.moved - event.failed
        if flight.requests <= 0:
            del self._migrations[event.command_id]

    def clear(self) -> None:
        """Another term: nothing is known."""
        self._migrations.clear()

    def add(self, effect: SendMigrate, now: int) -> None:
        """It asks for a move."""
        move = effect.migration
        self._migrations[move.command_id] = OutstandingMigration(move, move.requests_max, now + effect.ttl_ms)

    def drop_worker(self, pool: str, worker: str) -> None:
        """A worker is gone, if only for a moment, and with it its moves."""
        gone = (pool, worker)
        self._migrations = {name: one for name, one in self._migrations.items() if gone not in _ends(one.migration)}

    def retain_workers(self, there: Collection[tuple[str, str]]) -> None:
        """There are only these workers, by pool and name."""
        self._migrations = {
            name: one for name, one in self._migrations.items() if all(end in there for end in _ends(one.migration))
        }

    def others_of(self, move: Migration, fleet: Fleet, now: int) -> list[OutstandingMigration]:
        """The other moves of that model that are in flight now. With either of its workers a move is over."""
        self._migrations = {
            name: one
            for name, one in self._migrations.items()
            if now < one.until_ms and _known(fleet, one.migration, one.migration.source, one.migration.destination)
        }
        flights = (one for name, one in self._migrations.items() if name != move.command_id)
        return [one for one in flights if one.migration.model == move.model]


def _ends(move: Migration) -> list[tuple[str, str]]:
    return [(end.pool, end.worker) for end in (move.source, move.destination)]


def _known(fleet: Fleet, move: Migration, *ends: MigrationEndpoint) -> bool:
    """Whether these are workers of the fleet still."""
    model = fleet.models.get(move.model)
    pools = {} if model is None else model.pools
    found = ((end, pools[end.pool].workers.get(end.worker)) for end in ends if end.pool in pools)
    return sum(worker is not None and worker.record.incarnation == end.incarnation for end, worker in found) == len(
        ends
    )
