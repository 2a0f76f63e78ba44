"""Registered workers of a model, as a frontend sees them."""

from collections.abc import Callable, Sequence

from loadline.adapters.logs import bounded
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.ports import Store, StoreChange, StoreEntry, StoreSnapshot
from loadline.wire.codec import Rejected, decode_worker_record
from loadline.wire.keys import Keys
from loadline.wire.subjects import encode_token

_log = bounded("worker_registry")


class WorkerRegistry:
    """Registered workers of one model; during an outage of etcd, those last known.

    Args:
        namespace: Keys live under ``/loadline/<namespace>/``.
        model: Name of the model.
        on_change: Called with the records of all registered workers after every change.
    """

    def __init__(self, namespace: str, model: str, on_change: Callable[[Sequence[WorkerRecord]], object]) -> None:
        self._keys = Keys(namespace)
        self._model = model
        self._records: dict[str, WorkerRecord] = {}
        self._on_change = on_change

    async def follow(self, store: Store) -> None:
        """Follow the records until cancelled."""
        await store.follow(
            f"{self._keys.workers}{encode_token(self._model)}/",
            self.read,
            self.apply,
            lambda connected: _log.info("etcd", model=self._model, connected=connected),
        )

    def read(self, snapshot: StoreSnapshot) -> None:
        """Replace all records with those of a snapshot."""
        self._records.clear()
        for entry in snapshot.entries:
            self._put(entry.key, entry)
        self._notify()

    def apply(self, changes: list[StoreChange]) -> None:
        """Apply changes of records."""
        for change in changes:
            self._put(change.key, change.entry)
        self._notify()

    def _notify(self) -> None:
        self._on_change(list(self._records.values()))

    def _put(self, key: str, entry: StoreEntry | None) -> None:
        self._records.pop(key, None)
        if entry is None:
            return
        try:
            record = decode_worker_record(self._keys.split(key), entry.value, entry.bytes_left_out)
        except ValueError as error:
            _log.warning("record_refused", key=key, detail=str(error))
            return
        if isinstance(record, Rejected):
            _log.warning("record_refused", key=key, detail=record.detail)
        else:
            self._records[key] = record
