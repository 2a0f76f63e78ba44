import pytest
from structlog.testing import capture_logs

from loadline.client.worker_registry import WorkerRegistry
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.ports import StoreChange, StoreEntry, StoreSnapshot
from loadline.wire.codec import encode
from loadline.wire.keys import Keys

KEYS = Keys("default")


def entry(worker: str, *, value: bytes | None = None) -> StoreEntry:
    record = WorkerRecord("llama", "all", worker, "aggregated", incarnation=1)
    return StoreEntry(KEYS.worker("llama", "all", worker), encode(record) if value is None else value, 1, 1)


class Fleet:
    def __init__(self) -> None:
        self.seen: list[list[str]] = []
        self.registry = WorkerRegistry(
            "default", "llama", lambda records: self.seen.append([one.worker for one in records])
        )


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


@pytest.mark.parametrize(
    "key",
    [
        KEYS.worker("llama", "all", "other"),
        KEYS.worker("llama", "another", "b"),
        KEYS.worker("llama", "all", "b") + "/more",
        KEYS.workers + "llama/all/%62",
    ],
)
def test_a_record_under_the_key_of_another_worker_counts_as_none(key: str) -> None:
    fleet = Fleet()
    moved = StoreEntry(key, entry("b").value, 1, 1)
    with capture_logs() as lines:
        fleet.registry.read(StoreSnapshot([entry("a"), moved], 2))
        fleet.registry.apply([StoreChange(key, moved, 3)])
    assert fleet.seen == [["a"], ["a"]]
    assert [(line["event"], line["key"]) for line in lines] == [("record_refused", key)] * 2
