"""Store with an etcd server that is killed, frozen, compacted or denies permissions."""

import asyncio
import base64
import contextlib
import json
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import structlog

from loadline.adapters import etcd_store
from loadline.adapters.etcd_store import EtcdStore
from loadline.adapters.logs import bounded
from loadline.config import EtcdKnobs
from loadline.errors import ConfigError, OutcomeUnknown, StoreDenied, StoreUnavailable
from loadline.ports import Compare, StoreChange, StoreSnapshot, Write
from loadline.rig.server_processes import EtcdServer
from tests.waiting import DEADLINE_S, until

pytestmark = pytest.mark.process

MakeServer = Callable[[], EtcdServer]


class Follower:
    """State of a prefix as its follower knows it."""

    def __init__(self) -> None:
        self.state: dict[str, bytes] = {}
        self.snapshots = 0
        self.connections: list[bool] = []

    def on_snapshot(self, snapshot: StoreSnapshot) -> None:
        self.snapshots += 1
        self.state = {entry.key: entry.value for entry in snapshot.entries}

    def on_changes(self, changes: list[StoreChange]) -> None:
        for change in changes:
            if change.entry is None:
                self.state.pop(change.key, None)
            else:
                self.state[change.key] = change.entry.value

    @contextlib.asynccontextmanager
    async def following(self, store: EtcdStore, prefix: str) -> AsyncIterator[None]:
        task = asyncio.create_task(store.follow(prefix, self.on_snapshot, self.on_changes, self.connections.append))
        try:
            await until(lambda: bool(self.snapshots))
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


@contextlib.asynccontextmanager
async def opened(*servers: EtcdServer, knobs: EtcdKnobs | None = None) -> AsyncIterator[EtcdStore]:
    store = EtcdStore(knobs or EtcdKnobs(endpoints=tuple(server.url for server in servers), timeout_ms=1_000))
    try:
        yield store
    finally:
        await store.close()


async def put(store: EtcdStore, key: str, value: bytes = b"") -> None:
    assert (await store.commit([], [Write(key, value)])).committed


def post(server: EtcdServer, path: str, body: dict[str, Any], token: str = "") -> dict[str, Any]:
    """Call etcd directly, not through the code under test."""
    request = urllib.request.Request(  # noqa: S310 - loopback
        f"{server.url}/v3{path}", json.dumps(body).encode(), {"Authorization": token} if token else {}
    )
    with urllib.request.urlopen(request, timeout=10) as response:  # noqa: S310
        answer: dict[str, Any] = json.loads(response.read())
        return answer


def encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def test_an_outage_is_logged_once_for_each_of_two_losses(
    private_etcd: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd_store, "_log", bounded("etcd"))
    reads: list[None] = []
    read = EtcdStore.read

    async def count(store: EtcdStore, prefix: str) -> StoreSnapshot:
        reads.append(None)
        return await read(store, prefix)

    monkeypatch.setattr(EtcdStore, "read", count)

    async def scenario() -> None:
        server, follower = private_etcd(), Follower()
        async with opened(server) as store, follower.following(store, "a/"):
            for losses in (1, 2):
                server.kill()
                reads.clear()
                follower.snapshots = 0
                await until(lambda: len(reads) >= 3)
                refused = [line for line in lines if "Cannot connect to host 127.0.0.1" in line["detail"]]
                assert len(refused) == losses, lines
                server.start()
                await until(lambda: bool(follower.snapshots))

    with structlog.testing.capture_logs() as lines:
        asyncio.run(scenario())


def test_a_follower_misses_no_change_when_etcd_is_killed(private_etcd: MakeServer) -> None:
    async def scenario() -> None:
        server = private_etcd()
        follower = Follower()
        async with opened(server) as store, opened(server) as other, follower.following(store, "a/"):
            await put(other, "a/before", b"1")
            await put(other, "a/gone", b"1")
            await until(lambda: set(follower.state) == {"a/before", "a/gone"})
            server.kill()
            await until(lambda: follower.connections == [True, False])
            server.start()
            # If this is before the follower has reconnected, the snapshot has it, otherwise a change.
            await put(other, "a/after", b"2")
            await other.commit([], [Write("a/gone", None)])
            await until(lambda: follower.connections == [True, False, True])
            await put(other, "a/last", b"3")
            await until(lambda: follower.state == {"a/before": b"1", "a/after": b"2", "a/last": b"3"})

    asyncio.run(scenario())


