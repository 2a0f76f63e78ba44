"""Scaler for Dynamo's virtual connector, with a double of Dynamo's client or, with ``DYNAMO_PYTHON``, its own."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from loadline.client.resources import running, store_of
from loadline.client.scaler import ScalerClient
from loadline.core.vocabulary.decisions import PoolTarget
from loadline.ports import Write
from loadline.rig.server_processes import EtcdServer
from loadline.scalers.dynamo_virtual import DynamoVirtualScaler
from loadline.scalers.dynamo_virtual_config import ConnectorModelKnobs, ConnectorPoolKnobs, DynamoVirtualKnobs
from loadline.servers import EtcdKnobs, NatsKnobs
from loadline.wire.messages import ScalingDecision
from tests.support.client_rig import Agent, agent_at
from tests.support.decisions import decision
from tests.support.dynamo_clients import REAL_PYTHON, ClientDouble, ConnectorClient, real_client
from tests.waiting import until, until_async

pytestmark = pytest.mark.process

WAKES_S = 60.0
BLOCKED_S = 0.3


def counts(sequence: int, prefill: int, decode: int) -> ScalingDecision:
    targets = PoolTarget("p", "prefill", prefill, 0), PoolTarget("d", "decode", decode, 0)
    return decision(1, sequence, *targets, ttl_ms=600_000)


class Fleet:
    """Servers, the agent's side of them, clients and scalers, in a namespace of their own."""

    def __init__(self, agent: Agent, nats_url: str, etcd_url: str, name: str, kind: str) -> None:
        self.agent = agent
        self.name = name
        self._urls = nats_url, etcd_url
        self._kind = kind

    @asynccontextmanager
    async def scaling(self, timeout_ms: int = 1_800_000) -> AsyncIterator[None]:
        """Run a scaler; it ends without a farewell, as one that is killed."""
        nats_url, etcd_url = self._urls
        pools = ConnectorPoolKnobs("p", "prefill"), ConnectorPoolKnobs("d", "decode")
        nats, etcd = NatsKnobs(servers=(nats_url,)), EtcdKnobs(endpoints=(etcd_url,))
        models = (ConnectorModelKnobs("m", self.name, pools),)
        knobs = DynamoVirtualKnobs(models, etcd, nats=nats, root=self.name, acknowledge_timeout_ms=timeout_ms)
        async with (
            store_of(None, etcd) as store,
            ScalerClient("dynamo", ["m"], nats=nats, root=self.name) as scaler,
            running(DynamoVirtualScaler(knobs, scaler, store).run(), "scaler"),
        ):
            yield

    @asynccontextmanager
    async def client(self) -> AsyncIterator[ConnectorClient]:
        """Connect a client; it ends without a farewell."""
        if self._kind == "double":
            yield ClientDouble(self.agent.store, self.name)
            return
        async with real_client(self._urls[1], self.name) as client:
            yield client

    async def decide(self, announced: ScalingDecision) -> None:
        """Announce a decision, as agents do, until it is answered."""

        async def answered() -> bool:
            await self.agent.announce(announced)
            await asyncio.sleep(0.02)
            return bool(self.statuses(announced.sequence))

        await until_async(answered, "an answer")

    def statuses(self, sequence: int) -> list[str]:
        return list(dict.fromkeys(one.status for one in self.agent.answers if one.sequence == sequence))

    def detail(self, sequence: int) -> str:
        return next((one.detail for one in reversed(self.agent.answers) if one.sequence == sequence), "")

    async def answers(self, sequence: int, status: str) -> None:
        await until(lambda: status in self.statuses(sequence), f"{status}, but there is {self.statuses(sequence)}")

    async def put(self, **values: int) -> None:
        """Write keys one by one, as Dynamo's planner does."""
        for key, value in values.items():
            await self.agent.store.commit([], [Write(f"v1/{self.name}/planner/{key}", str(value).encode())])


Start = Callable[[], AbstractAsyncContextManager[Fleet]]


@pytest.fixture(params=["double", pytest.param("real", marks=pytest.mark.skipif(not REAL_PYTHON, reason="no wheel"))])
def start(request: pytest.FixtureRequest, nats_url: str, etcd_url: str, own_name: str) -> Start:
    """Return a function that connects a fleet."""

    @asynccontextmanager
    async def started() -> AsyncIterator[Fleet]:
        async with agent_at(nats_url, etcd_url, own_name) as agent:
            yield Fleet(agent, nats_url, etcd_url, own_name, request.param)

    return started


