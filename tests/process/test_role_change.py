"""Worker that takes the other role: its key moves in a real etcd, and a real agent counts it in the other pool."""

import asyncio

import pytest

from loadline.rig.rig import Rig
from tests.support.agents import AgentFleet, assert_replays, config, fleet
from tests.waiting import SCENARIO_S, until

pytestmark = pytest.mark.process


def members(agents: AgentFleet) -> dict[str, list[str]]:
    """Return the registered workers by pool, by the leader's status."""
    status = agents.observer.leader()
    pools = [pool for model in status.models for pool in model.pools] if status else []
    return {pool.pool: [worker.worker for worker in pool.workers] for pool in pools}


def test_a_worker_takes_the_other_role_and_back(rig: Rig) -> None:
    agent = rig.agent(config(rig, "a"), "a")
    agent.wait_ready()

    async def scenario() -> None:
        async with asyncio.timeout(SCENARIO_S), fleet(rig) as agents:
            await agents.accept_decisions()
            await agents.add("decode", "d1", "d2")
            await agents.add("prefill", "p1", "p2")
            agents.load(kv=0.97, waiting=2)
            await until(lambda: agents.observer.desired().get("decode", 0) == 3)
            agents.load(kv=0.7, waiting=2)
            desired = agents.observer.desired()
            moved = agents.workers["p2"]
            await moved.client.move("decode", "decode")
            await until(lambda: members(agents) == {"decode": ["d1", "d2", "p2"], "prefill": ["p1"]})
            assert {"d1", "d2", "p1", "p2"} == agents.registered()
            expected = {"decode": desired["decode"] + 1, "prefill": max(1, desired["prefill"] - 1)}
            await until(lambda: agents.observer.desired() == expected, str(expected))
            await until(lambda: "p2" in agents.ready(), "it reports in its new pool")
            await moved.client.move("prefill", "prefill")
            await until(lambda: members(agents) == {"decode": ["d1", "d2"], "prefill": ["p1", "p2"]})
            assert [name for name, one in agents.workers.items() if one.drain] == []

    asyncio.run(scenario())
    agent.stop()
    assert_replays(rig, "a")
