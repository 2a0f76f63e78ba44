"""Scaler that refuses victims which its platform would not remove, with a real agent and workers that drain."""

import asyncio

import pytest

from loadline.adapters.etcd_store import EtcdStore
from loadline.client.scaler import ScalerClient
from loadline.config import EtcdKnobs, NatsKnobs
from loadline.core.vocabulary.decisions import PoolTarget, VictimRule
from loadline.ports import Write
from loadline.rig.rig import Rig
from loadline.wire.keys import Keys
from tests.support.agents import MODEL, MODELS, AgentFleet, config, fleet
from tests.waiting import SCENARIO_S, until

pytestmark = pytest.mark.process


async def set_paused(rig: Rig, *, paused: bool) -> None:
    """Let the agent decide only once all workers have registered: a decision for fewer makes the last ones surplus."""
    store = EtcdStore(EtcdKnobs(endpoints=(rig.etcd.url,)))
    try:
        await store.commit([], [Write(Keys("default").pause(MODEL), b"test" if paused else None)])
    finally:
        await store.close()


async def apply_first(rig: Rig, rule: VictimRule) -> tuple[int, PoolTarget]:
    """Accept the first scale-down by the rule, refuse others; return the number of refusals and the target."""
    refusals = 0
    async with ScalerClient("scripted", [MODEL], nats=NatsKnobs(servers=(rig.nats.url,))) as scaler:
        async for received in scaler:
            target, counts = received.targets["decode"], {pool: one.replicas for pool, one in received.targets.items()}
            if target.victim_rule == "named" and not target.victims:  # replicas_min, while workers register
                await scaler.complete(received, counts)
                continue
            if target.victim_rule != rule:
                refusals += 1
                await scaler.refuse(received, f"the platform removes by {rule}", {"decode": rule})
                continue
            await scaler.accept(received, {"decode": rule})
            drained = [
                await scaler.wait_drained(MODEL, "decode", one.worker, SCENARIO_S, one.incarnation)
                for one in target.victims
            ]
            assert all(drained)
            await scaler.complete(received, counts)
            return refusals, target
    raise AssertionError


@pytest.mark.parametrize(
    ("rule", "victim"), [("named", "d0"), ("newest", "d1"), ("highest_ordinal", "d2"), ("unknown", "")]
)
def test_the_worker_that_the_platform_removes_is_drained_and_no_other(rig: Rig, rule: VictimRule, victim: str) -> None:
    text = MODELS.replace("replicas_max = 9", "replicas_max = 9\nreplicas_min = 2")
    asyncio.run(set_paused(rig, paused=True))
    rig.agent(config(rig, "a", text), "a").wait_ready()

    def alarmed(agents: AgentFleet) -> bool:
        status = agents.observer.leader()
        return status is not None and "alarm_decision_refused" in status.counters

    async def scenario() -> None:
        async with asyncio.timeout(SCENARIO_S), fleet(rig) as agents:
            await agents.add("decode", "d0")
            await agents.add("decode", "d1", incarnation=3)
            await agents.add("decode", "d2", incarnation=2)
            await agents.add("prefill", "p1")
            for worker in agents.workers.values():
                worker.may_leave.set()
            agents.workers["d0"].running = 0
            agents.load(kv=0.3)
            await set_paused(rig, paused=False)
            refusals, target = await apply_first(rig, rule)
            assert refusals == int(rule != "named"), "decided again at once, and once"
            assert [one.worker for one in target.victims] == [victim] * bool(victim)
            await until(lambda: agents.observer.desired() == {"decode": 2, "prefill": 1})
            assert [name for name, one in agents.workers.items() if one.drain] == [victim] * bool(victim)
            assert not alarmed(agents)

    asyncio.run(scenario())