def run(start: Start, scenario: Callable[[Fleet], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with start() as fleet:
            await scenario(fleet)

    asyncio.run(whole())


def test_a_decision_wakes_the_client_and_is_done_when_it_is_acknowledged(start: Start) -> None:
    async def scenario(fleet: Fleet) -> None:
        async with fleet.scaling(), fleet.client() as client:
            assert await client.get() == (-1, -1, -1)
            await fleet.decide(counts(1, 2, 3))
            assert await client.wait(WAKES_S)
            assert await client.get() == (2, 3, 0)
            await until(lambda: "acknowledges its decision 0" in fleet.detail(1))
            assert fleet.statuses(1) == ["accepted", "progress"]
            await client.complete()
            await fleet.answers(1, "done")
            assert await client.wait(BLOCKED_S) is None
            # The same counts are no new decision for Dynamo, and done at once.
            await fleet.decide(counts(2, 2, 3))
            await fleet.answers(2, "done")
            assert await client.wait(BLOCKED_S) is None

    run(start, scenario)


def test_a_decision_that_comes_early_waits_for_the_acknowledgement_and_is_not_lost(start: Start) -> None:
    async def scenario(fleet: Fleet) -> None:
        async with fleet.scaling(), fleet.client() as client:
            await fleet.decide(counts(1, 2, 3))
            assert await client.wait(WAKES_S)
            assert await client.get() == (2, 3, 0)
            await fleet.decide(counts(2, 2, 4))
            await fleet.decide(counts(3, 0, 5))
            await until(lambda: "acknowledges its decision 0" in fleet.detail(3))
            await client.complete()
            assert await client.wait(WAKES_S)
            assert await client.get() == (0, 5, 1)
            await client.complete()
            await fleet.answers(3, "done")
            # Dynamo's coordinator may drop a decision that is made right after an acknowledgement.
            for sequence in range(4, 24):
                await fleet.decide(counts(sequence, 1, sequence))
                assert await client.wait(WAKES_S)
                assert await client.get() == (1, sequence, sequence - 2)
                await client.complete()

    run(start, scenario)


def test_a_client_that_died_before_its_acknowledgement_finds_the_decision_again(start: Start) -> None:
    async def scenario(fleet: Fleet) -> None:
        async with fleet.scaling():
            await fleet.decide(counts(1, 2, 3))
            async with fleet.client() as client:
                assert await client.wait(WAKES_S)
                assert await client.get() == (2, 3, 0)
            async with fleet.client() as client:
                assert await client.wait(WAKES_S)
                assert await client.get() == (2, 3, 0)
                assert "done" not in fleet.statuses(1)
                await client.complete()
            await fleet.answers(1, "done")

    run(start, scenario)


def test_a_restarted_scaler_goes_on_with_the_decision_it_wrote(start: Start) -> None:
    async def scenario(fleet: Fleet) -> None:
        async with fleet.client() as client:
            async with fleet.scaling():
                await fleet.decide(counts(1, 2, 3))
                assert await client.wait(WAKES_S)
            assert await client.get() == (2, 3, 0)
            fleet.agent.answers.clear()
            async with fleet.scaling():
                await fleet.decide(counts(1, 2, 3))
                await until(lambda: "acknowledges its decision 0" in fleet.detail(1))
            assert await client.get() == (2, 3, 0)
            await client.complete()
            fleet.agent.answers.clear()
            async with fleet.scaling():
                await fleet.decide(counts(1, 2, 3))
                await fleet.answers(1, "done")
            assert await client.wait(BLOCKED_S) is None

    run(start, scenario)


def test_a_decision_without_acknowledgement_is_refused_and_the_next_one_replaces_it(start: Start) -> None:
    async def scenario(fleet: Fleet) -> None:
        async with fleet.scaling(timeout_ms=5_000), fleet.client() as client:
            await fleet.decide(counts(1, 2, 3))
            assert await client.wait(WAKES_S)
            assert await client.get() == (2, 3, 0)
            await fleet.answers(1, "refused")
            assert "did not acknowledge decision 0 within 5 s" in fleet.detail(1)
            await fleet.decide(counts(2, 2, 4))
            await client.complete()
            assert await client.wait(WAKES_S)
            assert "done" not in fleet.statuses(2)
            assert await client.get() == (2, 4, 1)
            await client.complete()
            await fleet.answers(2, "done")

    run(start, scenario)


def test_what_a_dead_planner_left_is_announced_properly(start: Start) -> None:
    async def scenario(fleet: Fleet) -> None:
        async with fleet.client() as client:
            # It died after the counts, before the ID: no client woke.
            await fleet.put(decision_id=7, scaled_decision_id=7, num_prefill_workers=2, num_decode_workers=3)
            async with fleet.scaling():
                await fleet.decide(counts(1, 2, 3))
                assert await client.wait(WAKES_S)
                assert await client.get() == (2, 3, 8)
                await client.complete()
                await fleet.answers(1, "done")

    run(start, scenario)


def test_a_decision_outlives_an_outage_of_etcd(
    nats_url: str, private_etcd: Callable[[], EtcdServer], own_name: str
) -> None:
    server = private_etcd()

    async def scenario() -> None:
        async with agent_at(nats_url, server.url, own_name) as agent:
            fleet = Fleet(agent, nats_url, server.url, own_name, "double")
            async with fleet.scaling(), fleet.client() as client:
                await fleet.decide(counts(1, 2, 3))
                assert await client.wait(WAKES_S)
                assert await client.get() == (2, 3, 0)
                await client.complete()
                await fleet.answers(1, "done")
                server.stop()
                await fleet.decide(counts(2, 2, 4))
                await until(lambda: fleet.detail(2).startswith("Dynamo's etcd: "))
                server.start()
                assert await client.wait(WAKES_S)
                assert await client.get() == (2, 4, 1)
                await client.complete()
                await fleet.answers(2, "done")

    asyncio.run(scenario())
