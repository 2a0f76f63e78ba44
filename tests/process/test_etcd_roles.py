"""Permissions of deploy/etcd/roles.sh on a real etcd server: each role can do its work and nothing else."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from loadline.adapters.etcd_store import EtcdStore
from loadline.client.worker import WorkerClient
from loadline.config import EtcdKnobs
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.errors import StoreDenied
from loadline.ports import Compare, Write
from loadline.rig.server_processes import EtcdServer
from loadline.wire.keys import LEADER_SCOPE_ALL, Keys
from loadline.wire.messages import DrainCommand
from tests.support.memory import MemoryBus
from tests.support.secured import PASSWORD, etcd_login, etcdctl_environment, secure_etcd
from tests.waiting import SCENARIO_S, until_async

pytestmark = pytest.mark.process

KEYS = Keys("default")
WORKER = KEYS.worker("llama", "decode", "decode-1")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path_factory.mktemp("etcd-roles")) as running:
        secure_etcd(running, running.directory / "passwords", "default", "llama")
        yield running


@pytest.fixture
def login(server: EtcdServer, tmp_path: Path) -> Callable[[str], EtcdKnobs]:
    return lambda user: etcd_login(server, user, tmp_path)


@contextlib.asynccontextmanager
async def store_for(knobs: EtcdKnobs) -> AsyncIterator[EtcdStore]:
    store = EtcdStore(knobs)
    try:
        async with asyncio.timeout(SCENARIO_S):
            yield store
    finally:
        await store.close()


async def denied(store: EtcdStore, *keys: str) -> None:
    for key in keys:
        with pytest.raises(StoreDenied):
            await store.commit([], [Write(key, b"")])


def test_the_role_agent_leads_decides_pauses_and_revokes_in_its_namespace(login: Callable[[str], EtcdKnobs]) -> None:
    async def scenario() -> None:
        async with store_for(login("loadline-agent")) as store, store_for(login("loadline-worker-llama")) as worker:
            lease = await store.grant(10)
            leader = KEYS.leader(LEADER_SCOPE_ALL)
            term = [Write(KEYS.epoch(LEADER_SCOPE_ALL), b"1"), Write(leader, b"agent", lease)]
            assert (await store.commit([Compare(leader, "create", 0)], term)).committed
            assert [entry.value for entry in (await store.read(leader)).entries] == [b"agent", b"1"]
            assert await store.keep_alive(lease) > 0
            fence = Compare(leader, "lease", lease)
            order = Compare(KEYS.decision("llama"), "mod", 0)
            assert (await store.commit([fence, order], [Write(KEYS.decision("llama"), b"{}")])).committed
            assert (await store.commit([], [Write(KEYS.pause("llama"), b"somebody")])).committed
            assert (await store.commit([], [Write(KEYS.pause("llama"), None)])).committed

            assert (await store.commit([fence], [Write(KEYS.learned("llama"), b"{}")])).committed

            workers_lease = await worker.grant(10)
            await worker.commit([], [Write(WORKER, b"{}", workers_lease)])
            seen: list[str] = []
            following = asyncio.create_task(
                store.follow(
                    KEYS.prefix,
                    lambda snapshot: seen.extend(entry.key for entry in snapshot.entries),
                    lambda changes: seen.extend(f"changed {change.key}" for change in changes),
                    lambda _connected: None,
                )
            )

            async def read() -> bool:
                return WORKER in seen

            await until_async(read, "the registry")
            await store.revoke(workers_lease)

            async def lease_ended() -> bool:
                return f"changed {WORKER}" in seen

            await until_async(lease_ended, "the end of the worker's lease")
            following.cancel()
            await asyncio.wait([following])
            await store.revoke(lease)

            await denied(store, "/loadline/other/decisions/llama", "elsewhere")
            with pytest.raises(StoreDenied):
                await store.read("/loadline/")

    asyncio.run(scenario())


def test_the_role_worker_writes_records_of_its_model_and_reads_who_leads(login: Callable[[str], EtcdKnobs]) -> None:
    async def scenario() -> None:
        async with store_for(login("loadline-worker-llama")) as store:
            lease = await store.grant(10)
            free = Compare(WORKER, "mod", 0)
            assert (await store.commit([free], [Write(WORKER, b"{}", lease)])).committed
            assert [entry.lease_id for entry in (await store.read(WORKER)).entries] == [lease]
            await denied(
                store,
                KEYS.worker("other", "decode", "decode-1"),
                KEYS.worker("llama2", "decode", "decode-1"),
                KEYS.decision("llama"),
                KEYS.leader(LEADER_SCOPE_ALL),
                KEYS.pause("llama"),
                KEYS.learned("llama"),
            )
            await store.read(KEYS.leaders)
            for prefix in (KEYS.prefix, KEYS.workers, KEYS.worker("other", "decode", "decode-1")):
                with pytest.raises(StoreDenied):
                    await store.read(prefix)
            await store.revoke(lease)

    asyncio.run(scenario())


def test_the_worker_client_registers_and_leaves_with_the_role_worker(login: Callable[[str], EtcdKnobs]) -> None:
    async def scenario() -> None:
        async def emptied(_command: DrainCommand) -> None: ...

        record = WorkerRecord("llama", "decode", "decode-2", "decode", incarnation=1)
        key = KEYS.worker("llama", "decode", "decode-2")
        async with store_for(login("loadline-reader")) as reader:

            async def state() -> str:
                entries = (await reader.read(key)).entries
                return entries[0].value.decode() if entries else ""

            async def ready() -> bool:
                return (
                    '"state"' not in (found := await state()) and found != ""
                )  # ready is the default, so the record omits it

            async def deregistered() -> bool:
                return not await state()

            worker = WorkerClient(
                record,
                etcd=login("loadline-worker-llama"),
                bus=MemoryBus(),
                sample=lambda: WorkerSample(0, 0, waiting_requests=0),
                on_drain=emptied,
            )
            async with worker:
                await worker.ready()
                await until_async(ready, "registered as ready")
            await until_async(deregistered, "gone")

    asyncio.run(scenario())


def test_the_role_reader_cannot_write(login: Callable[[str], EtcdKnobs]) -> None:
    async def scenario() -> None:
        async with store_for(login("loadline-reader")) as store:
            await store.read(KEYS.workers)
            await store.read(KEYS.decisions)
            alone_agents_write = (KEYS.decision("llama"), KEYS.leader(LEADER_SCOPE_ALL), KEYS.learned("llama"))
            await denied(store, WORKER, KEYS.pause("llama"), *alone_agents_write)

    asyncio.run(scenario())


@pytest.mark.parametrize("user", ["loadline-agent", "loadline-worker-llama", "loadline-reader"])
def test_no_role_administers_users(server: EtcdServer, user: str) -> None:
    """Whoever could would give itself every permission."""
    environment = etcdctl_environment(server) | {"ETCDCTL_USER": user, "ETCDCTL_PASSWORD": PASSWORD}
    for command in (
        ["user", "add", "intruder:x"],
        ["user", "grant-role", user, "root"],
        ["user", "passwd", "root", "--interactive=false"],
        ["user", "delete", "loadline-reader"],
        ["role", "grant-permission", "loadline-reader", "readwrite", "", "--prefix=true"],
        ["auth", "disable"],
    ):
        done = subprocess.run(
            [str(Path(sys.executable).with_name("etcdctl")), *command],
            env=environment,
            input="x\n",
            capture_output=True,
            text=True,
            check=False,
        )
        assert "permission denied" in done.stderr, (command, done.stderr)


def test_an_anonymous_client_has_no_permission(server: EtcdServer) -> None:
    async def scenario() -> None:
        async with store_for(EtcdKnobs(endpoints=(server.url,))) as store:
            await denied(store, WORKER, "elsewhere")
            with pytest.raises(StoreDenied):
                await store.read(KEYS.workers)

    asyncio.run(scenario())


def test_a_role_for_another_model_can_be_added_later(server: EtcdServer, login: Callable[[str], EtcdKnobs]) -> None:
    secure_etcd(server, server.directory / "passwords", "default", "llama", "meta%2Fqwen", again=True)

    async def scenario() -> None:
        async with store_for(login("loadline-worker-meta%2Fqwen")) as store:
            key = KEYS.worker("meta/qwen", "decode", "decode-1")
            assert (await store.commit([], [Write(key, b"{}")])).committed
            await denied(store, WORKER)

    asyncio.run(scenario())
