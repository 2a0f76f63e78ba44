"""What is remembered of workers that take part in moves, beyond their last samples: slots, signs of life, refusals."""

from collections.abc import Container

from msgspec import Struct, field

from loadline.core.migration.load_metrics import REQUESTS, SLOTS_IN, SLOTS_OUT, Measures


class MigrationPeer(Struct, omit_defaults=True, gc=False):
    """One worker. A later life of its name is another one. Times in ms of our clock."""

    incarnation: int
    slots_in: int = 0
    """Moves that it can take in at a time: what it says is free, and what was under way when it said so."""
    slots_in_max: int = 0
    """Most that it ever said was free: a move that ended just before it said so must not be counted twice."""
    slots_out: int = 0
    slots_out_max: int = 0
    seen_at_ms: int = -1
    """When it was last heard."""
    said: Measures = ()
    """Its newest measures."""
    changed_at_ms: int = 0
    """When they last differed from those before, or it had nothing to do."""
    last_assigned_at_ms: int = 0
    """When it last had more requests than before, and none had been moved to it."""
    breaker_open_until_ms: int = 0
    """It does not answer, and is not asked until then."""
    failures: int = 0
    """Times in a row that it did not answer."""
    timed_out_at_ms: int = -1
    """When that was last noted."""
    excluded: bool = False
    """It refused, and is asked again when it has reported."""

    def hear(self, said: Measures, coming: int, going: int, now: int, *, took: bool) -> None:
        """It has reported, with so many moves to it and from it under way; ``took``: some were to it of late."""
        free_in, free_out = int(said[SLOTS_IN]), int(said[SLOTS_OUT])
        requests = int(said[REQUESTS])
        if not took and requests > (self.said[REQUESTS] if self.said else 0):
            self.last_assigned_at_ms = now
        self.slots_in_max = max(self.slots_in_max, free_in)
        self.slots_out_max = max(self.slots_out_max, free_out)
        self.slots_in = min(free_in + coming, self.slots_in_max)
        self.slots_out = min(free_out + going, self.slots_out_max)
        if said != self.said or not requests:
            self.changed_at_ms = now
        self.said, self.excluded = said, False

    def answered(self) -> None:
        """It answers."""
        self.failures = self.breaker_open_until_ms = 0

    def silent(self, breaker_ms: int, breaker_max_ms: int, sent_at_ms: int, now: int) -> bool:
        """It did not answer: leave it alone for a while, longer each time; says whether that is news.

        Not of a command that was sent before it was known: several may have been on their way.
        """
        if sent_at_ms <= self.timed_out_at_ms:
            return False
        self.timed_out_at_ms = now
        self.breaker_open_until_ms = now + min(breaker_ms << min(self.failures, 16), breaker_max_ms)
        self.failures += 1
        return True


class MigrationPeers(Struct):
    """Those of one model."""

    known: dict[str, MigrationPeer] = field(default_factory=dict)

    def of(self, pool: str, worker: str) -> MigrationPeer:
        """One that was met."""
        return self.known[f"{pool}\0{worker}"]

    def find(self, pool: str, worker: str) -> MigrationPeer | None:
        """One that may have been met."""
        return self.known.get(f"{pool}\0{worker}")

    def meet(self, pool: str, worker: str, incarnation: int, now: int) -> MigrationPeer:
        """One in this life; of an earlier one nothing is remembered."""
        name = f"{pool}\0{worker}"
        peer = self.known.get(name)
        if peer is None or peer.incarnation != incarnation:
            peer = self.known[name] = MigrationPeer(incarnation, changed_at_ms=now)
        return peer

    def keep(self, pools: Container[str]) -> None:
        """There are only these pools."""
        for one in [one for one in self.known if one.partition("\0")[0] not in pools]:
            del self.known[one]

    def retain_workers(self, pool: str, workers: Container[str]) -> None:
        """Of a pool there are only these."""
        begin = f"{pool}\0"
        gone = [one for one in self.known if one.startswith(begin) and one[len(begin) :] not in workers]
        for one in gone:
            del self.known[one]
