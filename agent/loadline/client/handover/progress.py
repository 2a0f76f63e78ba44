"""Migrate commands of one incarnation of a worker: acceptance, progress and reports. Pure.

Stages of each selected request:

    selected -> begun -> admitted -> copying -> switching -> moved
         each stage but the last may fail, and the request stays

From ``switching`` on, deadlines have no effect: only the frontend knows whether the destination owns the request, see
``ownership``.
"""

from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct

from loadline.client.fence import EpochFence
from loadline.client.handover.effects import Transfer
from loadline.client.incarnation import is_for
from loadline.core.migration.requests import MigratableRequest, select_requests
from loadline.core.vocabulary.migrations import MigrationFailure, MigrationRefusal, MigrationReportPhase
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.wire.messages import MigrateCommand, MigrateReply, MigrationReport

SLOTS: Final = 4
"""Default number of requests handed over at a time, in each direction."""
DRAIN_SLOTS_MAX: Final = 64
"""Maximum number of requests that a draining worker hands over at a time."""
FINAL_REPORTS: Final = 3
"""Number of times that the last report of a migration is published, since messages may be lost."""
FINAL_INTERVAL_MS: Final = 1_000
# An unanswered command is repeated for a few seconds, and a worker has at most 16 migrations: this covers all of them.
_REPLIES_MAX: Final = 1_024
_FINAL_MAX: Final = 1_024
_DETAIL_CHARS_MAX: Final = 256

Stage = Literal["selected", "begun", "admitted", "copying", "switching", "withdrawn"]
_BEFORE_SWITCH: Final[frozenset[Stage]] = frozenset({"selected", "begun", "admitted", "copying"})
"""Stages that the deadline ends. A switch in progress is completed."""


class _SelectedRequest(Struct):
    request: MigratableRequest
    stage: Stage = "selected"


class _Migration(Struct):
    """Migration in progress."""

    command: MigrateCommand
    reply: MigrateReply
    begun_ms: int
    left: dict[str, _SelectedRequest]
    moved: int = 0
    failed: int = 0
    tokens: int = 0
    phase: MigrationReportPhase | None = None
    """Phase of the newest report."""
    reason: MigrationFailure = ""
    detail: str = ""

    @property
    def deadline_ms(self) -> int:
        return self.begun_ms + self.command.ttl_ms

    @property
    def before_switch(self) -> list[str]:
        """Requests whose transfers the deadline withdraws."""
        return [name for name, one in self.left.items() if one.stage in _BEFORE_SWITCH]

    def report(self, phase: MigrationReportPhase, now_ms: int) -> MigrationReport:
        self.phase, command = phase, self.command
        return MigrationReport(
            command.command_id,
            command.model,
            command.epoch,
            command.source,
            command.destination,
            command.trigger,
            phase,
            self.reply.requests,
            moved=self.moved,
            failed=self.failed,
            tokens=self.tokens,
            took_ms=max(0, now_ms - self.begun_ms),
            reason=self.reason,
            detail=self.detail,
        )


class _FinalReport(Struct):
    """Last report of a completed migration."""

    report: MigrationReport
    again_ms: int
    published: int = 1


