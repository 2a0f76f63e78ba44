"""Table of the workers of a group: of a pool, or of all pools of a role, within which requests can migrate.

The table is derived from the fleet and the migration state, so it can be rebuilt at any time. A report of a worker
refreshes its row in a few microseconds.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from loadline.core.engines.arrays import Mask, Rows
from loadline.core.engines.tpot import TpotModel, predicted_tpot
from loadline.core.fleet.pool import Pool
from loadline.core.fleet.worker import WorkerState
from loadline.core.migration.columns import (
    IN_REQUESTS,
    IN_SLOTS,
    IN_TOKENS,
    OUT_REQUESTS,
    OUT_SLOTS,
    OUT_TOKENS,
    RECEIVING,
    SENDING,
    WorkerColumns,
)
from loadline.core.migration.in_flight import InFlightMigration
from loadline.core.migration.measures import (
    BATCH,
    DECODE_TOKENS,
    KV_NEEDED,
    KV_TOTAL,
    SLOTS_IN,
    SLOTS_OUT,
    UNKNOWN,
    Measures,
    measures_of,
)
from loadline.core.migration.name_codes import NameCodes
from loadline.core.migration.peers import MigrationPeer, MigrationPeers
from loadline.core.vocabulary.migrations import MigrationEndpoint
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.core.vocabulary.scalars import Role

RESERVED_CODES: Final = {"": 0, "prefill": 1, "decode": 2}
_CAPACITY: Final = 16
"""Rows of a new table; a full table doubles."""

Key = tuple[str, str]
"""Pool and name of a worker."""


class WorkerTable:
    """Workers of one group that support migrations.

    Args:
        pools: Pools of the group by name, all of one role.
        peers: Peers of the model.
        nodes: Codes of nodes, shared by all tables.
        units: Codes of data-parallel units, shared by all tables.
        tpot: Model of the time per output token; None if there is none.
    """

    def __init__(
        self,
        pools: Mapping[str, Pool],
        peers: MigrationPeers,
        nodes: NameCodes,
        units: NameCodes,
        tpot: TpotModel | None,
    ) -> None:
        self.pools = dict(pools)
        self.role: Role = next(iter(self.pools.values())).knobs.role
        self.workers: list[WorkerState] = []
        self.keys: list[Key] = []
        self.rows: dict[Key, int] = {}
        self.columns = WorkerColumns.of(0)
        """Columns with one row per worker."""
        self.pairs_in_flight: set[tuple[int, int]] = set()
        """Rows of the source and the destination of each migration in flight that has not ended."""
        self.tpot = tpot
        self._all_columns = self._viewed = WorkerColumns.of(_CAPACITY)
        self._peers, self._nodes, self._units = peers, nodes, units
        self._records: list[WorkerRecord | None] = []  # record from which each row was filled
        self._endpoints: list[tuple[WorkerRecord, MigrationEndpoint] | None] = []  # a pass asks for each several times
        self._new = True
        self._in_flight_rows: list[int] = []  # rows that migrations in flight affect
        self._departed = -1
        self._ranks: Rows | None = None

    def __len__(self) -> int:
        return len(self.workers)

    @property
    def ranks(self) -> Rows:
        """Ranks of the workers by pool and name, which break ties."""
        if self._ranks is None:
            order = sorted(range(len(self.keys)), key=self.keys.__getitem__)
            self._ranks = np.empty(len(order), dtype=np.intp)
            self._ranks[order] = np.arange(len(order))
        return self._ranks

    def sorted_rows(self, rows: Mask) -> list[int]:
        """Return the selected rows in the order of the workers' names."""
        found: Rows = rows.nonzero()[0]
        return found[np.argsort(self.ranks[found])].tolist() if len(found) else []

    def reports_capacity(self, row: int) -> bool:
        """Return True if the record of a worker has the size of its KV cache, to which a ``RATIO`` refers."""
        record = self.workers[row].record
        return bool(record.kv_blocks_total and record.block_size_tokens)

    def endpoint(self, row: int) -> MigrationEndpoint:
        """Return a worker as an endpoint of migrations."""
        record = self.workers[row].record
        known = self._endpoints[row]
        if known is None or known[0] is not record:
            known = record, MigrationEndpoint(record.pool, record.worker, record.incarnation)
            self._endpoints[row] = known
        return known[1]

    def row_of(self, end: MigrationEndpoint) -> int | None:
        """Return the row of an endpoint; None if it is unknown, or of another incarnation."""
        row = self.rows.get((end.pool, end.worker))
        return None if row is None or self.workers[row].record.incarnation != end.incarnation else row

    # -- refreshing ----------------------------------------------------------------------------------------------------

    def refresh(self, migrations: Sequence[InFlightMigration], now: int, *, totals_refreshed: bool) -> list[int]:
        """Apply changes of the fleet, and return the rows of workers that reported.

        A new table reads all workers, but returns the same rows as one that has existed before, since a replay may
        begin at any turn.

        Args:
            migrations: Migrations in flight of the model.
            now: Time in ms.
            totals_refreshed: True if the totals of the model were refreshed in this turn, so that ``Pool.changed`` is
                new.
        """
        departed = sum(pool.removed_count for pool in self.pools.values())
        if departed != self._departed:
            self._departed = departed
            self._remove_departed()
        reported = [
            (pool.name, name)
            for pool in self.pools.values()
            for name in _reported(pool, totals_refreshed=totals_refreshed)
        ]
        stale = self._all_keys() if self._new else reported
        self._new = False
        if stale:
            started = StartedSlots(migrations)
            for key in sorted(stale):  # peers are added in this order, independent of that of the reports
                worker = self.pools[key[0]].workers.get(key[1])
                if worker is not None:
                    self._refresh_row(key, worker, started, now)
            self._view_columns()
            rows = self._rows_of(stale)
            measures = self._all_columns.measures[:, rows]
            self._all_columns.tpot_ms[rows] = predicted_tpot(self.tpot, measures[BATCH], measures[DECODE_TOKENS])
        return self._rows_of(reported)

    def refresh_peer(self, endpoint: MigrationEndpoint) -> None:
        """Refresh the peer state of a worker after an answer or a report of a migration."""
        row = self.rows.get((endpoint.pool, endpoint.worker))
        if row is not None:
            peer = self._peers.get(endpoint.pool, endpoint.worker)
            self._all_columns.excluded[row] = peer.excluded
            self._all_columns.breaker_open_until_ms[row] = peer.breaker_open_until_ms

    def apply_in_flight(self, migrations: Iterable[InFlightMigration]) -> None:
        """Compute the effect of the migrations in flight on each worker."""
        effect, seen_at_ms = self._all_columns.in_flight, self._all_columns.seen_at_ms
        if self._in_flight_rows:
            effect[:, self._in_flight_rows] = 0.0
        self.pairs_in_flight = set()
        found: dict[int, list[float]] = {}  # added up in Python: elements of an array take ten times as long
        for migration in migrations:
            source, destination = self.row_of(migration.command.source), self.row_of(migration.command.destination)
            if source is None and destination is None:
                continue
            in_progress, slots = not migration.ended, migration.slots
            if in_progress and source is not None and destination is not None:
                self.pairs_in_flight.add((source, destination))
            if migration.phase == "unknown":
                continue  # it may not have started
            for row, requests, tokens, busy_slots, busy in (
                (source, OUT_REQUESTS, OUT_TOKENS, OUT_SLOTS, SENDING),
                (destination, IN_REQUESTS, IN_TOKENS, IN_SLOTS, RECEIVING),
            ):
                if row is None:
                    continue
                # Only the progress is compared with the time of the report.
                expected = migration.unobserved(int(seen_at_ms[row]) if migration.progress else 0)
                sums = found.get(row)
                if sums is None:
                    sums = found[row] = [0.0] * len(effect)
                sums[requests] += expected[0]
                sums[tokens] += expected[1]
                sums[busy_slots] += slots
                sums[busy] += in_progress
        self._in_flight_rows = list(found)
        if found:
            effect[:, self._in_flight_rows] = np.array(list(found.values())).T

    def _all_keys(self) -> list[Key]:
        return [(pool.name, name) for pool in self.pools.values() for name in pool.workers]

    def _rows_of(self, keys: Iterable[Key]) -> list[int]:
        return [self.rows[key] for key in keys if key in self.rows]

    def _refresh_row(self, key: Key, worker: WorkerState, started: "StartedSlots", now: int) -> None:
        measures, record = measures_of(worker), worker.record
        if measures is None:  # a rank has not reported yet, or the worker no longer supports migrations
            if key in self.rows:
                self._remove(key)
                self._clear_in_flight()
            return
        peer = self._peers.get_or_add(*key, record.incarnation, now)
        if worker.seen_at_ms > peer.seen_at_ms:
            peer.seen_at_ms = worker.seen_at_ms
            end = MigrationEndpoint(*key, record.incarnation)
            slots_in, slots_out = started.slots_in.get(end, 0), started.slots_out.get(end, 0)
            peer.record_measures(measures, slots_in, slots_out, now, receiving=end in started.destinations)
        row = self.rows.get(key)
        if row is None:
            row = self._add(key)
        self.workers[row] = worker
        self._fill_row(row, worker, peer, measures)

    def _fill_row(self, row: int, worker: WorkerState, peer: MigrationPeer, measures: Measures) -> None:
        record, columns = worker.record, self._all_columns
        known = measures[KV_NEEDED] != UNKNOWN and measures[KV_TOTAL] != UNKNOWN
        columns.measures[:, row] = measures if known else [np.nan if one == UNKNOWN else one for one in measures]
        columns.measures[SLOTS_IN, row], columns.measures[SLOTS_OUT, row] = peer.slots_in, peer.slots_out
        columns.alive[row] = worker.registered and not worker.draining and record.state == "ready"
        leaving = worker.draining or record.state == "draining"  # drained by this agent, or by another program
        columns.draining[row] = leaving and not worker.drain_ended and not worker.drain_held
        columns.schedulable[row] = not worker.reports_unschedulable()
        if record is not self._records[row]:
            self._records[row] = record
            columns.parallel[row] = record.data_parallel_size > 1
            columns.reserved[row] = RESERVED_CODES[record.reserved]
            columns.node[row], columns.unit[row] = self._nodes.code(record.node), self._units.code(record.unit)
        columns.seen_at_ms[row], columns.changed_at_ms[row] = worker.seen_at_ms, peer.changed_at_ms
        columns.excluded[row], columns.breaker_open_until_ms[row] = peer.excluded, peer.breaker_open_until_ms
        columns.last_assigned_at_ms[row] = peer.last_assigned_at_ms

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _remove_departed(self) -> None:
        for key in list(self.keys):
            worker = self.pools[key[0]].workers.get(key[1])
            if worker is not self.workers[self.rows[key]]:
                self._remove(key)
        for pool in self.pools.values():
            self._peers.retain_workers(pool.name, pool.workers)
        self._clear_in_flight()
        self._view_columns()

    def _view_columns(self) -> None:
        """View the columns of all rows; they stay the same as long as no row comes or goes."""
        if self._viewed is not self._all_columns or len(self.columns.alive) != len(self.workers):
            self.columns, self._viewed = self._all_columns.first(len(self.workers)), self._all_columns

    def _clear_in_flight(self) -> None:
        """Clear the effect of the migrations in flight after rows moved."""
        self._all_columns.in_flight[:] = 0.0
        self._in_flight_rows = []

    def _add(self, key: Key) -> int:
        row = len(self.workers)
        if row == len(self._all_columns.alive):
            self._all_columns = self._all_columns.doubled()
        self.keys.append(key)
        self.workers.append(self.pools[key[0]].workers[key[1]])
        self._records.append(None)
        self._endpoints.append(None)
        self.rows[key] = row
        self._all_columns.in_flight[:, row] = 0.0
        self._ranks = None
        return row

    def _remove(self, key: Key) -> None:
        """Remove a row; the last row takes its place."""
        row, last = self.rows.pop(key), len(self.workers) - 1
        if row != last:
            self._all_columns.copy_row(last, row)
            self.keys[row], self.workers[row] = self.keys[last], self.workers[last]
            self._records[row], self._endpoints[row] = self._records[last], self._endpoints[last]
            self.rows[self.keys[row]] = row
        self.keys.pop()
        self.workers.pop()
        self._records.pop()
        self._endpoints.pop()
        self._ranks = None


def _reported(pool: Pool, *, totals_refreshed: bool) -> Iterable[str]:
    """Return the workers that reported since the last round."""
    return {**pool.changed, **pool.dirty} if totals_refreshed else pool.dirty


class StartedSlots:
    """Slots in use by migrations that have started, by worker. The free slots that a worker reports exclude them.

    Args:
        migrations: Migrations in flight.
    """

    def __init__(self, migrations: Sequence[InFlightMigration]) -> None:
        self.slots_in: dict[MigrationEndpoint, int] = defaultdict(int)
        self.slots_out: dict[MigrationEndpoint, int] = defaultdict(int)
        self.destinations = {migration.command.destination for migration in migrations}
        """Workers that receive requests or did until recently."""
        for migration in migrations:
            if migration.phase != "asked":
                self.slots_in[migration.command.destination] += migration.slots
                self.slots_out[migration.command.source] += migration.slots
