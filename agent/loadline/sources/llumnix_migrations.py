"""Migrate commands of the agent, carried out by Llumnix's agents of engines (llumlets).

A llumlet answers once the destination has accepted the requests, and never tells how many they are or that they have
arrived. So a migration is taken for done when the source's status, as stored after the answer, shows none on the way.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from loadline.adapters.grpc_calls import CallFailed, GrpcCalls
from loadline.adapters.logs import bounded
from loadline.client.fence import EpochFence
from loadline.client.handover.progress import FINAL_INTERVAL_MS, FINAL_REPORTS
from loadline.core.vocabulary.migrations import ALL_REQUESTS, MigrationRefusal
from loadline.sources.llumnix_messages import MIGRATE_METHOD, MigrateRequest, MigrateResponse
from loadline.sources.llumnix_status import LlumnixInstance, LlumnixStatus
from loadline.wire.codec import printable
from loadline.wire.messages import MigrateCommand, MigrateReply, MigrationReport

_ANSWERS_MAX: Final = 4_096
_DETAIL_CHARS_MAX: Final = 256
# The first status after the answer may have been on its way before it; without any request seen leaving, the second
# one counts.
_STATUSES_MIN: Final = 2
# Answers of a server that did not begin; after any other the outcome is unknown.
_NOT_BEGUN: Final[dict[str, MigrationRefusal]] = {
    "INVALID_ARGUMENT": "unsupported",
    "UNIMPLEMENTED": "unsupported",
}

_log = bounded("source")


class Engine(Struct, frozen=True):
    """An engine as stored, and its pool."""

    pool: str
    instance: LlumnixInstance
    status: LlumnixStatus


class _Moving(Struct):
    """A migration that was accepted."""

    report: MigrationReport
    accepted_ms: int
    ends_by_ms: int
    stamp_ms: int
    """Time of the newest status of the source, by its own clock."""
    statuses: int = 0
    leaving: bool = False
    due_ms: int = 0
    """Time of the next report."""
    final_reports: int = 0


class LlumnixMigrations:
    """Commands and accepted migrations of all engines.

    Args:
        calls: Connections to llumlets.
        find: Returns the engine of a model's pool and worker; None: there is none now.
        now_ms: Monotonic time in ms.
    """

    def __init__(
        self, calls: GrpcCalls, find: Callable[[str, str, str], Engine | None], now_ms: Callable[[], int]
    ) -> None:
        self._calls = calls
        self._find = find
        self._now_ms = now_ms
        self._fences: dict[tuple[str, str], EpochFence] = {}
        self._answers: OrderedDict[str, MigrateReply | None] = OrderedDict()
        self._moving: dict[str, _Moving] = {}

    async def answer(self, command: MigrateCommand) -> MigrateReply | None:
        """Answer a command. None: its outcome is unknown. A repeated command has the same answer and calls nobody."""
        if command.command_id in self._answers:
            return self._answers[command.command_id]
        reply = await self._call(command)
        self._answers[command.command_id] = reply
        if len(self._answers) > _ANSWERS_MAX:
            self._answers.popitem(last=False)
        return reply

    def reports(self) -> list[MigrationReport]:
        """Return the reports that are due, from the engines' newest statuses."""
        now_ms, due = self._now_ms(), []
        for command_id, moving in list(self._moving.items()):
            if not moving.final_reports:
                self._observe(moving, now_ms)
            if now_ms < moving.due_ms:
                continue
            due.append(moving.report)
            ended = moving.report.phase in {"done", "aborted"}
            moving.due_ms = now_ms + FINAL_INTERVAL_MS if ended else moving.ends_by_ms
            moving.final_reports += ended
            if moving.final_reports >= FINAL_REPORTS:
                del self._moving[command_id]
        return due

    async def _call(self, command: MigrateCommand) -> MigrateReply | None:
        source = self._find(command.model, command.source.pool, command.source.worker)
        destination = self._find(command.model, command.destination.pool, command.destination.worker)
        fence = self._fences.setdefault((command.model, command.source.worker), EpochFence())
        if not fence.admit(command.epoch):
            return _refusal(command, "stale_epoch", f"a command of epoch {fence.highest} was received")
        if source is None:
            return _refusal(command, "gone", "its status has left Redis")
        if destination is None or not destination.instance.kvt_port:
            return _refusal(command, "destination_unknown", "Redis has no address of the destination")
        address = f"{source.instance.ip}:{source.instance.llumlet_port}"
        stamp_ms = source.status.timestamp_ms
        try:
            answer = await self._calls.call(
                address, MIGRATE_METHOD, _request(command, source, destination), MigrateResponse.FromString
            )
        except CallFailed as failed:
            _log.warning("llumlet_failed", worker=command.source.worker, reason=failed.code, detail=failed.detail[:200])
            reason = _NOT_BEGUN.get(failed.code) if failed.sent else "gone"
            return _refusal(command, reason, str(failed)) if reason else None
        if not answer.success:
            return _refusal(command, "no_slots", answer.message or "the destination did not accept")
        reply = MigrateReply(command.command_id, accepted=True, requests=_requests(command))
        self._moving[command.command_id] = _moving(command, reply, stamp_ms, self._now_ms())
        return reply

    def _observe(self, moving: _Moving, now_ms: int) -> None:
        """Derive the phase of a migration from the newest status of its source."""
        report = moving.report
        source = self._find(report.model, report.source.pool, report.source.worker)
        if source is not None and source.status.timestamp_ms > moving.stamp_ms:
            moving.stamp_ms = source.status.timestamp_ms
            moving.statuses += 1
            on_the_way = source.status.num_migrate_out_reqs > 0
            if not on_the_way and (moving.leaving or moving.statuses >= _STATUSES_MIN):
                moving.report, moving.due_ms = _ended(moving, now_ms, "done"), now_ms
                return
            moving.leaving |= on_the_way
        if now_ms >= moving.ends_by_ms:
            moving.report, moving.due_ms = _ended(moving, now_ms, "aborted"), now_ms


