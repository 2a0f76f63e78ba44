"""Behaviour of Dynamo's client that the scaler relies on: the double's always, Dynamo's own with ``DYNAMO_PYTHON``."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from loadline.adapters.etcd_store import EtcdStore
from loadline.client.resources import store_of
from loadline.ports import Write
from loadline.servers import EtcdKnobs
from tests.support.dynamo_clients import REAL_PYTHON, ClientDouble, ConnectorClient, real_client

pytestmark = pytest.mark.process

Connect = Callable[[], AbstractAsyncContextManager[tuple[ConnectorClient, "Keys"]]]
BLOCKED_S = 0.3
"""Time without a wake-up; a client that wakes does so within some ms."""


class Keys:
    """The planner's side: writes keys one by one."""

    def __init__(self, store: EtcdStore, namespace: str) -> None:
        self._store = store
        self._prefix = f"v1/{namespace}/planner/"

    async def put(self, **values: int) -> None:
        for key, value in values.items():
            await self._store.commit([], [Write(self._prefix + key, str(value).encode())])

    async def acknowledged(self) -> bytes | None:
        entry = await self._store.get(f"{self._prefix}scaled_decision_id")
        return entry.value if entry else None


@pytest.fixture(params=["double", pytest.param("real", marks=pytest.mark.skipif(not REAL_PYTHON, reason="no wheel"))])
def connect(request: pytest.FixtureRequest, etcd_url: str, own_name: str) -> Connect:
    """Return a function that connects a client in a namespace of its own."""

    @asynccontextmanager
    async def connected() -> AsyncIterator[tuple[ConnectorClient, Keys]]:
        async with asyncio.timeout(120), store_of(None, EtcdKnobs(endpoints=(etcd_url,))) as store:
            assert isinstance(store, EtcdStore)
            keys = Keys(store, own_name)
            if request.param == "double":
                yield ClientDouble(store, own_name), keys
            else:
                async with real_client(etcd_url, own_name) as client:
                    yield client, keys

    return connected


def test_keys_that_are_not_set_are_minus_one(connect: Connect) -> None:
    async def scenario() -> None:
        async with connect() as (client, keys):
            assert await client.get() == (-1, -1, -1)
            assert await client.wait(BLOCKED_S) is None
            await keys.put(num_decode_workers=3, decision_id=0)
            assert await client.get() == (-1, 3, 0)

    asyncio.run(scenario())


def test_a_client_wakes_for_unacknowledged_decisions_only(connect: Connect) -> None:
    async def scenario() -> None:
        async with connect() as (client, keys):
            await keys.put(num_prefill_workers=2, num_decode_workers=3, decision_id=0)
            assert await client.wait(60)
            assert await client.wait(60)
            assert await client.get() == (2, 3, 0)
            await client.complete()
            assert await keys.acknowledged() == b"0"
            assert await client.wait(BLOCKED_S) is None
            waiting = asyncio.ensure_future(client.wait(60))
            await keys.put(scaled_decision_id=0, num_decode_workers=4)
            done, _ = await asyncio.wait({waiting}, timeout=BLOCKED_S)
            assert not done
            await keys.put(decision_id=1)
            assert await waiting
            assert await client.get() == (2, 4, 1)

    asyncio.run(scenario())


def test_a_client_never_wakes_for_an_id_below_an_earlier_acknowledgement(connect: Connect) -> None:
    async def scenario() -> None:
        async with connect() as (client, keys):
            await keys.put(scaled_decision_id=9, num_decode_workers=4, decision_id=2)
            assert await client.wait(BLOCKED_S) is None
            await keys.put(decision_id=10)
            assert await client.wait(60)

    asyncio.run(scenario())
