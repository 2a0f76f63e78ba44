"""The moves of one life of a worker: which it begins, how far they are, what it says of them. Pure: times are given.

As a source it answers commands and follows each request that it has chosen:

    chosen -> admitted -> copying -> switching -> switched
         each of these but the last may end as failed: the request stays

``switching`` is the point of no return for deadlines: whether the destination has the request then is known to whoever
holds the user's stream, see ``ownership``, and not to a clock here. As a destination it counts what it takes in.
"""

from collections.abc import Sequence
from typing import Final, Literal, NamedTuple

from msgspec import Struct

from loadline.client.fence import EpochFence
from loadline.client.incarnation import is_for
from loadline.core.migration.requests import MigratableRequest, select_requests
from loadline.core.vocabulary.migrations import MigrationFailure, MigrationRefusal, MigrationReportPhase
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.wire.messages import MigrateCommand, MigrateReply, MigrationReport

SLOTS: Final = 4
"""Requests that are moved at a time, either way, where nobody says otherwise."""
DRAIN_SLOTS_MAX: Final = 64
"""A worker that drains gives away all it has, so many at a time."""
LAST_SAID_TIMES: Final = 3
LAST_INTERVAL_MS: Final = 1_000
# Repeats of a command come within its time to answer, a few seconds. More than so many commands in that time there
# are in no fleet: a worker has 16 moves at most.
_REPLIES_MAX: Final = 1_024
_LAST_MAX: Final = 1_024
_DETAIL_CHARS_MAX: Final = 256

Stage = Literal["chosen", "begun", "admitted", "copying", "switching", "withdrawn"]
_WITHDRAWN_LATE: Final[frozenset[Stage]] = frozenset({"chosen", "begun", "admitted", "copying"})
"""What a deadline ends. A switch under way is finished, one way or the other."""


class Slots(NamedTuple):
    """How many requests can be moved now."""

    taken_in: int
    given_away: int


class Part(NamedTuple):
    """A request of a move."""

    command_id: str
    request_id: str


class _Request(Struct):
    tokens: int
    stage: Stage = "chosen"


class _Move(Struct):
    """One that is not over."""

    command: MigrateCommand
    reply: MigrateReply
    begun_ms: int
    left: dict[str, _Request]
    moved: int = 0
    failed: int = 0
    tokens: int = 0
    phase: MigrationReportPhase | None = None
    """That was reported last."""
    reason: MigrationFailure = ""
    detail: str = ""

    @property
    def deadline_ms(self) -> int:
        return self.begun_ms + self.command.ttl_ms

    @property
    def late(self) -> list[str]:
        """Those that the deadline withdraws."""
        return [name for name, one in self.left.items() if one.stage in _WITHDRAWN_LATE]

    def report(self, phase: MigrationReportPhase, now_ms: int) -> MigrationReport:
        self.phase, its = phase, self.command
        return MigrationReport(
            its.command_id,
            its.model,
            its.epoch,
            its.source,
            its.destination,
            its.trigger,
            phase,
            self.reply.requests,
            moved=self.moved,
            failed=self.failed,
            tokens=self.tokens,
            took_ms=max(0, now_ms - self.begun_ms),
            reason=self.reason,
            detail=self.detail,
        )


class _Last(Struct):
    """The last report of a move that is over."""

    report: MigrationReport
    again_ms: int
    said_times: int = 1


