"""State of the workers that take part in migrations, beyond their latest samples."""

from collections.abc import Container

from msgspec import Struct, field

from loadline.core.migration.measures import REQUESTS, SLOTS_IN, SLOTS_OUT, Measures

_DOUBLINGS_MAX = 16


class MigrationPeer(Struct, omit_defaults=True, gc=False):
    """Migration state of one incarnation of a worker. Times are in ms of the agent's clock."""

    incarnation: int
    slots_in: int = 0
    """Slots to receive requests: free ones by its last report, plus those in use at that time."""
    slots_in_max: int = 0
    """Most free slots that it ever reported. It bounds ``slots_in`` if a migration ended just before a report."""
    slots_out: int = 0
    """Slots to send requests, computed in the same way."""
    slots_out_max: int = 0
    """Most free slots to send that it ever reported."""
    seen_at_ms: int = -1
    """Time of its last report."""
    measures: Measures = ()
    """Measures of its last report."""
    changed_at_ms: int = 0
    """Time of the last report with other measures or without requests."""
    last_assigned_at_ms: int = 0
    """Time at which its requests last increased other than by a migration."""
    breaker_open_until_ms: int = 0
    """Time until which it gets no commands, because it did not answer."""
    failures: int = 0
    """Consecutive commands without an answer."""
    timed_out_at_ms: int = -1
    """Time of the last command without an answer; -1: none."""
    excluded: bool = False
    """True if it refused a command and has not reported since."""

    def record_measures(self, measures: Measures, slots_in: int, slots_out: int, now: int, *, receiving: bool) -> None:
        """Record a report.

        Args:
            measures: Measures of the report.
            slots_in: Slots in use by migrations to the worker.
            slots_out: Slots in use by migrations from the worker.
            now: Time in ms.
            receiving: True if the ledger has a migration to the worker.
        """
        free_in, free_out = int(measures[SLOTS_IN]), int(measures[SLOTS_OUT])
        requests = int(measures[REQUESTS])
        if not receiving and requests > (self.measures[REQUESTS] if self.measures else 0):
            self.last_assigned_at_ms = now
        self.slots_in_max = max(self.slots_in_max, free_in)
        self.slots_out_max = max(self.slots_out_max, free_out)
        self.slots_in = min(free_in + slots_in, self.slots_in_max)
        self.slots_out = min(free_out + slots_out, self.slots_out_max)
        if measures != self.measures or not requests:
            self.changed_at_ms = now
        self.measures, self.excluded = measures, False

    def record_answer(self) -> None:
        """Close the circuit breaker after an answer."""
        self.failures = self.breaker_open_until_ms = 0

    def record_timeout(self, breaker_ms: int, breaker_max_ms: int, sent_at_ms: int, now: int) -> bool:
        """Open the circuit breaker, for twice as long with each consecutive failure.

        Returns:
            True if this is a new failure. Timeouts of commands that were sent before the last failure belong to it.
        """
        if sent_at_ms <= self.timed_out_at_ms:
            return False
        self.timed_out_at_ms = now
        self.breaker_open_until_ms = now + min(breaker_ms << min(self.failures, _DOUBLINGS_MAX), breaker_max_ms)
        self.failures += 1
        return True


class MigrationPeers(Struct):
    """The peers of one model."""

    known: dict[str, MigrationPeer] = field(default_factory=dict)
    """Peers by pool and worker."""

    def find(self, pool: str, worker: str) -> MigrationPeer | None:
        """Return a peer; None if it is unknown."""
        return self.known.get(f"{pool}\0{worker}")

    def get(self, pool: str, worker: str) -> MigrationPeer:
        """Return a known peer."""
        return self.known[f"{pool}\0{worker}"]

    def get_or_add(self, pool: str, worker: str, incarnation: int, now: int) -> MigrationPeer:
        """Return the peer of an incarnation; a new one replaces that of an earlier incarnation."""
        key = f"{pool}\0{worker}"
        peer = self.known.get(key)
        if peer is None or peer.incarnation != incarnation:
            peer = self.known[key] = MigrationPeer(incarnation, changed_at_ms=now)
        return peer

    def open_breakers(self, now: int) -> list[str]:
        """Return the sorted names of the workers that get no commands at ``now`` (ms)."""
        return sorted(key.partition("\0")[2] for key, peer in self.known.items() if peer.breaker_open_until_ms > now)

    def retain_pools(self, pools: Container[str]) -> None:
        """Remove the peers of all other pools."""
        for key in [key for key in self.known if key.partition("\0")[0] not in pools]:
            del self.known[key]

    def retain_workers(self, pool: str, workers: Container[str]) -> None:
        """Remove all other peers of a pool."""
        prefix = f"{pool}\0"
        for key in [key for key in self.known if key.startswith(prefix) and key[len(prefix) :] not in workers]:
            del self.known[key]
