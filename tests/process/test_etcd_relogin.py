"""Clients of an etcd with authentication that loses its data, and with it the raft index that their tokens name."""

import asyncio
import contextlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from loadline.adapters.etcd_store import EtcdStore
from loadline.errors import StoreUnavailable
from loadline.ports import Write
from loadline.rig.server_processes import EtcdServer
from loadline.wire.keys import Keys
from tests.support.secured import etcd_login, secure_etcd
from tests.waiting import SCENARIO_S, until_async

pytestmark = pytest.mark.process

KEYS = Keys("default")
# A token names the raft index of its login. The new etcd must not reach it by the few writes of its users and roles.
WRITES_BEFORE_LOGIN = 300


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EtcdServer]:
    with EtcdServer(tmp_path / "etcd") as running:
        secure_etcd(running, tmp_path / "passwords", "default", "llama")
        yield running


def test_clients_log_in_again_after_etcd_lost_its_data(server: EtcdServer, tmp_path: Path) -> None:
    def store_of(user: str) -> EtcdStore:
        return EtcdStore(etcd_login(server, user, tmp_path))

    async def works(store: EtcdStore) -> bool:
        with contextlib.suppress(StoreUnavailable):
            return bool(await store.grant(10))
        return False

    async def scenario() -> None:
        first = store_of("loadline-agent")
        for number in range(WRITES_BEFORE_LOGIN):
            await first.commit([], [Write(KEYS.decision("llama"), str(number).encode())])
        stores = first, store_of("loadline-agent"), store_of("loadline-worker-llama")
        for store in stores:
            assert await works(store)

        server.stop()
        server.wipe()
        server.start()  # without users
        for store in stores:
            await until_async(partial(works, store), "a grant by etcd without users")

        await asyncio.to_thread(secure_etcd, server, tmp_path / "passwords", "default", "llama")
        for store in stores:
            await until_async(partial(works, store), "a grant by etcd with users")
            await store.close()

    asyncio.run(asyncio.wait_for(scenario(), SCENARIO_S))


def test_a_frozen_etcd_costs_no_new_login(server: EtcdServer, tmp_path: Path) -> None:
    """Hundreds of clients that log in after each pause of etcd would cause the next one."""

    async def scenario() -> None:
        store = EtcdStore(etcd_login(server, "loadline-worker-llama", tmp_path))
        assert await store.grant(10)
        (tmp_path / "password").write_text("wrong\n", "utf-8")  # a new login would be refused
        server.pause()
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                await store.grant(10)
        server.resume()
        assert await store.grant(10)
        await store.close()

    asyncio.run(asyncio.wait_for(scenario(), SCENARIO_S))