class Moves:
    """The moves of one life of one worker. All times are of one clock that never goes back, in ms.

    Args:
        record: What the worker is. A ``RATIO`` is of the KV cache that it says it has.
        slots_in: Requests that it takes in at a time.
        slots_out: Requests that it gives away at a time, while it does not drain.
        supported: False where the engine cannot move requests: every command is refused.
    """

    def __init__(
        self,
        record: WorkerRecord,
        *,
        slots_in: int = SLOTS,
        slots_out: int = SLOTS,
        supported: bool = True,
    ) -> None:
        self.draining = False
        """Set once the worker is to be emptied: it gives away all it has, and takes nothing in."""
        self._record = record
        self._kv_tokens = (record.kv_blocks_total or 0) * (record.block_size_tokens or 0) * record.data_parallel_size
        self._epochs = EpochFence()  # not that of drains: an agent of its own may plan moves, with terms of its own
        self._slots_in = slots_in
        self._slots_out = slots_out
        self._supported = supported
        self._moves: dict[str, _Move] = {}
        self._replies: dict[str, MigrateReply] = {}
        self._last: dict[str, _Last] = {}
        self._taken_in: set[str] = set()

    def slots(self, requests: int) -> Slots:
        """What is free now, given how many requests the worker has: it publishes that with every sample."""
        limit = min(requests, DRAIN_SLOTS_MAX) if self.draining else self._slots_out
        taken_in = 0 if self.draining else self._slots_in - len(self._taken_in)
        return Slots(max(0, taken_in), max(0, limit - self._moving()))

    # As a source.

    def answer(
        self, command: MigrateCommand, candidates: Sequence[MigratableRequest], now_ms: int
    ) -> MigrateReply | None:
        """The answer to a command, given the requests that there are, in queue order.

        None where another worker of this name answers. The same command again has the same answer, and begins nothing.
        """
        source = command.source
        if not is_for(self._record, command.model, source.pool, source.worker, source.incarnation):
            return None
        known = self._moves.get(command.command_id)
        before = known.reply if known else self._replies.get(command.command_id)
        if before is not None:
            return before
        reply = self._judged(command, candidates, now_ms)
        self._replies[command.command_id] = reply
        if len(self._replies) > _REPLIES_MAX:
            del self._replies[next(iter(self._replies))]
        return reply

    def _judged(self, command: MigrateCommand, candidates: Sequence[MigratableRequest], now_ms: int) -> MigrateReply:
        refusal, detail = self._refusal(command)
        if refusal:
            return _refused(command, refusal, detail)
        free = self._free_out()
        if free <= 0:
            return _refused(command, "no_slots", f"{self._moving()} requests are being moved")
        moving = {name for move in self._moves.values() for name in move.left}
        chosen = select_requests(
            [one for one in candidates if one.request_id not in moving],
            command.rule,
            command.order,
            command.value,
            requests_max=min(command.requests_max, free),
            tokens_max=command.tokens_max,
            hops_max=command.hops_max,
            kv_tokens_total=self._kv_tokens,
        )
        if not chosen:
            return _refused(command, "nothing_to_move", f"none of {len(candidates)} requests can be moved")
        tokens = sum(one.tokens for one in chosen)
        reply = MigrateReply(command.command_id, accepted=True, requests=len(chosen), tokens=tokens)
        left = {one.request_id: _Request(one.tokens) for one in chosen}
        self._moves[command.command_id] = _Move(command, reply, now_ms, left)
        return reply

    def _refusal(self, command: MigrateCommand) -> tuple[MigrationRefusal | None, str]:
        """Why no request of this worker is moved, whatever it has; None: that remains to be seen."""
        mine, its = self._record, command.destination
        if command.source.incarnation < mine.incarnation:
            return "gone", f"this is incarnation {mine.incarnation}"
        if not self._epochs.hear(command.epoch):
            return "stale_epoch", f"a leader of epoch {self._epochs.highest} was heard"
        if not self._supported:
            return "unsupported", "this engine cannot move requests"
        if command.ttl_ms <= 0:
            return "expired", ""
        if (its.pool, its.worker) == (mine.pool, mine.worker):
            return "destination_unknown", "the destination is the source"
        return None, ""

    def _free_out(self) -> int:
        return (DRAIN_SLOTS_MAX if self.draining else self._slots_out) - self._moving()

    def _moving(self) -> int:
        return sum(len(move.left) for move in self._moves.values())

    def begin(self, command_id: str) -> list[Part]:
        """What has to be begun for a command that was accepted, in its order; nothing when asked again."""
        move = self._moves.get(command_id)
        chosen = {} if move is None else {name: one for name, one in move.left.items() if one.stage == "chosen"}
        for one in chosen.values():
            one.stage = "begun"
        return [Part(command_id, name) for name in chosen]

    def admitted(self, part: Part, now_ms: int) -> list[MigrationReport]:
        """The destination has room for it; gives the reports to publish, as all these do.

        What comes too late, for the request is withdrawn or over, changes nothing, and gives none.
        """
        return self._reached(part, "admitted", ("chosen", "begun"), now_ms)

    def copying(self, part: Part, now_ms: int) -> list[MigrationReport]:
        """Its KV cache is being copied, while it goes on here."""
        return self._reached(part, "copying", ("admitted",), now_ms)

    def _reached(
        self, part: Part, stage: Literal["admitted", "copying"], before: tuple[Stage, ...], now_ms: int
    ) -> list[MigrationReport]:
        one = self._one(part)
        if one is None or one.stage not in before:
            return []
        one.stage = stage
        return [self._moves[part.command_id].report(stage, now_ms)]

    def switching(self, part: Part, now_ms: int) -> bool:
        """Whether it may be handed over now. If so no deadline ends that any more; if not it has to be withdrawn."""
        one = self._one(part)
        if one is None or one.stage not in _WITHDRAWN_LATE or now_ms >= self._moves[part.command_id].deadline_ms:
            return False
        one.stage = "switching"
        return True

    def switched(self, part: Part, now_ms: int) -> list[MigrationReport]:
        """The destination owns it now, and that is certain."""
        one = self._one(part)
        if one is None:
            return []
        move = self._moves[part.command_id]
        del move.left[part.request_id]
        move.moved += 1
        move.tokens += one.tokens
        return [move.report("switched", now_ms), *self._ended(move, now_ms)]

    def failed(self, part: Part, reason: MigrationFailure, now_ms: int, detail: str = "") -> list[MigrationReport]:
        """It stays here, and that is certain: it goes on, or is over."""
        move = self._moves.get(part.command_id)
        if move is None or move.left.pop(part.request_id, None) is None:
            return []
        move.failed += 1
        move.reason, move.detail = reason, detail[:_DETAIL_CHARS_MAX]
        if not move.left:
            return self._ended(move, now_ms)
        # No phase says that one of several has failed before any was admitted; the next report does.
        return [move.report(move.phase, now_ms)] if move.phase else []

    def _ended(self, move: _Move, now_ms: int) -> list[MigrationReport]:
        if move.left:
            return []
        del self._moves[move.command.command_id]
        last = move.report("done" if move.moved else "aborted", now_ms)
        self._last[last.command_id] = _Last(last, now_ms + LAST_INTERVAL_MS)
        if len(self._last) > _LAST_MAX:
            del self._last[next(iter(self._last))]
        return [last]

    def overdue(self, now_ms: int) -> list[Part]:
        """What must be withdrawn, for its time is over, and said to have ``failed`` when it is. Each is said once."""
        parts: list[Part] = []
        for command_id, move in self._moves.items():
            for name in move.late if now_ms >= move.deadline_ms else ():
                move.left[name].stage = "withdrawn"
                parts.append(Part(command_id, name))
        return parts

    def is_withdrawn(self, part: Part) -> bool:
        """Whether it was overdue, and has not failed yet."""
        one = self._one(part)
        return one is not None and one.stage == "withdrawn"

    def _one(self, part: Part) -> _Request | None:
        move = self._moves.get(part.command_id)
        return move.left.get(part.request_id) if move else None

    def repeats(self, now_ms: int) -> list[MigrationReport]:
        """Last reports that are due to be said again: three times in all, a second apart, for messages may be lost."""
        due = [last for last in self._last.values() if now_ms >= last.again_ms]
        for last in due:
            last.said_times += 1
            last.again_ms = now_ms + LAST_INTERVAL_MS
            if last.said_times >= LAST_SAID_TIMES:
                del self._last[last.report.command_id]
        return [last.report for last in due]

    def wake_ms(self) -> int | None:
        """When something is overdue or to be said again, unless something else happens before; None: never."""
        times = [move.deadline_ms for move in self._moves.values() if move.late]
        return min((*times, *(last.again_ms for last in self._last.values())), default=None)

    # As a destination.

    def admit(self, request_id: str) -> bool:
        """Whether there is a slot for a request that is to come; it is taken until it is settled."""
        if request_id in self._taken_in:
            return True
        if self.draining or not self._supported or len(self._taken_in) >= self._slots_in:
            return False
        self._taken_in.add(request_id)
        return True

    def settle(self, request_id: str) -> None:
        """It has come, or never will: its slot is free again."""
        self._taken_in.discard(request_id)


def _refused(command: MigrateCommand, reason: MigrationRefusal, detail: str) -> MigrateReply:
    return MigrateReply(command.command_id, accepted=False, reason=reason, detail=detail[:_DETAIL_CHARS_MAX])
