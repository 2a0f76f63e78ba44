"""Keys of workers in another encoding or form: refused with their name, and no event."""

import pytest

from loadline.core.vocabulary.events import AnyEvent, RegistryRead
from loadline.core.vocabulary.rejections import Rejection
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.ports import StoreChange, StoreEntry, StoreSnapshot
from loadline.runtime.registry import RegistryTranslator
from loadline.wire.codec import Rejected, encode
from loadline.wire.keys import Keys

KEYS = Keys("default")
VALUE = encode(WorkerRecord("llama-3.1", "p", "w", "decode", 1))


@pytest.mark.parametrize(
    ("key", "detail"),
    [
        ("workers/llama-3.1/p/w", "token 'llama-3.1' has characters that must be percent-encoded"),
        ("workers/meta/llama/p/w", "has more than 4 segments"),
        ("workers/llama-3%2e1/p/w", "which is 'llama-3%2E1'"),
        ("workers/llama/w", "a worker's key has its model, pool and name"),
    ],
)
def test_a_worker_under_a_key_in_another_encoding_is_refused(key: str, detail: str) -> None:
    events, refused = list[AnyEvent](), list[Rejected]()
    translator = RegistryTranslator(KEYS, "all", events.append, refused.append, shared=True)
    key = f"{KEYS.prefix}{key}"
    entry = StoreEntry(key, VALUE, mod_revision=2, create_revision=2, lease_id=1)
    translator.on_snapshot(StoreSnapshot([entry], 2))
    translator.on_changes([StoreChange(key, entry, 3), StoreChange(key, None, 4)])
    assert [(one.reason, one.subject) for one in refused] == [(Rejection.SUBJECT_UNKNOWN, key)] * 2
    assert detail in refused[0].detail
    assert events[-1] == RegistryRead([])


def test_keys_of_other_programs_are_ignored() -> None:
    events, refused = list[AnyEvent](), list[Rejected]()
    translator = RegistryTranslator(KEYS, "all", events.append, refused.append)
    translator.on_changes([StoreChange(f"{KEYS.prefix}others/a.b", StoreEntry("k", b"", 1, 1, 0), 3)])
    assert (events, refused) == ([], [])
