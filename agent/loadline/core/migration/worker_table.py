"""The workers of a group that take part in moves. A group is what requests can move within: in general a pool.

All of it follows from what is believed and remembered, so it can be made anew at any time. A row is brought up to date
when its worker was heard, in some microseconds.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

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
    Mask,
    Rows,
    WorkerColumns,
)
from loadline.core.migration.in_flight import InFlightMigration
from loadline.core.migration.load_metrics import (
    BATCH,
    DECODE_TOKENS,
    NEED,
    SLOTS_IN,
    SLOTS_OUT,
    TOTAL,
    UNKNOWN,
    Measures,
    measure,
)
from loadline.core.migration.peers import MigrationPeer, MigrationPeers
from loadline.core.vocabulary.migrations import MigrationEndpoint
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.core.vocabulary.scalars import Role

RESERVED_CODES: Final = {"": 0, "prefill": 1, "decode": 2}
_ROOM: Final = 16

Key = tuple[str, str]
"""Pool and name of a worker."""


class NameCodes:
    """A number for each name of a node or a unit, so that they can be compared in columns; no name is -1."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def number(self, name: str) -> int:
        """The number of a name."""
        return self._numbers.setdefault(name, len(self._numbers)) if name else -1


class WorkerTable:
    """The workers of one group.

    Args:
        pools: Its pools, by name: all of one role.
        peers: What is remembered of its workers.
        nodes: Numbers of nodes, the same on all boards.
        units: Numbers of units.
        tpot: Gives times per output token; None: they are not known.
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
        """Of as many workers as there are."""
        self._whole = WorkerColumns.of(_ROOM)
        self.tpot = tpot
        self._peers, self._nodes, self._units = peers, nodes, units
        self._records: list[WorkerRecord | None] = []  # that the columns of each row were filled from
        self._fresh = True
        self._loaded: list[int] = []  # rows that moves in flight mean something for
        self._departed = -1
        self._ranks: Rows | None = None

    def __len__(self) -> int:
        return len(self.workers)

    @property
    def ranks(self) -> Rows:
        """The places of the workers in the order of their names: what is equal is decided by it."""
        if self._ranks is None:
            order = sorted(range(len(self.keys)), key=self.keys.__getitem__)
            self._ranks = np.empty(len(order), dtype=np.intp)
            self._ranks[order] = np.arange(len(order))
        return self._ranks

    def sorted_rows(self, rows: Mask) -> list[int]:
        """Some workers by name."""
        found: Rows = np.flatnonzero(rows)
        return found[np.argsort(self.ranks[found])].tolist() if len(found) else []

    def reports_capacity(self, row: int) -> bool:
        """Whether the record of a worker says how large its cache is: a share is of what it says itself."""
        record = self.workers[row].record
        return bool(record.kv_blocks_total and record.block_size_tokens)

    def end(self, row: int) -> MigrationEndpoint:
        """A worker as one end of a move."""
        record = self.workers[row].record
        return MigrationEndpoint(record.pool, record.worker, record.incarnation)

    def hear(self, flights: Sequence[InFlightMigration], now: int, *, settled: bool) -> list[int]:
        """Take in what is new of workers, and who has gone; gives the rows of those of which something is new.

        ``settled``: in this turn, so that what has changed is new. A board that was made anew takes in all workers, and
        gives the same rows as one that goes on: a replay may begin at any turn.
        """
        departed = sum(pool.removed_count for pool in self.pools.values())
        if departed != self._departed:
            self._departed = departed
            self._drop_the_gone()
        news = [(pool.name, name) for pool in self.pools.values() for name in _news(pool, settled=settled)]
        begun, heard = StartedSlots(flights), self._everybody() if self._fresh else news
        self._fresh = False
        for key in sorted(heard):  # who is met is remembered in this order, whoever was heard first
            worker = self.pools[key[0]].workers.get(key[1])
            if worker is not None:
                self._take(key, worker, begun, now)
        if heard:
            self.columns = self._whole.first(len(self.workers))
            rows = self._rows_of(heard)
            measures = self._whole.measures[:, rows]
            self._whole.tpot_ms[rows] = predicted_tpot(self.tpot, measures[BATCH], measures[DECODE_TOKENS])
        return self._rows_of(news)

    def _everybody(self) -> list[Key]:
        return [(pool.name, name) for pool in self.pools.values() for name in pool.workers]

    def _rows_of(self, keys: Iterable[Key]) -> list[int]:
        return [self.rows[key] for key in keys if key in self.rows]

    def note(self, end: MigrationEndpoint) -> None:
        """What is remembered of a worker has changed."""
        row = self.rows.get((end.pool, end.worker))
        if row is not None:
            peer = self._peers.of(end.pool, end.worker)
            self._whole.excluded[row], self._whole.breaker_open_until_ms[row] = (
                peer.excluded,
                peer.breaker_open_until_ms,
            )

    def load(self, flights: Iterable[InFlightMigration]) -> None:
        """Reckon anew what moves in flight mean for each worker."""
        moving = self._whole.moving
        moving[:, self._loaded] = 0.0
        self._loaded = []
        for flight in flights:
            if flight.phase == "unknown":
                continue  # nobody knows that it has begun
            going = not flight.ended
            for end, requests, tokens, slots, busy in (
                (flight.move.source, OUT_REQUESTS, OUT_TOKENS, OUT_SLOTS, SENDING),
                (flight.move.destination, IN_REQUESTS, IN_TOKENS, IN_SLOTS, RECEIVING),
            ):
                row = self.rows.get((end.pool, end.worker))
                if row is None or self.workers[row].record.incarnation != end.incarnation:
                    continue
                left, held = flight.unobserved(int(self._whole.seen_at_ms[row]))
                moving[requests, row] += left
                moving[tokens, row] += held
                moving[slots, row] += flight.slots
                moving[busy, row] += going
                self._loaded.append(row)

    def _take(self, key: Key, worker: WorkerState, begun: "StartedSlots", now: int) -> None:
        said, record = measure(worker), worker.record
        if said is None:  # a rank has not reported yet, or it takes part in no move any more
            if key in self.rows:
                self._remove(key)
                self._forget_rows()
            return
        peer = self._peers.meet(*key, record.incarnation, now)
        if worker.seen_at_ms > peer.seen_at_ms:
            peer.seen_at_ms = worker.seen_at_ms
            end = MigrationEndpoint(*key, record.incarnation)
            peer.hear(said, begun.to.get(end, 0), begun.out.get(end, 0), now, took=end in begun.took)
        row = self.rows.get(key)
        if row is None:
            row = self._add(key)
        self.workers[row] = worker
        self._fill(row, worker, peer, said)

    def _fill(self, row: int, worker: WorkerState, peer: MigrationPeer, said: Measures) -> None:
        record, whole = worker.record, self._whole
        known = said[NEED] != UNKNOWN and said[TOTAL] != UNKNOWN
        whole.measures[:, row] = said if known else [np.nan if value == UNKNOWN else value for value in said]
        whole.measures[SLOTS_IN, row], whole.measures[SLOTS_OUT, row] = peer.slots_in, peer.slots_out
        whole.alive[row] = worker.registered and not worker.draining and record.state == "ready"
        leaves = worker.draining or record.state == "draining"  # asked by us, or by whoever else scales the fleet
        whole.draining[row] = leaves and not worker.drain_ended
        whole.schedulable[row] = not worker.reports_unschedulable()
        if record is not self._records[row]:
            self._records[row] = record
            whole.parallel[row] = record.data_parallel_size > 1
            whole.reserved[row] = RESERVED_CODES[record.reserved]
            whole.node[row], whole.unit[row] = self._nodes.number(record.node), self._units.number(record.unit)
        whole.seen_at_ms[row], whole.changed_at_ms[row] = worker.seen_at_ms, peer.changed_at_ms
        whole.excluded[row], whole.breaker_open_until_ms[row] = peer.excluded, peer.breaker_open_until_ms
        whole.last_assigned_at_ms[row] = peer.last_assigned_at_ms

    def _drop_the_gone(self) -> None:
        for key in list(self.keys):
            worker = self.pools[key[0]].workers.get(key[1])
            if worker is not self.workers[self.rows[key]]:
                self._remove(key)
        for pool in self.pools.values():
            self._peers.retain_workers(pool.name, pool.workers)
        self._forget_rows()
        self.columns = self._whole.first(len(self.workers))

    def _forget_rows(self) -> None:
        """Rows have changed places."""
        self._whole.moving[:] = 0.0
        self._loaded = []

    def _add(self, key: Key) -> int:
        row = len(self.workers)
        if row == len(self._whole.alive):
            self._whole = self._whole.doubled()
        self.keys.append(key)
        self.workers.append(self.pools[key[0]].workers[key[1]])
        self._records.append(None)
        self.rows[key] = row
        self._whole.moving[:, row] = 0.0
        self._ranks = None
        return row

    def _remove(self, key: Key) -> None:
        """The last row takes the place of the one that goes."""
        row, last = self.rows.pop(key), len(self.workers) - 1
        if row != last:
            self._whole.move(last, row)
            self.keys[row], self.workers[row] = self.keys[last], self.workers[last]
            self._records[row] = self._records[last]
            self.rows[self.keys[row]] = row
        self.keys.pop()
        self.workers.pop()
        self._records.pop()
        self._ranks = None


def _news(pool: Pool, *, settled: bool) -> Iterable[str]:
    """Workers of a pool of which something is new: as of the settling in this turn, and since the last one."""
    return {**pool.changed, **pool.dirty} if settled else pool.dirty


class StartedSlots:
    """Slots of moves that have begun, by worker: what it says is free, is free beside them.

    Args:
        flights: Moves in flight.
    """

    def __init__(self, flights: Sequence[InFlightMigration]) -> None:
        self.to: Counter[MigrationEndpoint] = Counter()
        self.out: Counter[MigrationEndpoint] = Counter()
        self.took = {flight.move.destination for flight in flights}
        """Who takes requests in, or has done so of late."""
        for flight in flights:
            if flight.phase != "asked":
                self.to[flight.move.destination] += flight.slots
                self.out[flight.move.source] += flight.slots
