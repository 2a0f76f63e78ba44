"""Key-value store in virtual time: linearizable, with leases, watches and configurable faults."""

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Final, TypeVar

from msgspec import Struct

from loadline.errors import LoadlineError, StoreUnavailable
from loadline.ports import CommitResult, Compare, StoreChange, StoreEntry, StoreSnapshot, Write
from loadline.sim.world.store_call import StoreCall, disconnected, time_out
from loadline.sim.world.tasks import VirtualFuture
from loadline.sim.world.timeline import Timeline

T = TypeVar("T")

# As in the adapter: the timeout of a call, and the maximum time until a client detects that a watch is dead.
_TIMEOUT_MS: Final = 2_000.0
_NOTICED_MS: Final = 4_000.0
_BACK_MS: Final = 300.0
_NUMBERS: Final[dict[str, Callable[[StoreEntry], int]]] = {
    "create": attrgetter("create_revision"),
    "mod": attrgetter("mod_revision"),
    "lease": attrgetter("lease_id"),
}
"""Number of an entry by the target of a comparison."""


class StoreFaults(Struct, frozen=True):
    """Fault probabilities for each call, and for each change of a watch."""

    refused: float = 0.0
    """The call is certainly not done."""
    unknown: float = 0.0
    """The call is done or not with equal chances, and the caller cannot know."""
    slow: float = 0.0
    slow_ms_max: float = 4_000.0
    """Maximum delay of a slow call, which may be done after the caller's timeout."""
    compacted: float = 0.0
    """The watch starts again with a snapshot."""


class _VirtualLease(Struct, eq=False):
    lease_id: int
    ttl_ms: float
    expires_ms: float


class StoreBackup(Struct, frozen=True):
    """Content of a store at one moment; by default that of an empty one."""

    keys: dict[str, StoreEntry] = {}
    leases: dict[int, float] = {}
    """TTL of each lease in ms, by id."""
    revision: int = 1


class VirtualStore:
    """The server; processes use it through connections.

    Args:
        timeline: Virtual time.
        latency_ms: One-way latency; 0: calls complete before they return, and changes are delivered at once.
        faults: Current fault rates; may be set at any time.
    """

    def __init__(self, timeline: Timeline, latency_ms: float = 1.0, faults: StoreFaults | None = None) -> None:
        self.timeline = timeline
        self.latency_ms = latency_ms
        self.faults = faults or StoreFaults()
        self.rng = timeline.rng("store")
        self.available = True
        self.revision = 1
        self.keys: dict[str, StoreEntry] = {}
        self.on_write: Callable[[list[StoreChange]], None] = lambda _changes: None
        """Called with every write at the moment it is done, even without any connection."""
        self.on_loss: Callable[[], None] = lambda: None
        """Called before the content is replaced by that of a backup."""
        self.lives = 1
        """Number of times that it has started with other content; calls in flight do not outlive one."""
        self._leases: dict[int, _VirtualLease] = {}
        self._lease_ids_before = 0
        """Highest lease id of its earlier lives: no id is granted twice."""
        self._connections: list[StoreConnection] = []

    def connection(self) -> "StoreConnection":
        """Return a new connection for one process."""
        port = StoreConnection(self)
        self._connections.append(port)
        return port

    def detach(self, port: "StoreConnection") -> None:
        """Remove a connection."""
        if port in self._connections:
            self._connections.remove(port)

    def set_available(self, *, available: bool) -> None:
        """Stop or start the server. After a restart all leases get their full TTL, as under a new leader of etcd."""
        self.available = available
        if available:
            for lease in self._leases.values():
                lease.expires_ms = max(lease.expires_ms, self.timeline.now_ms + lease.ttl_ms)
        for port in self._connections:
            port.connection_changed()

    def back_up(self) -> StoreBackup:
        """Return its content."""
        return StoreBackup(
            dict(self.keys), {lease.lease_id: lease.ttl_ms for lease in self._leases.values()}, self.revision
        )

    def restore(self, backup: StoreBackup) -> None:
        """Replace its content, as an operator who starts etcd with another folder; all leases get their full TTL."""
        self.on_loss()
        self.lives += 1
        self._lease_ids_before += self.revision
        self.keys, self.revision, self._leases = dict(backup.keys), backup.revision, {}
        for lease_id, ttl_ms in backup.leases.items():
            self._add_lease(lease_id, ttl_ms)
        for port in self._connections:
            port.restart_watches()

    # -- what a call does, all at once ---------------------------------------------------------------------------------

    def grant(self, ttl_s: int) -> int:
        """Grant a lease and return its id."""
        self.revision += 1  # etcd does not count leases as revisions, but unique lease ids keep traces readable
        lease_id = self._lease_ids_before + self.revision
        self._add_lease(lease_id, ttl_s * 1_000.0)
        return lease_id

    def _add_lease(self, lease_id: int, ttl_ms: float) -> None:
        lease = self._leases[lease_id] = _VirtualLease(lease_id, ttl_ms, self.timeline.now_ms + ttl_ms)
        self.timeline.call_at(lease.expires_ms, partial(self._expire, lease))

    def keep_alive(self, lease_id: int) -> int:
        """Renew a lease; return its TTL in s, 0 when it is lost."""
        lease = self._leases.get(lease_id)
        if lease is None:
            return 0
        lease.expires_ms = self.timeline.now_ms + lease.ttl_ms
        return int(lease.ttl_ms / 1_000)

    def revoke(self, lease_id: int) -> None:
        """End a lease and remove its keys."""
        if self._leases.pop(lease_id, None) is not None:
            self._write([Write(key, None) for key, entry in self.keys.items() if entry.lease_id == lease_id])

    def read(self, prefix: str) -> StoreSnapshot:
        """Return all entries under a prefix, in key order."""
        return StoreSnapshot([self.keys[key] for key in sorted(self.keys) if key.startswith(prefix)], self.revision)

    def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> CommitResult:
        """Do all writes if all comparisons hold, or none.

        Raises:
            StoreUnavailable: A lease is gone.
        """
        if any(write.lease_id and write.lease_id not in self._leases for write in writes):
            raise StoreUnavailable("requested lease not found")
        if not all(self._holds(compare) for compare in compares):
            return CommitResult(committed=False, revision=self.revision)
        if writes:
            self._write(writes)
        return CommitResult(committed=True, revision=self.revision)

    def _holds(self, compare: Compare) -> bool:
        entry = self.keys.get(compare.key)
        if entry is None:
            return compare.number == 0
        return compare.number == _NUMBERS[compare.target](entry)

    def _write(self, writes: Sequence[Write]) -> None:
        self.revision += 1
        changes: list[StoreChange] = []
        for write in writes:
            before = self.keys.get(write.key)
            if write.value is not None:
                created = before.create_revision if before else self.revision
                self.keys[write.key] = StoreEntry(write.key, write.value, created, self.revision, write.lease_id)
                changes.append(StoreChange(write.key, self.keys[write.key], self.revision))
            elif before is not None:
                del self.keys[write.key]
                changes.append(StoreChange(write.key, None, self.revision))
        if changes:
            self.on_write(changes)
            for port in self._connections:
                port.notify(changes)

    def _expire(self, lease: _VirtualLease) -> None:
        if self._leases.get(lease.lease_id) is not lease:
            return
        if self.available and lease.expires_ms <= self.timeline.now_ms:
            self.revoke(lease.lease_id)
        else:  # a store that is down expires nothing
            self.timeline.call_at(max(lease.expires_ms, self.timeline.now_ms + 500.0), partial(self._expire, lease))