def test_a_commit_to_a_dead_server_certainly_failed(private_etcd: MakeServer) -> None:
    async def scenario() -> None:
        server = private_etcd()
        server.kill()
        async with opened(server) as store:
            for call in (
                store.read("a"),
                store.grant(10),
                store.keep_alive(1),
                store.revoke(1),
                store.commit([], [Write("a", b"")]),
            ):
                with pytest.raises(StoreUnavailable):
                    await call
            server.start()
            await put(store, "a")

    asyncio.run(scenario())


def test_a_commit_to_a_frozen_server_has_an_unknown_result_after_the_timeout(private_etcd: MakeServer) -> None:
    async def scenario() -> None:
        server = private_etcd()
        async with opened(server) as store:
            await put(store, "a", b"1")
            server.pause()
            async with asyncio.timeout(DEADLINE_S):  # two timeouts of 1 s
                with pytest.raises(OutcomeUnknown):
                    await store.commit([Compare("a", "create", 0)], [Write("a", b"2")])
                with pytest.raises(StoreUnavailable):
                    await store.read("a")
            server.resume()
            await until_readable(store)
            assert [entry.value for entry in (await store.read("a")).entries] == [b"1"]

    asyncio.run(scenario())


def test_a_follower_detects_a_frozen_server(private_etcd: MakeServer) -> None:
    async def scenario() -> None:
        server = private_etcd()
        follower = Follower()
        async with opened(server) as store, follower.following(store, "a/"):
            await put(store, "a/0")
            await until(lambda: "a/0" in follower.state)  # the watch works, not only the snapshot
            server.pause()
            await until(lambda: follower.connections == [True, False])
            server.resume()
            await until(lambda: follower.connections == [True, False, True])
            await put(store, "a/1")
            await until(lambda: "a/1" in follower.state)

    asyncio.run(scenario())


def test_a_follower_reads_again_after_a_compaction(private_etcd: MakeServer) -> None:
    async def scenario() -> None:
        server = private_etcd()
        follower = Follower()
        async with opened(server) as store, opened(server) as other, follower.following(store, "a/"):
            await put(other, "a/kept", b"0")
            await put(other, "a/gone", b"0")
            await until(lambda: len(follower.state) == 2)
            # Disconnected while changes are made and compacted.
            server.kill()
            await until(lambda: follower.connections[-1] is False)
            server.start()
            for index in range(20):
                await put(other, "a/kept", b"%d" % index)
            await other.commit([], [Write("a/gone", None)])
            revision = (await other.read("a/")).revision
            await asyncio.to_thread(post, server, "/kv/compaction", {"revision": str(revision), "physical": True})
            await until(lambda: follower.state == {"a/kept": b"19"})
            await put(other, "a/kept", b"end")
            await until(lambda: follower.state == {"a/kept": b"end"})

    asyncio.run(scenario())


def test_a_watch_from_a_compacted_revision_ends(private_etcd: MakeServer) -> None:
    async def scenario() -> None:
        server = private_etcd()
        async with opened(server) as store:
            for index in range(5):
                await put(store, "a", b"%d" % index)
            revision = (await store.read("a")).revision
            await asyncio.to_thread(post, server, "/kv/compaction", {"revision": str(revision), "physical": True})
            # The watch ends instead of waiting for ever, and `follow` reads again.
            changes: list[StoreChange] = []
            await asyncio.wait_for(store._watch("a", revision - 3, changes.extend), DEADLINE_S)
            assert changes == []

    asyncio.run(scenario())


def test_the_next_endpoint_is_used_when_one_is_dead_or_frozen(private_etcd: MakeServer) -> None:
    async def scenario() -> None:
        dead, frozen, alive = private_etcd(), private_etcd(), private_etcd()
        dead.kill()
        frozen.pause()
        async with opened(dead, frozen, alive) as store:
            lease = await store.grant(60)
            assert await store.keep_alive(lease) == 60
            await put(store, "a", b"1")
            assert [entry.value for entry in (await store.read("a")).entries] == [b"1"]
        async with opened(dead, alive) as store:  # a write that certainly failed is sent to the next endpoint
            await put(store, "a", b"2")

    asyncio.run(scenario())


