"""Contract of ``ports.Store``. Written against the port, so that another store is one more parameter."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from loadline.adapters.etcd_store import EtcdStore
from loadline.config import EtcdKnobs
from loadline.ports import CommitResult, Compare, Store, StoreChange, StoreEntry, StoreSnapshot, Write
from loadline.sim.world.store import VirtualStore
from loadline.sim.world.timeline import Timeline
from tests.support.driven import DrivenStore, Driver
from tests.waiting import until

MakeStore = Callable[[], Store]


@pytest.fixture(params=[pytest.param("etcd", marks=pytest.mark.process), "virtual"])
def make_store(request: pytest.FixtureRequest) -> MakeStore:
    """Return a function that makes clients of one store."""
    if request.param == "etcd":
        etcd_url = request.getfixturevalue("etcd_url")
        # A thousand writes at once on a busy machine take more than the two seconds that a call may take by default.
        return lambda: EtcdStore(EtcdKnobs(endpoints=(etcd_url,), timeout_ms=10_000))
    driver = Driver(Timeline())
    virtual = VirtualStore(driver.timeline)
    return lambda: DrivenStore(driver, virtual.connection())


@contextlib.asynccontextmanager
async def opened(make_store: MakeStore) -> AsyncIterator[Store]:
    store = make_store()
    try:
        yield store
    finally:
        await store.close()


class Follower:
    """Follower of a prefix that records all snapshots and changes."""

    def __init__(self, store: Store, prefix: str) -> None:
        self.snapshots: list[StoreSnapshot] = []
        self.changes: list[StoreChange] = []
        self.connections: list[bool] = []
        self._follow = store.follow(prefix, self.snapshots.append, self.changes.extend, self.connections.append)

    @contextlib.asynccontextmanager
    async def following(self) -> AsyncIterator["Follower"]:
        task = asyncio.create_task(self._follow)
        try:
            await until(lambda: bool(self.snapshots))
            yield self
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def put(store: Store, key: str, value: bytes, lease_id: int = 0) -> CommitResult:
    return await store.commit([], [Write(key, value, lease_id)])


def test_a_read_returns_the_keys_of_the_prefix_in_order(make_store: MakeStore, own_name: str) -> None:
    async def scenario() -> None:
        async with opened(make_store) as store:
            empty = await store.read(f"{own_name}/")
            assert empty.entries == []
            for name in ("b", "a", "ü", "c/d"):
                outcome = await put(store, f"{own_name}/{name}", name.encode())
            await put(store, f"{own_name}0", b"a neighbour")
            snapshot = await store.read(f"{own_name}/")
            assert [entry.key for entry in snapshot.entries] == [f"{own_name}/{n}" for n in ("a", "b", "c/d", "ü")]
            assert [entry.value for entry in snapshot.entries] == [b"a", b"b", b"c/d", "ü".encode()]
            assert snapshot.entries[2].mod_revision == outcome.revision
            assert snapshot.revision > outcome.revision > empty.revision

    asyncio.run(scenario())


def test_a_get_returns_one_key_only(make_store: MakeStore, own_name: str) -> None:
    async def scenario() -> None:
        async with opened(make_store) as store:
            await put(store, f"{own_name}7", b"a neighbour")
            assert await store.get(own_name) is None
            written = await put(store, own_name, b"1")
            assert await store.get(own_name) == StoreEntry(own_name, b"1", written.revision, written.revision)

    asyncio.run(scenario())


def test_a_prefix_of_many_keys_is_read_completely_and_in_order(make_store: MakeStore, own_name: str) -> None:
    async def scenario() -> None:
        async with opened(make_store) as store:
            keys = [f"{own_name}/{index:04}" for index in range(300)]
            for start in range(0, len(keys), 100):
                await store.commit([], [Write(key, key.encode()) for key in keys[start : start + 100]])
            for _ in range(2):  # the second read begins with the page length that the first one ended with
                snapshot = await store.read(f"{own_name}/")
                assert [entry.key for entry in snapshot.entries] == keys
            assert snapshot.revision >= max(entry.mod_revision for entry in snapshot.entries)

    asyncio.run(scenario())


def test_any_value_is_kept_even_an_empty_one(make_store: MakeStore, own_name: str) -> None:
    async def scenario() -> None:
        async with opened(make_store) as store:
            values = [b"", bytes(range(256)), b"x" * 100_000]
            for index, value in enumerate(values):
                await put(store, f"{own_name}/{index}", value)
            assert [entry.value for entry in (await store.read(f"{own_name}/")).entries] == values

    asyncio.run(scenario())


def test_a_commit_is_applied_only_if_all_comparisons_hold(make_store: MakeStore, own_name: str) -> None:
    async def scenario() -> None:
        async with opened(make_store) as store:
            one, two = f"{own_name}/1", f"{own_name}/2"
            absent = [Compare(one, "create", 0), Compare(two, "mod", 0)]
            first = await store.commit(absent, [Write(one, b"a"), Write(two, b"a")])
            assert first.committed
            assert not (await store.commit(absent, [Write(one, b"b")])).committed

            second = await store.commit([Compare(one, "mod", first.revision)], [Write(one, b"c"), Write(two, None)])
            assert second == CommitResult(committed=True, revision=second.revision)
            assert second.revision > first.revision
            stale = [Compare(one, "create", first.revision), Compare(one, "mod", first.revision)]
            assert not (await store.commit(stale, [Write(one, b"d")])).committed
            assert (await store.read(own_name)).entries == [StoreEntry(one, b"c", first.revision, second.revision)]

    asyncio.run(scenario())


def test_a_commit_compares_the_lease_of_a_key(make_store: MakeStore, own_name: str) -> None:
    async def scenario() -> None:
        async with opened(make_store) as store:
            ours, other = await store.grant(60), await store.grant(60)
            unleased = [Compare(own_name, "lease", 0)]
            assert (await store.commit(unleased, [Write(own_name, b"a", ours)])).committed
            assert not (await store.commit(unleased, [Write(own_name, b"b")])).committed
            assert not (await store.commit([Compare(own_name, "lease", other)], [Write(own_name, b"b")])).committed
            assert (await store.commit([Compare(own_name, "lease", ours)], [Write(own_name, b"c", ours)])).committed
            await store.revoke(ours)
            assert not (await store.commit([Compare(own_name, "lease", ours)], [Write(own_name, b"d")])).committed

    asyncio.run(scenario())


def test_a_commit_without_writes_compares_and_changes_nothing(make_store: MakeStore, own_name: str) -> None:
    async def scenario() -> None:
        async with opened(make_store) as store:
            written = await put(store, own_name, b"1")
            assert (await store.commit([Compare(own_name, "mod", written.revision)], [])).committed
            assert not (await store.commit([Compare(own_name, "mod", written.revision - 1)], [])).committed
            assert (await store.read(own_name)).entries == [
                StoreEntry(own_name, b"1", written.revision, written.revision)
            ]

    asyncio.run(scenario())


def test_one_of_many_concurrent_creations_of_a_key_succeeds(make_store: MakeStore, own_name: str) -> None:
    async def scenario() -> None:
        async with opened(make_store) as store:
            claims = [store.commit([Compare(own_name, "create", 0)], [Write(own_name, b"%d" % i)]) for i in range(30)]
            outcomes = await asyncio.gather(*claims)
            assert [outcome.committed for outcome in outcomes].count(True) == 1
            winner = [outcome.committed for outcome in outcomes].index(True)
            assert (await store.read(own_name)).entries[0].value == b"%d" % winner

    asyncio.run(scenario())


def test_revoking_a_lease_removes_its_keys(make_store: MakeStore, own_name: str) -> None:
    async def scenario() -> None:
        async with opened(make_store) as store:
            lease = await store.grant(60)
            assert await store.keep_alive(lease) == 60
            await put(store, f"{own_name}/leased", b"", lease)
            await put(store, f"{own_name}/kept", b"")
            assert [entry.lease_id for entry in (await store.read(f"{own_name}/")).entries] == [0, lease]
            await store.revoke(lease)
            assert [entry.key for entry in (await store.read(f"{own_name}/")).entries] == [f"{own_name}/kept"]
            assert await store.keep_alive(lease) == 0
            await store.revoke(lease)

    asyncio.run(scenario())


def test_a_lease_that_is_not_kept_alive_expires(make_store: MakeStore, own_name: str) -> None:
    async def scenario() -> None:
        async with opened(make_store) as store, Follower(store, own_name).following() as follower:
            lease = await store.grant(1)
            await put(store, own_name, b"", lease)
            await until(lambda: [(c.key, c.entry) for c in follower.changes[-1:]] == [(own_name, None)])
            assert await store.keep_alive(lease) == 0

    asyncio.run(scenario())


def test_a_follower_gets_a_snapshot_and_then_every_change_in_order(make_store: MakeStore, own_name: str) -> None:
    async def scenario() -> None:
        async with opened(make_store) as store, opened(make_store) as writer:
            await put(writer, f"{own_name}/old", b"1")
            async with Follower(store, f"{own_name}/").following() as follower:
                await put(writer, f"{own_name}/new", b"2")
                await put(writer, f"{own_name}0", b"a neighbour")
                await writer.commit([], [Write(f"{own_name}/new", b"3"), Write(f"{own_name}/old", None)])
                await until(lambda: len(follower.changes) >= 3)
        assert [[entry.value for entry in snapshot.entries] for snapshot in follower.snapshots] == [[b"1"]]
        seen = [(change.key.removeprefix(own_name), change.entry and change.entry.value) for change in follower.changes]
        assert seen[0] == ("/new", b"2")
        assert sorted(seen[1:]) == [("/new", b"3"), ("/old", None)]
        assert follower.connections == [True]

    asyncio.run(scenario())


def test_a_burst_of_a_thousand_keys_is_followed_without_loss(make_store: MakeStore, own_name: str) -> None:
    async def scenario() -> None:
        async with opened(make_store) as store, opened(make_store) as writer:
            async with Follower(store, f"{own_name}/").following() as follower:
                keys = [f"{own_name}/{index:04}" for index in range(1_000)]
                lease = await writer.grant(600)
                await asyncio.gather(*(put(writer, key, b"x" * 700, lease) for key in keys))
                await until(lambda: len(follower.changes) >= len(keys))
                assert sorted(change.key for change in follower.changes) == keys
                revisions = [change.entry.mod_revision for change in follower.changes if change.entry]
                assert revisions == sorted(revisions)
                # One revocation removes them all at once: a single answer of some hundred kB.
                await writer.revoke(lease)
                await until(lambda: len(follower.changes) >= 2 * len(keys))
                assert sorted(change.key for change in follower.changes[1_000:] if change.entry is None) == keys
            assert len(follower.snapshots) == 1

    asyncio.run(scenario())
