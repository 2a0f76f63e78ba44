"""Translation of store changes to events: workers, pauses, learned state, the leader and live agents.

Decisions are read only after this agent has won the election.
"""

from collections.abc import Callable
from typing import Final

from loadline.core.vocabulary.events import (
    AgentsChanged,
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
from loadline.core.vocabulary.rejections import Rejection
from loadline.core.vocabulary.samples import RegisteredWorker
from loadline.ports import StoreChange, StoreEntry, StoreSnapshot
from loadline.wire.codec import (
    Rejected,
    decode_epoch,
    decode_leader,
    decode_learned,
    decode_worker_record,
    reject,
)
from loadline.wire.keys import Keys

_WORKER_KEY: Final = 4
"""Number of names in a worker's key: ``workers``, model, pool and worker."""


class RegistryTranslator:
    """Translates the changes from ``Store.follow`` in one namespace. A refused record counts as absent.

    Args:
        keys: The keys of the namespace.
        scope: Scope of the leader to report.
        put: Receives the events.
        on_rejected: Called with every refused record.
        shared: True if agents share the models, so that the live agents are reported too.
    """

    def __init__(
        self,
        keys: Keys,
        scope: str,
        put: Callable[[AnyEvent], None],
        on_rejected: Callable[[Rejected], None],
        *,
        shared: bool = False,
    ) -> None:
        self._keys = keys
        self._scope = scope
        self._put = put
        self._on_rejected = on_rejected
        self._epoch = self._revision = 0
        self._shared = shared
        self._agents: dict[str, None] = {}

    def on_snapshot(self, snapshot: StoreSnapshot) -> None:
        """Translate a snapshot of all keys; one with a lower epoch or revision than before shows a loss of data."""
        before = self._epoch, self._revision
        workers: list[RegisteredWorker] = []
        paused: dict[str, str] = {}
        learned: dict[str, LearnedState] = {}
        leader: StoreEntry | None = None
        self._epoch, self._revision = 0, snapshot.revision
        for entry in snapshot.entries:
            match self._split(entry.key, written=True):
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
                    leader = entry
                case ("leader", self._scope, "epoch"):
                    self._epoch = decode_epoch(entry.value)
        went_back = self._epoch < before[0] or self._revision < before[1]
        self._put(self._leader(leader, snapshot.revision, went_back=went_back))
        if self._shared:
            keys = (self._split(entry.key, written=False) for entry in snapshot.entries)
            self._agents = {name[1]: None for name in keys if len(name) == 2 and name[0] == "agents"}  # noqa: PLR2004
            self._put(AgentsChanged(sorted(self._agents)))
        self._put(PausesRead(paused, snapshot.revision, went_back))
        self._put(LearnedRead(learned))
        self._put(RegistryRead(workers))

    def on_changes(self, changes: list[StoreChange]) -> None:
        """Translate writes and removals, in order."""
        for change in changes:
            self._revision = change.revision
            event = self._event(change)
            if event is not None:
                self._put(event)

    def _event(self, change: StoreChange) -> AnyEvent | None:
        entry = change.entry
        match self._split(change.key, written=entry is not None):
            case ("workers", model, pool, worker) as parts:
                registered = self._worker(parts, entry) if entry is not None else None
                return WorkerDeregistered(model, pool, worker) if registered is None else WorkerRegistered(registered)
            case ("pause", model):
                by = entry.value.decode(errors="replace") if entry is not None else ""
                return PauseChanged(model, paused=entry is not None, by=by, revision=change.revision)
            case ("state", model):
                return LearnedChanged(model, self._learned(model, entry) if entry is not None else None)
            case ("agents", name) if self._shared:
                return self._agent(name, present=entry is not None)
            case ("leader", self._scope):
                return self._leader(entry, change.revision)
            case ("leader", self._scope, "epoch"):  # the leader's key follows, written by the same transaction
                self._epoch = decode_epoch(entry.value) if entry is not None else self._epoch
        return None

    def _agent(self, name: str, *, present: bool) -> AgentsChanged | None:
        if present == (name in self._agents):
            return None
        if present:
            self._agents[name] = None
        else:
            del self._agents[name]
        return AgentsChanged(sorted(self._agents))

    def _leader(self, entry: StoreEntry | None, revision: int, *, went_back: bool = False) -> LeaderChanged:
        if entry is None:
            return LeaderChanged(self._scope, "", 0, revision, epoch=self._epoch, store_went_back=went_back)
        name, beat = decode_leader(entry.value), entry.mod_revision
        return LeaderChanged(self._scope, name, entry.lease_id, revision, beat, self._epoch, went_back)

    def _split(self, key: str, *, written: bool) -> tuple[str, ...]:
        """Return the names in a key; none for a key of another program, or in another encoding.

        Such a key of a worker, or one that lacks the pool, is refused once it is ``written``: a worker of another
        language, of a model such as ``llama-3.1``, would wait for ever to be counted.
        """
        is_of_worker = key.startswith(self._keys.workers)
        try:
            names = self._keys.split(key)
            problem = (
                "a worker's key has its model, pool and name" if is_of_worker and len(names) != _WORKER_KEY else ""
            )
        except ValueError as error:
            names, problem = (), str(error)
        if problem and written and is_of_worker:
            self._on_rejected(reject(Rejection.SUBJECT_UNKNOWN, key, problem))
        return names

    def _worker(self, parts: tuple[str, ...], entry: StoreEntry) -> RegisteredWorker | None:
        record = decode_worker_record(parts, entry.value, entry.bytes_left_out)
        if isinstance(record, Rejected):
            self._on_rejected(record)
            return None
        return RegisteredWorker(record, entry.lease_id, entry.create_revision)

    def _learned(self, model: str, entry: StoreEntry) -> LearnedState | None:
        learned = decode_learned(model, entry.value)
        if isinstance(learned, Rejected):
            self._on_rejected(learned)
            return None
        return learned