class MigrationProgress:
    """Commands and migrations of one incarnation of a worker. All times are of one monotonic clock, in ms.

    Args:
        record: Description of the worker. A ``RATIO`` is a fraction of its KV cache.
        slots_out: Maximum number of requests handed over at a time, unless the worker drains.
        supported: False if the engine cannot hand requests over: every command is refused.
    """

    def __init__(self, record: WorkerRecord, *, slots_out: int = SLOTS, supported: bool = True) -> None:
        self.draining = False
        """True once the worker drains: it hands over up to ``DRAIN_SLOTS_MAX`` requests at a time."""
        self.record = record
        """Description of the worker."""
        self._kv_tokens = (record.kv_blocks_total or 0) * (record.block_size_tokens or 0) * record.data_parallel_size
        self.epochs = EpochFence()
        """Fence of migrate commands, separate from that of drains: an agent that only migrates has its own epochs."""
        self._slots_out = slots_out
        self._supported = supported
        self._migrations: dict[str, _Migration] = {}
        self._replies: dict[str, MigrateReply] = {}
        self._final: dict[str, _FinalReport] = {}

    def free_slots(self, requests: int) -> int:
        """Return the number of the worker's ``requests`` that can be handed over now."""
        limit = min(requests, DRAIN_SLOTS_MAX) if self.draining else self._slots_out
        return max(0, limit - self._in_flight())

    def answer(
        self, command: MigrateCommand, candidates: Sequence[MigratableRequest], now_ms: int
    ) -> MigrateReply | None:
        """Accept or refuse a command, given the worker's requests in queue order.

        None: another worker of this name answers. A repeated command gets the same answer and has no effect.
        """
        source = command.source
        if not is_for(self.record, command.model, source.pool, source.worker, source.incarnation):
            return None
        known = self._migrations.get(command.command_id)
        before = known.reply if known else self._replies.get(command.command_id)
        if before is not None:
            return before
        reply = self._decide(command, candidates, now_ms)
        self._replies[command.command_id] = reply
        if len(self._replies) > _REPLIES_MAX:
            del self._replies[next(iter(self._replies))]
        return reply

    def _decide(self, command: MigrateCommand, candidates: Sequence[MigratableRequest], now_ms: int) -> MigrateReply:
        refusal, detail = self._refusal(command)
        if refusal:
            return _refuse(command, refusal, detail)
        free = (DRAIN_SLOTS_MAX if self.draining else self._slots_out) - self._in_flight()
        if free <= 0:
            return _refuse(command, "no_slots", f"{self._in_flight()} requests are migrating")
        in_flight = {name for migration in self._migrations.values() for name in migration.left}
        selected = select_requests(
            [one for one in candidates if one.request_id not in in_flight],
            command.rule,
            command.order,
            command.value,
            requests_max=min(command.requests_max, free),
            tokens_max=command.tokens_max,
            hops_max=command.hops_max,
            kv_tokens_total=self._kv_tokens,
        )
        if not selected:
            return _refuse(command, "nothing_to_move", f"none of {len(candidates)} requests can migrate")
        tokens = sum(one.tokens for one in selected)
        reply = MigrateReply(command.command_id, accepted=True, requests=len(selected), tokens=tokens)
        left = {one.request_id: _SelectedRequest(one) for one in selected}
        self._migrations[command.command_id] = _Migration(command, reply, now_ms, left)
        return reply

    def _refusal(self, command: MigrateCommand) -> tuple[MigrationRefusal | None, str]:
        """Return the reason to refuse the command regardless of the requests; None: there is none."""
        record, destination = self.record, command.destination
        if command.source.incarnation < record.incarnation:
            return "gone", f"this is incarnation {record.incarnation}"
        if not self.epochs.admit(command.epoch):
            return "stale_epoch", f"a command of epoch {self.epochs.highest} was received"
        if not self._supported:
            return "unsupported", "this engine cannot migrate requests"
        if command.ttl_ms <= 0:
            return "expired", ""
        if (destination.pool, destination.worker) == (record.pool, record.worker):
            return "destination_unknown", "the destination is the source"
        return None, ""

    def _in_flight(self) -> int:
        return sum(len(migration.left) for migration in self._migrations.values())

    def begin(self, command_id: str) -> list[Transfer]:
        """Begin an accepted command; return its transfers in order, and nothing when called again."""
        migration = self._migrations.get(command_id)
        left = {} if migration is None else migration.left
        selected = {name: one for name, one in left.items() if one.stage == "selected"}
        for one in selected.values():
            one.stage = "begun"
        return [Transfer(command_id, name) for name in selected]

    def command(self, transfer: Transfer) -> MigrateCommand:
        """Return the command of a transfer in progress."""
        return self._migrations[transfer.command_id].command

    def request(self, transfer: Transfer) -> MigratableRequest:
        """Return the request of a transfer in progress, as it was when the command came."""
        return self._migrations[transfer.command_id].left[transfer.request_id].request

    def record_admitted(self, transfer: Transfer, now_ms: int) -> list[MigrationReport]:
        """Record that the destination has room; return the reports to publish, as all ``record_`` methods do.

        An input that comes after the request was withdrawn or ended changes nothing and returns no report.
        """
        return self._reach(transfer, "admitted", ("selected", "begun"), now_ms)

    def record_copying(self, transfer: Transfer, now_ms: int) -> list[MigrationReport]:
        """Record that copying the KV cache has begun; the request still runs here."""
        return self._reach(transfer, "copying", ("admitted",), now_ms)

    def _reach(
        self, transfer: Transfer, stage: Literal["admitted", "copying"], before: tuple[Stage, ...], now_ms: int
    ) -> list[MigrationReport]:
        one = self._find(transfer)
        if one is None or one.stage not in before:
            return []
        one.stage = stage
        return [self._migrations[transfer.command_id].report(stage, now_ms)]

    def begin_switch(self, transfer: Transfer, now_ms: int) -> bool:
        """Begin to switch a request, which no deadline ends any more; return False if it must be withdrawn instead."""
        one = self._find(transfer)
        late = one is None or now_ms >= self._migrations[transfer.command_id].deadline_ms
        if one is None or late or one.stage not in _BEFORE_SWITCH:
            return False
        one.stage = "switching"
        return True

    def record_moved(self, transfer: Transfer, now_ms: int) -> list[MigrationReport]:
        """Record that the destination owns the request."""
        one = self._find(transfer)
        if one is None:
            return []
        migration = self._migrations[transfer.command_id]
        del migration.left[transfer.request_id]
        migration.moved += 1
        migration.tokens += one.request.tokens
        return [migration.report("switched", now_ms), *self._end(migration, now_ms)]

    def record_failure(
        self, transfer: Transfer, reason: MigrationFailure, now_ms: int, detail: str = ""
    ) -> list[MigrationReport]:
        """Record that the destination does not own the request: it continues here, or ended."""
        migration = self._migrations.get(transfer.command_id)
        if migration is None or migration.left.pop(transfer.request_id, None) is None:
            return []
        migration.failed += 1
        migration.reason, migration.detail = reason, detail[:_DETAIL_CHARS_MAX]
        if not migration.left:
            return self._end(migration, now_ms)
        # Before the first admission no phase can report one of several failures; the next report includes it.
        return [migration.report(migration.phase, now_ms)] if migration.phase else []

    def _end(self, migration: _Migration, now_ms: int) -> list[MigrationReport]:
        if migration.left:
            return []
        del self._migrations[migration.command.command_id]
        last = migration.report("done" if migration.moved else "aborted", now_ms)
        self._final[last.command_id] = _FinalReport(last, now_ms + FINAL_INTERVAL_MS)
        if len(self._final) > _FINAL_MAX:
            del self._final[next(iter(self._final))]
        return [last]

    def withdraw_overdue(self, now_ms: int) -> list[Transfer]:
        """Withdraw transfers past their deadline, and return each once; ``record_failure`` ends them."""
        overdue: list[Transfer] = []
        for command_id, migration in self._migrations.items():
            for name in migration.before_switch if now_ms >= migration.deadline_ms else ():
                migration.left[name].stage = "withdrawn"
                overdue.append(Transfer(command_id, name))
        return overdue

    def is_withdrawn(self, transfer: Transfer) -> bool:
        """Return True if the deadline withdrew a transfer that has not ended yet."""
        one = self._find(transfer)
        return one is not None and one.stage == "withdrawn"

    def _find(self, transfer: Transfer) -> _SelectedRequest | None:
        migration = self._migrations.get(transfer.command_id)
        return migration.left.get(transfer.request_id) if migration else None

    def repeat_final(self, now_ms: int) -> list[MigrationReport]:
        """Return final reports that are due again: each is published ``FINAL_REPORTS`` times, 1 s apart."""
        due = [final for final in self._final.values() if now_ms >= final.again_ms]
        for final in due:
            final.published += 1
            final.again_ms = now_ms + FINAL_INTERVAL_MS
            if final.published >= FINAL_REPORTS:
                del self._final[final.report.command_id]
        return [final.report for final in due]

    def next_wake_ms(self) -> int | None:
        """Return the time of the next deadline or report, unless an input comes before; None: none is due."""
        times = [migration.deadline_ms for migration in self._migrations.values() if migration.before_switch]
        return min((*times, *(final.again_ms for final in self._final.values())), default=None)


def _refuse(command: MigrateCommand, reason: MigrationRefusal, detail: str) -> MigrateReply:
    return MigrateReply(command.command_id, accepted=False, reason=reason, detail=detail[:_DETAIL_CHARS_MAX])
