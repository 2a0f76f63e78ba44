"""A store that loses its data, or is restored from a backup, under agents, workers and a scaler that live on."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from loadline.adapters.etcd_store import EtcdStore
from loadline.client.scaler import ScalerClient
from loadline.config import EtcdKnobs, NatsKnobs
from loadline.ports import Write
from loadline.rig.rig import ChildAgent, Rig
from loadline.wire.keys import Keys
from loadline.wire.messages import ScalingDecision
from tests.support.agents import MODEL, AgentFleet, assert_replays, config, fleet
from tests.waiting import SCENARIO_S, until

pytestmark = pytest.mark.process

ALARM = '"kind": "store_went_back"'


def start(rig: Rig, name: str) -> ChildAgent:
    agent = rig.agent(config(rig, name), name)
    agent.wait_ready()
    return agent


def start_leader_and_standby(rig: Rig) -> tuple[ChildAgent, ChildAgent]:
    leader = start(rig, "a")
    leader.wait_leading()
    return leader, start(rig, "b")


@asynccontextmanager
async def scaler(rig: Rig) -> AsyncIterator[list[ScalingDecision]]:
    """A scaler that applies every decision at once; gives those that it accepted."""
    accepted: list[ScalingDecision] = []

    async def apply(client: ScalerClient) -> None:
        async for received in client:
            accepted.append(received.decision)
            await client.accept(received)
            await client.complete(received, {target.pool: target.replicas for target in received.decision.targets})

    async with ScalerClient("s", [MODEL], nats=NatsKnobs(servers=(rig.nats.url,))) as client:
        applying = asyncio.create_task(apply(client))
        yield accepted
        applying.cancel()
        await asyncio.wait([applying])


async def grows(agent_fleet: AgentFleet, accepted: list[ScalingDecision]) -> ScalingDecision:
    """Have the scaler accept a decision for one more decode worker, start that worker, and return the decision."""
    replicas = 1 + sum(name.startswith("d") for name in agent_fleet.workers)

    def wanted() -> bool:
        return bool(accepted) and targets(accepted[-1])["decode"] == replicas

    agent_fleet.load(kv=0.97)
    await until(wanted, f"{replicas} workers")
    agent_fleet.load(kv=0.7)
    await agent_fleet.add("decode", f"d{replicas}")
    return accepted[-1]


def targets(decision: ScalingDecision) -> dict[str, int]:
    return {target.pool: target.replicas for target in decision.targets}


async def shrinks(agent_fleet: AgentFleet) -> int:
    """Have a worker accept a drain, and return the epoch of its command."""
    agent_fleet.load(kv=0.1)
    await until(lambda: any(worker.drain for worker in agent_fleet.workers.values()), "a drain")
    return next(worker.drain.epoch for worker in agent_fleet.workers.values() if worker.drain)


async def write_on(rig: Rig) -> None:
    """Let etcd count on, as in hours of use."""
    store, prefix = EtcdStore(EtcdKnobs(endpoints=(rig.etcd.url,))), Keys("default").prefix
    for _ in range(100):
        await store.commit([], [Write(f"{prefix}somebody/else", b"")])
    await store.close()


def alarmed(agent: ChildAgent) -> bool:
    return ALARM in agent.log.read_text()


@pytest.mark.parametrize("winner", ["leader", "standby"])
def test_a_fleet_scales_on_after_etcd_was_wiped_whichever_agent_wins(rig: Rig, winner: str) -> None:
    leader, standby = start_leader_and_standby(rig)

    async def scenario() -> None:
        async with asyncio.timeout(SCENARIO_S), fleet(rig) as agent_fleet, scaler(rig) as accepted:
            await agent_fleet.add("decode", "d1", "d2")
            await agent_fleet.add("prefill", "p1")
            before = await grows(agent_fleet, accepted)
            await write_on(rig)
            rig.etcd.kill()
            (standby if winner == "leader" else leader).kill()
            await asyncio.to_thread(rig.etcd.wipe)
            agent_fleet.observer.committed.clear()
            await rig.etcd.start_async()
            after = await grows(agent_fleet, accepted)
            assert after.epoch > before.epoch
            assert await shrinks(agent_fleet) >= after.epoch

    asyncio.run(scenario())
    last = leader if winner == "leader" else standby
    assert last.stop() == 0
    assert alarmed(last)
    assert_replays(rig, "a" if last is leader else "b")


@pytest.mark.parametrize("survivor", ["leader", "standby", "neither"])
def test_workers_that_have_not_registered_yet_outlive_the_loss_of_the_decisions_that_requested_them(
    rig: Rig, survivor: str
) -> None:
    agents = dict(zip(("leader", "standby"), start_leader_and_standby(rig), strict=True))

    async def scenario() -> None:
        async with asyncio.timeout(SCENARIO_S), fleet(rig) as agent_fleet, scaler(rig) as accepted:
            await agent_fleet.add("decode", "d1", "d2")
            await agent_fleet.add("prefill", "p1")
            agent_fleet.load(kv=0.97)
            await until(lambda: accepted and targets(accepted[-1])["decode"] == 3, "three workers, of which one starts")
            before = accepted[-1]
            rig.etcd.kill()
            for role, agent in agents.items():
                if role != survivor:
                    agent.kill()
            await asyncio.to_thread(rig.etcd.wipe)
            agent_fleet.observer.committed.clear()
            agent_fleet.load(kv=0.7)
            agent_fleet.workers["p1"].waiting = 50  # another prefill worker is needed, and no decode worker
            await rig.etcd.start_async()
            if survivor == "neither":
                agents["neither"] = await asyncio.to_thread(start, rig, "c")

            def decided() -> bool:  # the next term may first state the counts that it found
                last = accepted[-1]
                return last.epoch > before.epoch and targets(last)["prefill"] > targets(before)["prefill"]

            await until(decided, "a decision of the next term for more prefill workers")
            assert {targets(one)["decode"] for one in accepted[accepted.index(before) :]} == {3}
            await agent_fleet.add("decode", "d3")
            assert await asyncio.to_thread(agents[survivor].stop) == 0

    asyncio.run(scenario())
    assert_replays(rig, {"leader": "a", "standby": "b", "neither": "c"}[survivor])


@pytest.mark.parametrize("same_term", [True, False])
def test_a_fleet_scales_on_after_etcd_was_restored_from_a_backup(rig: Rig, same_term: bool) -> None:  # noqa: FBT001
    (leader, standby), backup = start_leader_and_standby(rig), rig.directory / "backup"

    async def scenario() -> None:
        async with asyncio.timeout(SCENARIO_S), fleet(rig) as agent_fleet, scaler(rig) as accepted:
            await agent_fleet.add("decode", "d1", "d2")
            await agent_fleet.add("prefill", "p1")
            await grows(agent_fleet, accepted)
            await asyncio.to_thread(rig.etcd.back_up, backup)
            if not same_term:
                assert await asyncio.to_thread(leader.stop) == 0
            before = await grows(agent_fleet, accepted)
            await write_on(rig)
            rig.etcd.kill()
            await asyncio.to_thread(rig.etcd.restore, backup)
            agent_fleet.observer.committed.clear()
            await rig.etcd.start_async()
            after = await grows(agent_fleet, accepted)
            assert after.epoch > before.epoch or same_term
            numbers = [(decision.epoch, decision.sequence) for decision in accepted]
            assert numbers == sorted(set(numbers))
            assert len({decision.decision_id for decision in accepted}) == len(accepted)
            assert alarmed(standby)
            assert alarmed(leader) is same_term
            assert await shrinks(agent_fleet) >= after.epoch

    asyncio.run(scenario())
    assert standby.stop() == 0
    assert_replays(rig, "b")
