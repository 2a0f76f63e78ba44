"""A leased key that moves: its owner has one key, also after a failed compare or an unknown outcome."""

import asyncio
from collections.abc import Sequence

import pytest

from loadline.client.leased_key import LeasedKey, LeaseStep
from loadline.errors import OutcomeUnknown
from loadline.ports import CommitResult, Compare, Write
from tests.support.memory import MemoryStore

OLD, NEW = "/workers/old", "/workers/new"


class LossyStore(MemoryStore):
    """Store whose answer to the next commit with writes is lost, after it was carried out or before."""

    lose = ""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[str, bytes | None]] = []

    async def commit(self, compares: Sequence[Compare], writes: Sequence[Write]) -> CommitResult:
        self.written += [(write.key, write.value) for write in writes]
        names = [write.key for write in writes]
        assert len(set(names)) == len(names), "etcd refuses a transaction that writes a key twice"
        lose, self.lose = self.lose if writes else "", "" if writes else self.lose
        if lose == "before":
            raise OutcomeUnknown("no answer")
        outcome = await super().commit(compares, writes)
        if lose == "after":
            raise OutcomeUnknown("no answer")
        return outcome

    def held(self) -> dict[str, bytes]:
        return {key: entry.value for key, entry in self.server.keys.items()}


async def registered() -> tuple[LossyStore, LeasedKey]:
    store = LossyStore()
    leased = LeasedKey(store, OLD, b"old", 10, lambda _value: False)
    assert await leased.step(0.0) is LeaseStep.RENEWED
    return store, leased


def test_a_move_to_a_key_with_a_stale_record_leaves_the_former_key_too() -> None:
    async def scenario() -> None:
        store, leased = await registered()
        store.server.commit([], [Write(NEW, b"stale")])
        leased.move(NEW, b"new")
        await leased.step(1.0)
        assert store.held() == {NEW: b"new"}

    asyncio.run(scenario())


@pytest.mark.parametrize("lose", ["before", "after"])
@pytest.mark.parametrize("target", [OLD, NEW, "/workers/third"])
def test_a_move_with_an_unknown_outcome_is_followed_by_another(lose: str, target: str) -> None:
    async def scenario() -> None:
        store, leased = await registered()
        leased.move(NEW, b"new")
        store.lose = lose
        with pytest.raises(OutcomeUnknown):
            await leased.step(1.0)
        leased.move(target, b"next")
        await leased.step(2.0)
        assert store.held() == {target: b"next"}

    asyncio.run(scenario())


def test_a_former_key_that_another_client_wrote_stays() -> None:
    async def scenario() -> None:
        store, leased = await registered()
        store.server.commit([], [Write(OLD, b"another"), Write(NEW, b"stale")])
        leased.move(NEW, b"new")
        await leased.step(1.0)
        assert store.held() == {OLD: b"another", NEW: b"new"}

    asyncio.run(scenario())


@pytest.mark.parametrize("moves", [False, True])
def test_the_last_value_is_written_before_the_lease_goes_but_not_to_a_key_that_it_leaves(*, moves: bool) -> None:
    async def scenario() -> None:
        store, leased = await registered()
        leased.write(b"draining")
        if moves:
            leased.move(NEW, b"draining")
        leased.withdraw()
        assert await leased.step(1.0) is LeaseStep.REVOKED
        assert store.held() == {}
        assert store.written == [(OLD, b"old"), *([] if moves else [(OLD, b"draining")])]

    asyncio.run(scenario())
