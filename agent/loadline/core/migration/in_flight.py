"""The moves that are in flight: what was asked, how far it is, and what it means for the load of both workers.

    asked --accepted--> admitted --> copying --> switched ... --> done | aborted
      |--refused: dropped, and the source is asked again when it has reported
      +--no answer: unknown, until a report of it comes or its time is over

A move counts at both workers from the moment it is asked for, until both have reported after its end: else what they
said before would have it planned again.
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
"""An ended move counts no longer than this at a worker that does not report."""
_GRACE_MS: Final = 2_000
"""A source's last report may take so long: it counts its time from when the command arrived."""
_DIGITS: Final = 16


class InFlightMigration(Struct):
    """One move. Times in ms of our clock."""

    move: Migration
    requests: int
    """That are thought to move: first an estimate, then what the source has chosen."""
    tokens: int
    sent_at_ms: int
    ends_by_ms: int
    phase: MigrationPhase = "asked"
    """The furthest that one of its requests has come."""
    moved: int = 0
    failed: int = 0
    since_ms: int = 0
    """When it came into its phase."""
    ended_at_ms: int = -1
    adopted: bool = False
    """A leader of before began it, as far as its source says."""
    steps: list[tuple[int, int, int]] = field(default_factory=list)
    """When more had moved, how many in all, and with how many tokens."""

    @property
    def slots(self) -> int:
        """Slots that it takes at both workers: of what is not known yet, as many as it may."""
        if self.ended or self.phase == "unknown":
            return 0  # what does not answer would else take the slots of all others for as long as its time is
        if self.phase == "asked":
            return self.move.requests_max
        return max(self.requests - self.moved - self.failed, 0)

    @property
    def slots_freed_at_ms(self) -> int:
        """When slots were last free again."""
        return max(self.ended_at_ms, self.steps[-1][0] if self.steps else -1)

    def unobserved(self, seen_at_ms: int) -> tuple[int, int]:
        """Requests and tokens that a worker which was last heard then has not told of yet, be it as come or as gone."""
        if not (self.steps or self.failed):
            return self.requests, self.tokens
        moved, copied = next(((step[1], step[2]) for step in reversed(self.steps) if step[0] < seen_at_ms), (0, 0))
        there = self.requests - moved
        left, tokens = there - self.failed, max(self.tokens - copied, 0)
        return left, tokens if self.ended or not there else tokens * left // there

    @property
    def ended(self) -> bool:
        """Whether it is over, and counts only until both workers have reported."""
        return self.ended_at_ms >= 0

    def is_duplicate(self, event: MigrationReported) -> bool:
        """Whether a report says nothing new, or is of another move under its id."""
        its = self.move
        ends = (its.model, its.epoch, its.source, its.destination)
        so_far = (self.phase, self.moved, self.failed)
        told = (event.phase, event.moved, event.failed)
        return told == so_far or (event.model, event.epoch, event.source, event.destination) != ends


class InFlightMigrations(Struct):
    """All moves of all models."""

    number: int = 0
    """Of commands, so far."""
    open: dict[str, InFlightMigration] = field(default_factory=dict)

    def of_model(self, model: str) -> list[InFlightMigration]:
        """Those of a model, oldest first."""
        return [flight for flight in self.open.values() if flight.move.model == model]

    def next_id(self, model: str, epoch: int) -> str:
        """An id that no other command has."""
        self.number += 1
        return hashlib.sha256(f"{model}\0{epoch}\0move\0{self.number}".encode()).hexdigest()[:_DIGITS]

    def begin(self, move: Migration, requests: int, tokens: int, ttl_ms: int, now: int) -> None:
        """A command is sent."""
        self.open[move.command_id] = InFlightMigration(
            move, requests, tokens, now, now + ttl_ms + _GRACE_MS, since_ms=now
        )

    def answered(self, event: MigrationAnswered, now: int) -> InFlightMigration | None:
        """A source answered, or did not; gives the move if that is news. One that is refused is open no more."""
        flight = self.open.get(event.command_id)
        if flight is None or flight.phase not in {"asked", "unknown"}:
            return None  # its reports were faster
        if event.accepted is False:
            del self.open[event.command_id]
        elif event.accepted is None:
            flight.phase, flight.since_ms = "unknown", now
        else:
            flight.phase, flight.since_ms = "accepted", now
            flight.requests = min(event.requests, flight.move.requests_max)
            flight.tokens = event.tokens
        return flight

    def reported(self, event: MigrationReported, ttl_ms: int, requests_max: int, now: int) -> InFlightMigration | None:
        """A source reported; gives the move if that is news.

        One that a leader of before began is followed all the same, for the ``ttl_ms`` that moves are given. So a source
        can make up moves, but of no more than the ``requests_max`` that it may give away at a time.
        """
        flight = self.open.get(event.command_id)
        over = event.phase in ENDED
        if flight is None:
            said = (one for one in self.open.values() if one.move.source == event.source and not one.ended)
            left = requests_max - sum(one.requests for one in said)
            if over or left < 1:
                return None
            flight = self._adopt(event, ttl_ms, min(left, max(event.requests, 1)), now)
        elif flight.ended or flight.is_duplicate(event):
            return None
        if _PHASES.index(event.phase) > _PHASES.index(flight.phase):
            flight.phase, flight.since_ms = event.phase, now
        flight.requests = min(event.requests, flight.move.requests_max)
        moved, flight.moved = flight.moved, min(event.moved, flight.requests)
        flight.failed = min(event.failed, flight.requests - flight.moved)
        if flight.moved > moved:
            flight.steps.append((now, flight.moved, event.tokens))
        if over:
            flight.ended_at_ms, flight.tokens = now, event.tokens
        return flight

    def _adopt(self, event: MigrationReported, ttl_ms: int, requests_max: int, now: int) -> InFlightMigration:
        move = Migration(
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
        flight = self.open[event.command_id] = InFlightMigration(
            move, requests_max, event.tokens, now, ends_by_ms, "accepted", since_ms=now, adopted=True
        )
        return flight

    def expire(self, now: int) -> list[InFlightMigration]:
        """Forget those whose time is over, and those that ended long ago; gives the ones that never ended."""
        lost: list[InFlightMigration] = []
        for command_id, flight in list(self.open.items()):
            if flight.ended and now - flight.ended_at_ms >= ENDED_RETENTION_MS:
                del self.open[command_id]
            elif not flight.ended and now >= flight.ends_by_ms:
                del self.open[command_id]
                lost.append(flight)
        return lost

    def next_wake(self) -> int | None:
        """When the next of them is over."""
        ends = (f.ended_at_ms + ENDED_RETENTION_MS if f.ended else f.ends_by_ms for f in self.open.values())
        return min(ends, default=None)