class _PrefixWatch(Struct, eq=False):
    """Watch of a prefix. A new ``generation`` starts with a snapshot and ends with a gap."""

    prefix: str
    on_snapshot: Callable[[StoreSnapshot], None]
    on_changes: Callable[[list[StoreChange]], None]
    on_connection: Callable[[bool], None]
    generation: int = 0
    alive: bool = False
    connected: bool | None = None
    next_at_ms: float = 0.0
    """Time before which no change is delivered, so that changes keep their order."""


class StoreConnection:
    """``ports.Store`` for one process."""

    def __init__(self, store: VirtualStore) -> None:
        self.partitioned = False
        """True if the process is partitioned from the server."""
        self._store = store
        self._watches: list[_PrefixWatch] = []

    @property
    def reachable(self) -> bool:
        """True if calls and answers are delivered."""
        return self._store.available and not self.partitioned

    def set_partitioned(self, *, partitioned: bool) -> None:
        """Partition or reconnect the process."""
        if partitioned != self.partitioned:
            self.partitioned = partitioned
            self.connection_changed()

    def delay_watches(self, wait_ms: float) -> None:
        """Delay all watches without notice, as a stuck stream does."""
        for watch in self._watches:
            watch.next_at_ms = max(watch.next_at_ms, self._store.timeline.now_ms + wait_ms)

    async def grant(self, ttl_s: int) -> int:
        """Grant a lease and return its id."""
        return await self._call(lambda: self._store.grant(ttl_s))

    async def keep_alive(self, lease_id: int) -> int:
        """Renew a lease; return its TTL in s, 0 when it is lost."""
        return await self._call(lambda: self._store.keep_alive(lease_id))

    async def revoke(self, lease_id: int) -> None:
        """End a lease and remove its keys; do nothing if the lease has already ended."""
        await self._call(lambda: self._store.revoke(lease_id))

    async def get(self, key: str) -> StoreEntry | None:
        """Return the entry of a key."""
        return await self._call(lambda: self._store.keys.get(key))

    async def read(self, prefix: str) -> StoreSnapshot:
        """Return all entries under a prefix."""
        return await self._call(lambda: self._store.read(prefix))

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> CommitResult:
        """Do all writes if all comparisons hold, or none."""
        return await self._call(lambda: self._store.commit(compares, writes), repeatable=False)

    async def follow(
        self,
        prefix: str,
        on_snapshot: Callable[[StoreSnapshot], None],
        on_changes: Callable[[list[StoreChange]], None],
        on_connection: Callable[[bool], None],
    ) -> None:
        """Follow a prefix for ever: a snapshot, then every change in order; a new snapshot after any gap."""
        watch = _PrefixWatch(prefix, on_snapshot, on_changes, on_connection)
        self._watches.append(watch)
        self._start_watch(watch)
        await VirtualFuture[None]()

    async def close(self) -> None:
        """Close the connection; calls in flight still arrive."""
        self._watches.clear()
        self._store.detach(self)

    # -- calls ---------------------------------------------------------------------------------------------------------

    async def _call(self, do: Callable[[], T], *, repeatable: bool = True) -> T:
        """Call the server; the call or its answer may be lost."""
        store = self._store
        if store.latency_ms == 0.0:
            if not self.reachable:
                raise disconnected()
            return do()
        promise: VirtualFuture[T] = VirtualFuture()
        timeline, rng, faults = store.timeline, store.rng, store.faults
        if not self.reachable:
            timeline.call_later(store.latency_ms, partial(promise.set_exception, disconnected()))
        elif rng.random() < faults.refused:
            timeline.call_later(2.0 * store.latency_ms, partial(promise.set_exception, disconnected()))
        else:
            lost = rng.random() < faults.unknown
            done = not lost or rng.random() < 0.5  # noqa: PLR2004 - a fair coin
            slow_ms = rng.uniform(0.0, faults.slow_ms_max) if rng.random() < faults.slow else 0.0
            # A caller without an answer waits for its whole timeout; a delayed call may still be done after that.
            timeout = timeline.reserve(_TIMEOUT_MS, partial(time_out, promise, repeatable=repeatable))
            call = StoreCall(promise, do, timeout, store.lives, lost=lost)
            if lost or slow_ms + 3.0 * store.latency_ms > _TIMEOUT_MS:
                call.wait_for_timeout(timeline)
            if done:
                timeline.call_later(store.latency_ms + slow_ms, partial(self._execute, call))
        return await promise

    def _execute(self, call: StoreCall[T]) -> None:
        """Execute a call at the server and return its answer unless it is lost."""
        timeline = self._store.timeline
        if not self.reachable or self._store.lives != call.life:
            call.wait_for_timeout(timeline)
            return
        answer: Callable[[], None]
        try:
            answer = partial(call.promise.set_result, call.do())
        except LoadlineError as error:
            answer = partial(call.promise.set_exception, error)
        if not call.lost:
            timeline.call_later(self._store.latency_ms, partial(self._answer, call, answer))

    def _answer(self, call: StoreCall[T], answer: Callable[[], None]) -> None:
        if self.reachable:
            answer()
        else:
            call.wait_for_timeout(self._store.timeline)

    # -- watches -------------------------------------------------------------------------------------------------------

    def connection_changed(self) -> None:
        """End or restart all watches after a change of reachability; the loss is detected late."""
        store = self._store
        for watch in self._watches:
            if self.reachable:
                store.timeline.call_later(_BACK_MS, partial(self._start_watch, watch))
            else:
                watch.alive = False
                watch.generation += 1
                store.timeline.call_later(store.rng.uniform(0.0, _NOTICED_MS), partial(self._report_disconnect, watch))

    def restart_watches(self) -> None:
        """Begin all watches with a new snapshot, since the server has other content."""
        for watch in self._watches:
            watch.alive = False
            watch.generation += 1
        if self.reachable:
            self.connection_changed()

    def notify(self, changes: list[StoreChange]) -> None:
        """Deliver the changes of a write to all live watches, in order."""
        store = self._store
        for watch in self._watches:
            if not watch.alive:
                continue
            watched = [change for change in changes if change.key.startswith(watch.prefix)]
            if not watched:
                continue
            if store.latency_ms == 0.0:
                watch.on_changes(watched)
            elif store.faults.compacted and store.rng.random() < store.faults.compacted:
                watch.alive = False
                store.timeline.call_later(_BACK_MS, partial(self._start_watch, watch))
            else:
                self._deliver(watch, partial(watch.on_changes, watched))

    def _start_watch(self, watch: _PrefixWatch) -> None:
        """Start a watch with a snapshot."""
        if not self.reachable or watch not in self._watches:
            return
        watch.alive = True
        watch.generation += 1
        snapshot = self._store.read(watch.prefix)

        def show() -> None:
            if watch.connected is not True:
                watch.connected = True
                watch.on_connection(True)  # noqa: FBT003 - the port's callback
            watch.on_snapshot(snapshot)

        self._deliver(watch, show)

    def _report_disconnect(self, watch: _PrefixWatch) -> None:
        if not self.reachable and watch.connected is True:
            watch.connected = False
            watch.on_connection(False)  # noqa: FBT003 - the port's callback

    def _deliver(self, watch: _PrefixWatch, deliver: Callable[[], None]) -> None:
        store, generation = self._store, watch.generation

        def arrive() -> None:
            if watch.generation == generation and watch.alive:
                deliver()

        if store.latency_ms == 0.0:
            arrive()
            return
        jitter_ms = store.rng.uniform(0.0, 2.0 * store.latency_ms)
        watch.next_at_ms = max(watch.next_at_ms, store.timeline.now_ms + store.latency_ms + jitter_ms)
        store.timeline.call_at(watch.next_at_ms, arrive)