def test_credentials_are_used_renewed_and_refused(private_etcd: MakeServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        server = private_etcd()
        await asyncio.to_thread(enable_auth, server)
        password = tmp_path / "password"
        password.write_text("s3cret\n")
        knobs = EtcdKnobs(endpoints=(server.url,), user="agent", password_file=str(password))
        follower = Follower()
        async with opened(knobs=knobs) as store, follower.following(store, "/mine/"):
            await put(store, "/mine/a", b"1")
            await until(lambda: follower.state == {"/mine/a": b"1"})
            with pytest.raises(StoreDenied):
                await store.commit([], [Write("/other/a", b"1")])
            with pytest.raises(StoreDenied):
                await store.read("/other/")
            # etcd keeps simple tokens in memory, so a restart invalidates them.
            await asyncio.to_thread(server.restart)
            await until_readable(store, "/mine/")
            await put(store, "/mine/b", b"2")
            await until(lambda: follower.state == {"/mine/a": b"1", "/mine/b": b"2"})
        password.write_text("wrong")
        async with opened(knobs=knobs) as store:
            with pytest.raises(StoreDenied):
                await store.read("/mine/")
        async with opened(server) as store:  # nobody
            with pytest.raises(StoreDenied):
                await store.commit([], [Write("/mine/a", b"1")])

    asyncio.run(scenario())


def test_a_user_is_accepted_without_authentication_in_etcd(private_etcd: MakeServer, tmp_path: Path) -> None:
    async def scenario() -> None:
        password = tmp_path / "password"
        password.write_text("s3cret")
        knobs = EtcdKnobs(endpoints=(private_etcd().url,), user="agent", password_file=str(password))
        async with opened(knobs=knobs) as store:
            await put(store, "a")

    asyncio.run(scenario())


@contextlib.asynccontextmanager
async def garbage_server() -> AsyncIterator[str]:
    """Yield the URL of a server that answers requests with garbage, as a broken proxy does."""

    async def send_garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 9\r\n\r\n\xff<html>\r\n")
        await writer.drain()
        writer.close()

    listener = await asyncio.start_server(send_garbage, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    listener.close()
    await listener.wait_closed()


def test_garbage_answers_are_reported() -> None:
    async def scenario() -> None:
        async with garbage_server() as url, opened(knobs=EtcdKnobs(endpoints=(url,))) as store:
            with pytest.raises(StoreUnavailable):
                await store.read("a")
            with pytest.raises(OutcomeUnknown):
                await store.commit([], [Write("a", b"")])

    asyncio.run(scenario())


def test_a_write_with_an_unknown_result_is_not_repeated(private_etcd: MakeServer) -> None:
    async def scenario() -> None:
        server = private_etcd()
        async with garbage_server() as url, opened(knobs=EtcdKnobs(endpoints=(url, server.url))) as store:
            with pytest.raises(OutcomeUnknown):
                await store.commit([], [Write("a", b"")])
            assert (await store.read("a")).entries == []

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "knobs",
    [
        EtcdKnobs(endpoints=("http://etcd.example:2379",)),
        EtcdKnobs(endpoints=("etcd.example:2379",)),
        EtcdKnobs(endpoints=("https://user:password@etcd.example",)),
        EtcdKnobs(endpoints=("https://etcd.example",), ca_file="/nowhere/ca.pem"),
        EtcdKnobs(user="agent"),
    ],
)
def test_invalid_and_unsafe_configurations_are_refused(knobs: EtcdKnobs) -> None:
    with pytest.raises(ConfigError):
        EtcdStore(knobs)


def test_plain_http_is_allowed_if_configured() -> None:
    EtcdStore(EtcdKnobs(endpoints=("http://etcd.example:2379",), insecure=True))
    EtcdStore(EtcdKnobs(endpoints=("http://[::1]:2379", "http://localhost:2379")))


async def until_readable(store: EtcdStore, prefix: str = "a") -> None:
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with contextlib.suppress(StoreUnavailable):
                await store.read(prefix)
                return
            await asyncio.sleep(0.01)


def enable_auth(server: EtcdServer) -> None:
    """Create the users root and agent, of which agent has access to /mine/ only."""
    post(server, "/auth/role/add", {"name": "root"})
    post(server, "/auth/user/add", {"name": "root", "password": "root"})
    post(server, "/auth/user/grant", {"user": "root", "role": "root"})
    post(server, "/auth/role/add", {"name": "agent"})
    permission = {"permType": "READWRITE", "key": encoded("/mine/"), "range_end": encoded("/mine0")}
    post(server, "/auth/role/grant", {"name": "agent", "perm": permission})
    post(server, "/auth/user/add", {"name": "agent", "password": "s3cret"})
    post(server, "/auth/user/grant", {"user": "agent", "role": "agent"})
    post(server, "/auth/enable", {})
