"""Translation of store changes to events: workers, pauses, learned state and the leader.

Decisions are read only after this agent has won the election.
"""

from collections.abc import Callable

from loadline.core.vocabulary.events import (
    AnyEvent,
    LeaderChanged,
    LearnedChanged,
    LearnedRead,
    PauseChanged,
    PausesRead,
    RegistryRead,
    WorkerDeregistered,
    WorkerRegistered,
)
from loadline.core.vocabulary.learned import LearnedState
from loadline.core.vocabulary.samples import RegisteredWorker
from loadline.ports import StoreChange, StoreEntry, StoreSnapshot
from loadline.wire.codec import Rejected, decode_learned, decode_worker_record
from loadline.wire.keys import Keys


class RegistryTranslator:
    """Translates the changes from ``Store.follow`` in one namespace. A refused record counts as absent.

    Args:
        keys: The keys of the namespace.
        scope: Scope of the leader to report.
        put: Receives the events.
        on_rejected: Called with every refused record.
    """

    def __init__(
        self, keys: Keys, scope: str, put: Callable[[AnyEvent], None], on_rejected: Callable[[Rejected], None]
    ) -> None:
        self._keys = keys
        self._scope = scope
        self._put = put
        self._on_rejected = on_rejected

    def on_snapshot(self, snapshot: StoreSnapshot) -> None:
        """Translate a snapshot of all keys."""
        workers: list[RegisteredWorker] = []
        paused: dict[str, str] = {}
        learned: dict[str, LearnedState] = {}
        leader = LeaderChanged(self._scope, "", 0, snapshot.revision)
        for entry in snapshot.entries:
            match self._split(entry.key):
                case ("workers", _, _, _) as parts:
                    worker = self._worker(parts, entry)
                    if worker is not None:
                        workers.append(worker)
                case ("pause", model):
                    paused[model] = entry.value.decode(errors="replace")
                case ("state", model):
                    known = self._learned(model, entry)
                    if known is not None:
                        learned[model] = known
                case ("leader", self._scope):
                    leader = self._leader(entry, snapshot.revision)
        self._put(leader)
        self._put(PausesRead(paused))
        self._put(LearnedRead(learned))
        self._put(RegistryRead(workers))

    def on_changes(self, changes: list[StoreChange]) -> None:
        """Translate writes and removals, in order."""
        for change in changes:
            event = self._event(change)
            if event is not None:
                self._put(event)

    def _event(self, change: StoreChange) -> AnyEvent | None:
        entry = change.entry
        match self._split(change.key):
            case ("workers", model, pool, worker) as parts:
                registered = self._worker(parts, entry) if entry is not None else None
                return WorkerDeregistered(model, pool, worker) if registered is None else WorkerRegistered(registered)
            case ("pause", model):
                by = entry.value.decode(errors="replace") if entry is not None else ""
                return PauseChanged(model, paused=entry is not None, by=by)
            case ("state", model):
                return LearnedChanged(model, self._learned(model, entry) if entry is not None else None)
            case ("leader", self._scope):
                return self._leader(entry, change.revision)
        return None

    def _leader(self, entry: StoreEntry | None, revision: int) -> LeaderChanged:
        if entry is None:
            return LeaderChanged(self._scope, "", 0, revision)
        name = entry.value.decode(errors="replace")
        return LeaderChanged(self._scope, name, entry.create_revision, revision, entry.mod_revision)

    def _split(self, key: str) -> tuple[str, ...]:
        try:
            return self._keys.split(key)
        except ValueError:
            return ()  # ignore keys of other programs under our prefix

    def _worker(self, parts: tuple[str, ...], entry: StoreEntry) -> RegisteredWorker | None:
        record = decode_worker_record(parts, entry.value, entry.bytes_left_out)
        if isinstance(record, Rejected):
            self._on_rejected(record)
            return None
        return RegisteredWorker(record, entry.lease_id)

    def _learned(self, model: str, entry: StoreEntry) -> LearnedState | None:
        learned = decode_learned(model, entry.value)
        if isinstance(learned, Rejected):
            self._on_rejected(learned)
            return None
        return learned
