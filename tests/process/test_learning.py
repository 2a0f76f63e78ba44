"""Learned state survives a restart of all agents."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import pytest

from loadline.adapters.etcd_store import EtcdStore
from loadline.adapters.nats_bus import NatsBus
from loadline.config import EtcdKnobs
from loadline.core.vocabulary.learned import LearnedState
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.errors import BusUnavailable
from loadline.ports import Write
from loadline.rig.rig import ChildAgent, Rig
from loadline.wire.codec import Rejected, decode_learned, encode
from loadline.wire.keys import Keys
from loadline.wire.messages import LoadReport
from loadline.wire.subjects import Subjects
from tests.support.agents import MODEL, AgentFleet, config, fleet
from tests.waiting import SCENARIO_S, until, until_async

pytestmark = pytest.mark.process

KEY = Keys("default").learned(MODEL)


def start(rig: Rig, name: str) -> ChildAgent:
    agent = rig.agent(config(rig, name), name)
    agent.wait_ready()
    return agent


def run_scenario(rig: Rig, scenario: Callable[[AgentFleet, EtcdStore], Awaitable[None]]) -> None:
    async def run() -> None:
        store = EtcdStore(EtcdKnobs(endpoints=(rig.etcd.url,)))
        try:
            async with asyncio.timeout(SCENARIO_S), fleet(rig) as agent_fleet:
                await scenario(agent_fleet, store)
        finally:
            await store.close()

    asyncio.run(run())


async def stored(store: EtcdStore) -> LearnedState | None:
    found = [decode_learned(MODEL, entry.value) for entry in (await store.read(KEY)).entries]
    return found[0] if found and not isinstance(found[0], Rejected) else None


def start_up_ms(agent_fleet: AgentFleet) -> int | None:
    """Return the start-up time of decode workers in the leader's status."""
    status = agent_fleet.observer.leader()
    pools = {pool.pool: pool for pool in status.models[0].pools} if status else {}
    return pools["decode"].start_up_ms if pools else None


def test_a_learned_start_up_time_survives_a_restart_of_all_agents(rig: Rig) -> None:
    agents = [start(rig, name) for name in ("a", "b")]

    async def scenario(agent_fleet: AgentFleet, store: EtcdStore) -> None:
        await agent_fleet.add("decode", "d1", "d2")
        await agent_fleet.add("prefill", "p1")
        agent_fleet.load(kv=0.97, waiting=0)
        await until(lambda: agent_fleet.observer.desired().get("decode", 0) == 3)
        agent_fleet.load(kv=0.7)
        await agent_fleet.add("decode", "d3")

        async def stored_ms() -> int | None:
            learned = await stored(store)
            return max(learned.start_ups_ms.get("decode", []), default=None) if learned else None

        await until_async(stored_ms, "what was learned is stored")
        for agent in agents:
            agent.kill()
        known_ms = await stored_ms()
        agent_fleet.observer.statuses.clear()
        start(rig, "c")
        await until(lambda: agent_fleet.observer.leader() is not None)
        assert start_up_ms(agent_fleet) == known_ms

    run_scenario(rig, scenario)


class Engines:
    """Workers of a model without a profile, which report iterations of 10 ms plus 0.5 ms per request."""

    def __init__(self, bus: NatsBus) -> None:
        self.say_iterations = True
        self._bus = bus

    async def report(self) -> None:
        sequence = 0
        while True:
            sequence += 1
            batch = 1 + sequence * 7 % 40
            took_ms = 10.0 + 0.5 * batch if self.say_iterations else None
            sample = WorkerSample(
                sequence, 0, kv_usage_ratio=0.5, waiting_requests=0, decode_batch_requests=batch, iteration_ms=took_ms
            )
            with contextlib.suppress(BusUnavailable):
                subject = Subjects("loadline").load(MODEL, "decode", "d1")
                await self._bus.publish(subject, encode(LoadReport(MODEL, "decode", "d1", 1, [sample])))
            await asyncio.sleep(0.05)


def test_a_learned_fit_survives_a_restart_without_new_reports(rig: Rig) -> None:
    models = f'[[models]]\nname = "{MODEL}"\nplanner = "queueing"\n[[models.pools]]\nname = "decode"\nrole = "decode"\n'
    first = rig.agent(rig.config(models, "a"), "a")
    first.wait_ready()

    async def scenario(agent_fleet: AgentFleet, store: EtcdStore) -> None:
        await rig.register([WorkerRecord(MODEL, "decode", "d1", "decode", 1, "ready")])
        engines = Engines(agent_fleet.bus)
        reporting = asyncio.create_task(engines.report())

        async def kept() -> bool:
            learned = await stored(store)
            return learned is not None and learned.planner == "queueing"

        try:
            await until_async(kept, "what was learned")
            engines.say_iterations = False
            first.kill()
            learned = await stored(store)
            second = rig.agent(rig.config(models, "b"), "b")
            second.wait_ready()
            await until(lambda: "b" in agent_fleet.observer.statuses and agent_fleet.observer.statuses["b"].leading)
            await store.commit([], [Write(KEY, None)])
            await until_async(kept, "written anew, of what it knows")
            assert await stored(store) == learned
        finally:
            reporting.cancel()
            await asyncio.gather(reporting, return_exceptions=True)

    run_scenario(rig, scenario)


def test_invalid_learned_state_is_counted_and_ignored(rig: Rig) -> None:
    async def scenario(agent_fleet: AgentFleet, store: EtcdStore) -> None:
        await store.commit([], [Write(KEY, b'{"version": 2, "start_ups_ms": "soon"}')])
        agent = start(rig, "a")
        await agent_fleet.add("decode", "d1", "d2")
        await agent_fleet.add("prefill", "p1")
        agent_fleet.load(kv=0.97, waiting=0)
        await until(lambda: agent_fleet.observer.desired().get("decode", 0) == 3)
        assert start_up_ms(agent_fleet) is None
        assert 'loadline_rejected_total{reason="invalid"} 1.0' in agent.get("/metrics")[1]

    run_scenario(rig, scenario)
