"""Elections between agents with a real etcd server, while other clients interfere."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator

import pytest

from loadline.adapters.etcd_store import EtcdStore
from loadline.config import EtcdKnobs
from loadline.ports import StoreEntry, Write
from loadline.rig.rig import ChildAgent, Rig
from loadline.wire.codec import decode_epoch
from loadline.wire.keys import LEADER_SCOPE_ALL, Keys
from tests.support.agents import LEASE_TTL_S, AgentFleet, assert_replays, config, fleet
from tests.waiting import SCENARIO_S, until, until_async, until_true

pytestmark = pytest.mark.process

LEADER = Keys("default").leader(LEADER_SCOPE_ALL)
MARGIN_S = 1
"""``leadership.margin_ms`` of the agents."""
SLACK_S = 30
"""Time limit on a busy machine."""


def start(rig: Rig, name: str) -> ChildAgent:
    agent = rig.agent(config(rig, name), name)
    agent.wait_ready()
    return agent


async def epoch_of(store: EtcdStore) -> int:
    found = await store.get(Keys("default").epoch(LEADER_SCOPE_ALL))
    assert found is not None
    return decode_epoch(found.value)


async def leader_key(store: EtcdStore) -> StoreEntry:
    found = await store.get(LEADER)
    assert found is not None
    return found


@contextlib.asynccontextmanager
async def lease_keeper(rig: Rig) -> AsyncIterator[EtcdStore]:
    """Run another client of etcd that keeps the leader's lease alive, even if the leader is dead."""
    store = EtcdStore(EtcdKnobs(endpoints=(rig.etcd.url,)))
    lease_id = (await leader_key(store)).lease_id

    async def keep_alive() -> None:
        while True:
            await store.keep_alive(lease_id)
            await asyncio.sleep(LEASE_TTL_S / 6)

    keeping = asyncio.create_task(keep_alive())
    try:
        yield store
        assert not keeping.done(), keeping
        assert await store.keep_alive(lease_id) == LEASE_TTL_S, "the lease was alive all the time"
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])
        await store.close()


async def wait_for_decision(agent_fleet: AgentFleet) -> None:
    await agent_fleet.add("decode", "d1", "d2")
    await agent_fleet.add("prefill", "p1")


async def grows(agent_fleet: AgentFleet, replicas: int) -> None:
    agent_fleet.load(kv=0.97)
    await until(lambda: agent_fleet.observer.desired().get("decode", 0) >= replicas)


@pytest.mark.parametrize("frozen", [False, True])
def test_a_leader_whose_lease_others_renew_is_deposed(rig: Rig, frozen: bool) -> None:  # noqa: FBT001
    first = start(rig, "a")
    first.wait_leading()
    second = start(rig, "b")

    async def scenario() -> None:
        async with asyncio.timeout(SCENARIO_S), fleet(rig) as agent_fleet:
            await wait_for_decision(agent_fleet)
            async with lease_keeper(rig) as store:
                before = await epoch_of(store)
                if frozen:
                    first.process.send_signal(signal.SIGSTOP)
                else:
                    first.kill()
                agent_fleet.observer.statuses.pop("a", None)
                await until(
                    lambda: agent_fleet.observer.leader() is not None, deadline_s=LEASE_TTL_S + MARGIN_S + 0.5 + SLACK_S
                )
                await grows(agent_fleet, 3)
                assert agent_fleet.observer.committed[-1].epoch == await epoch_of(store) > before
                assert '"kind": "leader_deposed"' in second.log.read_text()
            if frozen:
                first.process.send_signal(signal.SIGCONT)
                await until(
                    lambda: "a" in agent_fleet.observer.statuses and not agent_fleet.observer.statuses["a"].leading
                )
                await until(lambda: agent_fleet.observer.statuses["b"].leading)

    asyncio.run(scenario())
    assert second.stop() == 0
    assert_replays(rig, "b")


def test_a_live_leader_is_not_deposed_and_writes_its_key(rig: Rig) -> None:
    start(rig, "a").wait_leading()
    start(rig, "b")

    async def scenario() -> None:
        async with asyncio.timeout(SCENARIO_S), fleet(rig) as agent_fleet, lease_keeper(rig) as store:
            await wait_for_decision(agent_fleet)
            first = await leader_key(store)
            revisions = {first.mod_revision}

            async def renews_key() -> bool:
                now = await leader_key(store)
                assert now.create_revision == first.create_revision
                revisions.add(now.mod_revision)
                return len(revisions) > 2 * (
                    LEASE_TTL_S + MARGIN_S
                )  # for longer than the time after which a silent leader is deposed

            await until_async(renews_key, "a renewal")

    asyncio.run(scenario())


def test_a_leader_whose_key_was_removed_steps_down_and_a_new_term_begins(rig: Rig) -> None:
    agent = start(rig, "a")

    async def scenario() -> None:
        store = EtcdStore(EtcdKnobs(endpoints=(rig.etcd.url,)))
        async with asyncio.timeout(SCENARIO_S), fleet(rig) as agent_fleet:
            await wait_for_decision(agent_fleet)
            before = await leader_key(store)
            await store.commit([], [Write(LEADER, None)])

            async def again() -> bool:
                found = await store.get(LEADER)
                return found is not None and found.create_revision > before.create_revision

            await until_async(again, "another term")
            await grows(agent_fleet, 3)
        await store.close()

    asyncio.run(scenario())
    assert agent.stop() == 0
    assert_replays(rig, "a")


@pytest.mark.parametrize("value", [b"ghost", b"", b"\xff" * 100_000], ids=["name", "empty", "huge"])
def test_a_leaders_key_without_a_lease_is_reported_and_removed(rig: Rig, value: bytes) -> None:
    async def write() -> None:
        store = EtcdStore(EtcdKnobs(endpoints=(rig.etcd.url,)))
        await store.commit([], [Write(LEADER, value)])
        await store.close()

    asyncio.run(write())
    agent = start(rig, "a")
    agent.wait_leading()
    log = agent.log.read_text()
    assert log.index('"kind": "leader_without_lease"') < log.index('"kind": "leader_deposed"')
    assert agent.stop() == 0
    assert_replays(rig, "a")


def test_a_second_agent_of_the_same_name_stands_by_says_so_once_and_takes_over(rig: Rig) -> None:
    first = rig.agent(config(rig, "a"), "first")
    first.wait_leading()
    second = rig.agent(config(rig, "a"), "second")
    until_true(lambda: "agent_name_taken" in second.log.read_text(), "the alarm")
    first.kill()
    second.wait_leading()
    third = rig.agent(config(rig, "a"), "third")
    until_true(lambda: "agent_name_taken" in third.log.read_text(), "the alarm")
    assert second.log.read_text().count("agent_name_taken") == 1
    assert second.stop() == third.stop() == 0


def test_an_agent_that_starts_again_does_not_take_its_former_key_for_another_agent(rig: Rig) -> None:
    former = start(rig, "a")
    former.wait_leading()
    former.kill()
    again = start(rig, "a")
    again.wait_leading()
    assert "agent_name_taken" not in again.log.read_text()
    assert again.stop() == 0
    assert_replays(rig, "a")
