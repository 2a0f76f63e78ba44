"""Scale to zero and from zero of real agents, also across a change of leader."""

import asyncio
from pathlib import Path

import pytest

from loadline.client.frontend import FrontendClient
from loadline.config import NatsKnobs
from loadline.rig.rig import Rig
from tests.support.agents import MODEL, assert_replays, config, fleet
from tests.waiting import SCENARIO_S, until

pytestmark = pytest.mark.process

SCALE_TO_ZERO = """
[[models]]
name = "m"
scale_to_zero_after_ms = 1500
[models.guardrails]
warm_up_ms = 500
[[models.pools]]
name = "decode"
role = "decode"
replicas_min = 0
replicas_max = 1
[[models.pools]]
name = "prefill"
role = "prefill"
replicas_min = 0
replicas_max = 1
"""
NO_WORKERS = {"decode": 0, "prefill": 0}
ONE_EACH = {"decode": 1, "prefill": 1}


def test_the_next_leader_scales_a_model_from_zero_at_the_first_request(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        nats = NatsKnobs(servers=(rig.nats.url,))
        async with fleet(rig) as agent_fleet, FrontendClient(MODEL, "f", nats=nats, interval_ms=200) as frontend:
            frontend.in_flight = 1
            await agent_fleet.accept_decisions()
            await agent_fleet.add("decode", "d1")
            await agent_fleet.add("prefill", "p1")
            for worker in agent_fleet.workers.values():
                worker.running = 0
                worker.may_leave.set()
            await until(lambda: agent_fleet.observer.desired() == ONE_EACH)
            frontend.in_flight = 0
            await until(lambda: agent_fleet.observer.desired() == NO_WORKERS)
            assert set(agent_fleet.observer.committed[-1].reasons) >= {"decode:idle", "prefill:idle"}
            for worker in agent_fleet.workers.values():
                await worker.client.drained.wait()

            first.kill()
            del agent_fleet.observer.statuses["a"]
            await until(lambda: agent_fleet.observer.leader() is not None)
            assert agent_fleet.observer.desired() == NO_WORKERS
            frontend.queued = 1
            frontend.arrived(100)
            await frontend.report_now()
            await until(lambda: agent_fleet.observer.desired() == ONE_EACH)
            assert set(agent_fleet.observer.committed[-1].reasons) >= {"decode:first_worker", "prefill:first_worker"}

    with Rig(tmp_path) as rig:
        first = rig.agent(config(rig, "a", SCALE_TO_ZERO), "a")
        first.wait_leading()
        second = rig.agent(config(rig, "b", SCALE_TO_ZERO), "b")
        second.wait_ready()

        async def run() -> None:
            async with asyncio.timeout(SCENARIO_S):
                await scenario(rig)

        asyncio.run(run())
        assert second.stop() == 0
        assert_replays(rig, "a")
        assert_replays(rig, "b")
