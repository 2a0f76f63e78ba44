"""Removal of the key of a worker that does not leave, in the store."""

import asyncio

import pytest

from loadline.core.vocabulary.effects import RemoveWorker
from loadline.ports import Write
from tests.support.memory import KEYS, MemoryStore, effect_runner

FAKE = KEYS.worker("m", "decode", "fake")


async def keys_after_removal(store: MemoryStore, lease_id: int) -> list[str]:
    await effect_runner(lambda _event: None, store).perform(RemoveWorker("m", "decode", "fake", lease_id))
    return [entry.key for entry in (await store.read("")).entries]


def test_removing_a_worker_leaves_all_other_keys_under_its_lease() -> None:
    """A worker may register under the lease of the leader, or of a worker of another model."""

    async def scenario() -> None:
        store = MemoryStore()
        lease = await store.grant(10)
        others = [KEYS.leader("all"), KEYS.worker("other", "decode", "w")]
        await store.commit([], [Write(key, b"", lease) for key in (FAKE, *others)])
        assert await keys_after_removal(store, lease) == others
        assert await store.keep_alive(lease) > 0

    asyncio.run(scenario())


@pytest.mark.parametrize("known", [True, False])
def test_a_worker_is_removed_under_the_known_lease_only(*, known: bool) -> None:
    async def scenario() -> None:
        store = MemoryStore()
        await store.commit([], [Write(FAKE, b"")])  # without a lease: it would stay for ever
        assert await keys_after_removal(store, 0 if known else 7) == ([] if known else [FAKE])

    asyncio.run(scenario())
