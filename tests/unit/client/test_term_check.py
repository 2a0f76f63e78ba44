"""Comparison of a worker's fences with the terms in etcd."""

import asyncio
from collections.abc import Callable

import pytest
from structlog.testing import capture_logs

from loadline.client import term_check as term_check_module
from loadline.client.fence import EpochFence
from loadline.client.term_check import TermCheck
from loadline.errors import StoreUnavailable
from loadline.ports import StoreSnapshot, Write
from loadline.wire.keys import Keys
from tests.support.memory import MemoryStore
from tests.waiting import until

KEYS = Keys("default")
FORGED = 2**53


class ReadCountingStore(MemoryStore):
    """Store that counts reads, and lets a test act in each."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self.on_read: Callable[[], object] = lambda: None

    async def read(self, prefix: str) -> StoreSnapshot:
        self.reads += 1
        found = await super().read(prefix)
        self.on_read()
        return found


def fence_at(*epochs: int) -> EpochFence:
    fence = EpochFence()
    for epoch in epochs:
        fence.admit(epoch)
    return fence


@pytest.mark.parametrize(
    ("seen", "refused", "leading", "expected"),
    [
        (FORGED, 5, [5], 5),
        (FORGED, 5, [9, 5], 5),  # of two shards, the sender's
        (FORGED, 9, [9, 5], 9),
        (9, 5, [5, 9], 9),  # a leader has it
        (9, 5, [], 9),  # nobody leads
        (20, 12, [10, 30], 20),  # of a former leader, next to another shard's
    ],
)
def test_a_fence_is_lowered_to_the_epoch_of_a_leader_that_was_refused_if_no_leader_has_the_highest(
    seen: int, refused: int, leading: list[int], expected: int
) -> None:
    fence = fence_at(seen, refused)
    fence.compare(leading)
    assert (fence.highest, fence.refused) == (expected, 0)


async def checked(fence: EpochFence, store: ReadCountingStore, *terms: tuple[str, bytes]) -> None:
    """Run a check, requested ten times, until it has read."""
    await store.commit([], [Write(key, value) for key, value in terms])
    check = TermCheck(store, KEYS, {"drain": fence}, "w")
    task = asyncio.create_task(check.run())
    for _ in range(10):
        check.request()
        await asyncio.sleep(0)
    await until(lambda: store.reads > 0 or not fence.refused, "the check")
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait({task})


def test_only_epochs_of_present_leaders_count_and_many_requests_cause_one_read() -> None:
    store, fence = ReadCountingStore(), fence_at(FORGED, 5)
    epochs = [(KEYS.leader("all"), b"a"), (KEYS.epoch("all"), b"5"), (KEYS.epoch("migration"), b"3")]
    asyncio.run(checked(fence, store, *epochs, (KEYS.layout, b"x")))
    assert (fence.highest, fence.refused, store.reads) == (5, 0, 1)


def test_without_a_stale_command_nothing_is_read() -> None:
    store, fence = ReadCountingStore(), fence_at(5, FORGED)
    asyncio.run(checked(fence, store, (KEYS.leader("all"), b"a"), (KEYS.epoch("all"), b"5")))
    assert (fence.highest, store.reads) == (FORGED, 0)


def test_a_command_of_a_new_leader_during_the_read_is_not_taken_for_forged() -> None:
    store, fence = ReadCountingStore(), fence_at(5, 4)
    store.on_read = lambda: fence.admit(6)
    asyncio.run(checked(fence, store, (KEYS.leader("all"), b"a"), (KEYS.epoch("all"), b"4")))
    assert fence.highest == 6


def test_each_outage_is_logged_once_and_a_command_refused_after_it_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    store, fence = ReadCountingStore(), fence_at(FORGED)

    def fail() -> None:
        raise StoreUnavailable("refused")

    async def scenario() -> None:
        check = TermCheck(store, KEYS, {"drain": fence}, "w")
        task = asyncio.create_task(check.run())
        for outage in (True, True, False, True):
            store.on_read, reads = fail if outage else lambda: None, store.reads
            fence.admit(4)
            check.request()
            await until(lambda: store.reads > reads, "the read")  # noqa: B023 - awaited here
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})

    monkeypatch.setattr(term_check_module, "_INTERVAL_S", 0.0)
    with capture_logs() as lines:
        asyncio.run(scenario())
    assert [line["event"] for line in lines] == ["epochs_unread"] * 2
