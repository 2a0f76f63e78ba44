"""What agents have learned outlives all of them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from loadline.adapters.etcd_store import EtcdStore
from loadline.config import EtcdKnobs
from loadline.core.learned import Learned
from loadline.ports import Write
from loadline.rig.rig import AgentProcess, Rig
from loadline.wire.codec import Rejected, decode_learned
from loadline.wire.keys import Keys
from tests.support.agents import MODEL, Fleet, config, fleet
from tests.waiting import until, until_async

pytestmark = pytest.mark.process

KEY = Keys("default").learned(MODEL)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path) as made:
        yield made


def start(rig: Rig, name: str) -> AgentProcess:
    agent = rig.agent(config(rig, name), name)
    agent.wait_ready()
    return agent


def play(rig: Rig, scenario: Callable[[Fleet, EtcdStore], Awaitable[None]]) -> None:
    async def run() -> None:
        store = EtcdStore(EtcdKnobs(endpoints=(rig.etcd.url,)))
        try:
            async with asyncio.timeout(90), fleet(rig) as made:
                await scenario(made, store)
        finally:
            await store.close()

    asyncio.run(run())


async def stored(store: EtcdStore) -> Learned | None:
    found = [decode_learned(MODEL, entry.value) for entry in (await store.read(KEY)).entries]
    return found[0] if found and not isinstance(found[0], Rejected) else None


def start_up_ms(made: Fleet) -> int | None:
    """As the leader says it of the decode workers."""
    status = made.observer.leader()
    pools = {pool.pool: pool for pool in status.models[0].pools} if status else {}
    return pools["decode"].start_up_ms if pools else None


def test_a_start_up_that_was_learned_is_known_after_a_restart_of_all_agents(rig: Rig) -> None:
    agents = [start(rig, name) for name in ("a", "b")]

    async def scenario(made: Fleet, store: EtcdStore) -> None:
        await made.add("decode", "d1", "d2")
        await made.add("prefill", "p1")
        made.load(kv=0.97, waiting=0)
        await until(lambda: made.observer.desired().get("decode", 0) == 3)
        made.load(kv=0.7)
        await made.add("decode", "d3")

        async def kept() -> bool:
            return await stored(store) is not None

        await until_async(kept, "what was learned")
        learned = await stored(store)
        assert learned is not None
        assert start_up_ms(made) == max(learned.start_ups_ms["decode"])
        for agent in agents:
            agent.kill()
        made.observer.statuses.clear()
        start(rig, "c")
        await until(lambda: made.observer.leader() is not None)
        assert start_up_ms(made) == max(learned.start_ups_ms["decode"])

    play(rig, scenario)


def test_garbage_in_its_place_is_counted_and_stops_nobody(rig: Rig) -> None:
    async def scenario(made: Fleet, store: EtcdStore) -> None:
        await store.commit([], [Write(KEY, b'{"version": 2, "start_ups_ms": "soon"}')])
        agent = start(rig, "a")
        await made.add("decode", "d1", "d2")
        await made.add("prefill", "p1")
        made.load(kv=0.97, waiting=0)
        await until(lambda: made.observer.desired().get("decode", 0) == 3)
        assert start_up_ms(made) is None
        assert 'loadline_rejected_total{reason="invalid"} 1.0' in agent.get("/metrics")[1]

    play(rig, scenario)
