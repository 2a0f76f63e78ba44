"""Memory of one read of the store, whatever a single login has written."""

from loadline.adapters.kept_entries import WRITER_BYTES_MAX, KeptEntries
from loadline.ports import StoreEntry
from loadline.wire.keys import WORKER_RECORD_BYTES_MAX, Keys

KEYS = Keys("default")


def entry(key: str, created: int, size: int = 300) -> StoreEntry:
    return StoreEntry(key, b"x" * size, created, created, 0)


def test_a_login_that_writes_any_number_of_records_takes_a_bounded_part_of_memory() -> None:
    kept = KeptEntries(KEYS.writer)
    for number in range(5_000):  # 80 MB
        kept.add(entry(KEYS.worker("evil", "p", f"fake-{number:05}"), 100 + number, WORKER_RECORD_BYTES_MAX))
    assert sum(len(one.value) for one in kept.in_key_order()) <= WRITER_BYTES_MAX
    assert kept.left_out() == {"evil": 5_000 - len(kept.in_key_order())}


def test_the_records_that_were_created_first_are_kept_whatever_their_keys_are() -> None:
    kept = KeptEntries(KEYS.writer, bytes_max=10_000)
    honest = [KEYS.worker("m", "p", f"z-{number}") for number in range(5)]
    for number in range(100):
        kept.add(entry(KEYS.worker("m", "p", f"a-{number:02}"), 100 + number))
    for created, key in enumerate(honest):
        kept.add(entry(key, created))
    assert set(honest) <= {one.key for one in kept.in_key_order()}


def test_other_models_and_agents_keep_all_of_their_keys_in_order() -> None:
    kept = KeptEntries(KEYS.writer, bytes_max=10_000)
    others = [KEYS.decision("m"), KEYS.leader("all"), KEYS.worker("other", "p", "w")]
    for number in range(100):
        kept.add(entry(KEYS.worker("evil", "p", f"fake-{number:02}"), number))
    for key in others:
        kept.add(entry(key, 1_000, 5_000))
    keys = [one.key for one in kept.in_key_order()]
    assert set(others) <= set(keys)
    assert keys == sorted(keys)