def _request(command: MigrateCommand, source: Engine, destination: Engine) -> object:
    """Return the call that a command means; Llumnix has no limit of requests beside the amount."""
    request = MigrateRequest(
        src_engine_id=source.instance.instance_id,
        dst_engine_id=destination.instance.instance_id,
        dst_engine_ip=destination.instance.ip_kvs or destination.instance.ip,
        dst_engine_port=destination.instance.kvt_port,
        migration_type=command.rule,
        migration_req_policy=command.order,
        trigger_policy=command.trigger,
    )
    if command.rule == "NUM_REQ":
        request.num_reqs = -1 if command.value == ALL_REQUESTS else _requests(command)
    elif command.rule == "TOKEN":
        request.num_tokens = round(min(command.value, command.tokens_max or command.value))
    else:
        request.kv_cache_usage_ratio = command.value
    built: object = request
    return built


def _requests(command: MigrateCommand) -> int:
    """Return the requests that a command moves, as far as it says: at least one."""
    if command.rule != "NUM_REQ" or command.value == ALL_REQUESTS:
        return 1
    return max(1, min(round(command.value), command.requests_max))


def _refusal(command: MigrateCommand, reason: MigrationRefusal, detail: str) -> MigrateReply:
    return MigrateReply(command.command_id, accepted=False, reason=reason, detail=printable(detail, _DETAIL_CHARS_MAX))


def _moving(command: MigrateCommand, reply: MigrateReply, stamp_ms: int, now_ms: int) -> _Moving:
    report = MigrationReport(
        command.command_id,
        command.model,
        command.epoch,
        command.source,
        command.destination,
        command.trigger,
        "admitted",
        reply.requests,
    )
    return _Moving(report, now_ms, now_ms + command.ttl_ms, stamp_ms, due_ms=now_ms)


def _ended(moving: _Moving, now_ms: int, phase: str) -> MigrationReport:
    done, requests, took_ms = phase == "done", moving.report.requests, now_ms - moving.accepted_ms
    if done:
        return replace(moving.report, phase="done", moved=requests, took_ms=took_ms)
    return replace(moving.report, phase="aborted", failed=requests, took_ms=took_ms, reason="deadline")
