"""What the store says, as events: workers, pauses and the leader. Decisions are only read when this agent has won."""

from collections.abc import Callable

import structlog

from loadline.core.events import (
    AnyEvent,
    LeaderChanged,
    PauseChanged,
    PausesRead,
    RegisteredWorker,
    RegistryRead,
    WorkerDeregistered,
    WorkerRegistered,
)
from loadline.ports import Change, Entry, Snapshot
from loadline.wire.codec import Rejected, decode_worker_record
from loadline.wire.keys import Keys

_log = structlog.get_logger("loadline")


class Registry:
    """Translates what ``Store.follow`` tells of one namespace."""

    def __init__(self, keys: Keys, scope: str, put: Callable[[AnyEvent], None]) -> None:
        self._keys = keys
        self._scope = scope
        self._put = put

    def on_snapshot(self, snapshot: Snapshot) -> None:
        """All keys, at one revision."""
        workers: list[RegisteredWorker] = []
        paused: dict[str, str] = {}
        leader, epoch = "", 0
        for entry in snapshot.entries:
            match self._split(entry.key):
                case ("workers", *_) as parts:
                    worker = self._worker(parts, entry)
                    if worker is not None:
                        workers.append(worker)
                case ("pause", model):
                    paused[model] = entry.value.decode(errors="replace")
                case ("leader", self._scope):
                    leader, epoch = entry.value.decode(errors="replace"), entry.create_revision
        self._put(LeaderChanged(self._scope, leader, epoch, snapshot.revision))
        self._put(PausesRead(paused))
        self._put(RegistryRead(workers))

    def on_changes(self, changes: list[Change]) -> None:
        """Keys that were written or removed, in order."""
        for change in changes:
            event = self._event(change)
            if event is not None:
                self._put(event)

    def _event(self, change: Change) -> AnyEvent | None:
        entry = change.entry
        match self._split(change.key):
            case ("workers", model, pool, worker) if entry is None:
                return WorkerDeregistered(model, pool, worker)
            case ("workers", *_) as parts if entry is not None:
                registered = self._worker(parts, entry)
                return WorkerRegistered(registered) if registered is not None else None
            case ("pause", model):
                by = entry.value.decode(errors="replace") if entry is not None else ""
                return PauseChanged(model, paused=entry is not None, by=by)
            case ("leader", self._scope):
                leader = entry.value.decode(errors="replace") if entry is not None else ""
                return LeaderChanged(self._scope, leader, entry.create_revision if entry else 0, change.revision)
        return None

    def _split(self, key: str) -> tuple[str, ...]:
        try:
            return self._keys.split(key)
        except ValueError:
            return ()  # somebody else's key under our prefix is none of our business

    @staticmethod
    def _worker(parts: tuple[str, ...], entry: Entry) -> RegisteredWorker | None:
        record = decode_worker_record(parts, entry.value)
        if isinstance(record, Rejected):
            _log.warning("worker_record_refused", key=entry.key, reason=record.reason, detail=record.detail)
            return None
        return RegisteredWorker(record, entry.lease_id)
