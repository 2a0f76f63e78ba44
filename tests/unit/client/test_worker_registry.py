from loadline.client.worker_registry import WorkerRegistry
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.ports import StoreChange, StoreEntry, StoreSnapshot
from loadline.wire.codec import encode


def entry(worker: str, *, value: bytes | None = None) -> StoreEntry:
    record = WorkerRecord("llama", "all", worker, "aggregated", incarnation=1)
    return StoreEntry(f"workers/llama/all/{worker}", encode(record) if value is None else value, 1, 1)


class Fleet:
    def __init__(self) -> None:
        self.seen: list[list[str]] = []
        self.registry = WorkerRegistry(lambda records: self.seen.append([one.worker for one in records]))


def test_a_snapshot_replaces_all_records() -> None:
    fleet = Fleet()
    fleet.registry.read(StoreSnapshot([entry("a"), entry("b")], 2))
    fleet.registry.read(StoreSnapshot([entry("b"), entry("c")], 3))
    assert fleet.seen == [["a", "b"], ["b", "c"]]


def test_changes_add_replace_and_remove_records() -> None:
    fleet = Fleet()
    fleet.registry.apply([StoreChange(entry(name).key, entry(name), 1) for name in "ab"])
    fleet.registry.apply([StoreChange(entry("a").key, None, 2)])
    assert fleet.seen == [["a", "b"], ["b"]]


def test_an_invalid_record_counts_as_none() -> None:
    fleet = Fleet()
    fleet.registry.read(StoreSnapshot([entry("a"), entry("b", value=b"{}")], 2))
    fleet.registry.apply([StoreChange(entry("a").key, entry("a", value=b"\xff"), 3)])
    assert fleet.seen == [["a"], []]
