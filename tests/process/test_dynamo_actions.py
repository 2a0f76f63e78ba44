"""Actions on the keys of Dynamo's virtual connector, with real etcd and a double of Dynamo's client."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from loadline.client.resources import store_of
from loadline.scalers.dynamo_actions import ConnectorActions
from loadline.scalers.dynamo_virtual_config import ConnectorModelKnobs, ConnectorPoolKnobs
from loadline.scalers.platform import Platform, PlatformError, PoolKey
from loadline.scalers.platform_commands import change_replicas, is_ready, set_replicas, wait_ready
from loadline.servers import EtcdKnobs
from tests.support.dynamo_clients import ClientDouble

pytestmark = pytest.mark.process

PREFILL, DECODE = PoolKey("m", "p"), PoolKey("m", "d")


def run(etcd_url: str, namespace: str, scenario: Callable[[Platform, ClientDouble], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.timeout(120), store_of(None, EtcdKnobs(endpoints=(etcd_url,))) as store:
            pools = ConnectorPoolKnobs("p", "prefill"), ConnectorPoolKnobs("d", "aggregated")
            actions = ConnectorActions((ConnectorModelKnobs("m", namespace, pools),), store)
            await scenario(actions, ClientDouble(store, namespace))

    asyncio.run(whole())


def test_counts_are_set_one_decision_each_and_ready_when_acknowledged(etcd_url: str, own_name: str) -> None:
    async def scenario(platform: Platform, client: ClientDouble) -> None:
        assert platform.victims == {PREFILL: "unknown", DECODE: "unknown"}
        assert await platform.validate() == []
        assert is_ready(await platform.observe(DECODE))
        await set_replicas(platform, DECODE, 3)
        assert await client.get() == (-1, 3, 0)
        assert not is_ready(await platform.observe(DECODE))
        [problem] = await platform.validate()
        assert problem.startswith(f"namespace {own_name}: decision 0 is not acknowledged. Start the program")
        await set_replicas(platform, DECODE, 3)
        with pytest.raises(PlatformError, match="decision 0 is not acknowledged"):
            await set_replicas(platform, PREFILL, 1)
        assert list(await wait_ready(platform, [DECODE], 0.0)) == [DECODE]
        await client.complete()
        assert await wait_ready(platform, [DECODE], 60.0) == {}
        assert await change_replicas(platform, DECODE, -3) == 0
        assert await client.get() == (-1, 0, 1)
        seen = await platform.observe(DECODE)
        assert (seen.replicas, seen.ready, is_ready(seen)) == (0, 0, False)

    run(etcd_url, own_name, scenario)


def test_a_store_that_is_away_is_explained(own_name: str) -> None:
    async def scenario(platform: Platform, _client: ClientDouble) -> None:
        [problem] = await platform.validate()
        assert problem.startswith("Dynamo's etcd: ")
        with pytest.raises(PlatformError, match="Dynamo's etcd: "):
            await set_replicas(platform, DECODE, 3)

    run("http://127.0.0.1:1", own_name, scenario)
