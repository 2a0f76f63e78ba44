"""What is remembered of workers that take part in moves, beyond their last samples: slots, signs of life, refusals."""

from collections.abc import Container

from msgspec import Struct, field

from loadline.core.migration.load_metrics import REQUESTS, SLOTS_IN, SLOTS_OUT, Measures


class Peer(Struct, omit_defaults=True, gc=False):
    """One worker. A later life of its name is another one. Times in ms of our clock."""

    incarnation: int
    slots_in: int = 0
    """Moves that it can take in at a time: what it says is free, and what was under way when it said so."""
    slots_in_most: int = 0
    """Most that it ever said was free: a move that ended just before it said so must not be counted twice."""
    slots_out: int = 0
    slots_out_most: int = 0
    seen_at_ms: int = -1
    """When it was last heard."""
    said: Measures = ()
    """Its newest measures."""
    changed_at_ms: int = 0
    """When they last differed from those before, or it had nothing to do."""
    fed_at_ms: int = 0
    """When it last had more requests than before, and none had been moved to it."""
    shut_until_ms: int = 0
    """It does not answer, and is not asked until then."""
    failures: int = 0
    """Times in a row that it did not answer."""
    silent_at_ms: int = -1
    """When that was last noted."""
    passed_over: bool = False
    """It refused, and is asked again when it has reported."""

    def hear(self, said: Measures, coming: int, going: int, now: int, *, took: bool) -> None:
        """It has reported, with so many moves to it and from it under way; ``took``: some were to it of late."""
        free_in, free_out = int(said[SLOTS_IN]), int(said[SLOTS_OUT])
        requests = int(said[REQUESTS])
        if not took and requests > (self.said[REQUESTS] if self.said else 0):
            self.fed_at_ms = now
        self.slots_in_most = max(self.slots_in_most, free_in)
        self.slots_out_most = max(self.slots_out_most, free_out)
        self.slots_in = min(free_in + coming, self.slots_in_most)
        self.slots_out = min(free_out + going, self.slots_out_most)
        if said != self.said or not requests:
            self.changed_at_ms = now
        self.said, self.passed_over = said, False

    def answered(self) -> None:
        """It answers."""
        self.failures = self.shut_until_ms = 0

    def silent(self, breaker_ms: int, breaker_max_ms: int, sent_at_ms: int, now: int) -> bool:
        """It did not answer: leave it alone for a while, longer each time; says whether that is news.

        Not of a command that was sent before it was known: several may have been on their way.
        """
        if sent_at_ms <= self.silent_at_ms:
            return False
        self.silent_at_ms = now
        self.shut_until_ms = now + min(breaker_ms << min(self.failures, 16), breaker_max_ms)
        self.failures += 1
        return True


class Peers(Struct):
    """Those of one model."""

    known: dict[str, Peer] = field(default_factory=dict)

    def of(self, pool: str, worker: str) -> Peer:
        """One that was met."""
        return self.known[f"{pool}\0{worker}"]

    def find(self, pool: str, worker: str) -> Peer | None:
        """One that may have been met."""
        return self.known.get(f"{pool}\0{worker}")

    def meet(self, pool: str, worker: str, incarnation: int, now: int) -> Peer:
        """One in this life; of an earlier one nothing is remembered."""
        name = f"{pool}\0{worker}"
        peer = self.known.get(name)
        if peer is None or peer.incarnation != incarnation:
            peer = self.known[name] = Peer(incarnation, changed_at_ms=now)
        return peer

    def keep(self, pools: Container[str]) -> None:
        """There are only these pools."""
        for one in [one for one in self.known if one.partition("\0")[0] not in pools]:
            del self.known[one]

    def forget_the_gone(self, pool: str, workers: Container[str]) -> None:
        """Of a pool there are only these."""
        begin = f"{pool}\0"
        gone = [one for one in self.known if one.startswith(begin) and one[len(begin) :] not in workers]
        for one in gone:
            del self.known[one]
