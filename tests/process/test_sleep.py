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

SLEEPY = """
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
NOBODY = {"decode": 0, "prefill": 0}
ONE_EACH = {"decode": 1, "prefill": 1}


def test_the_next_leader_scales_a_model_from_zero_at_the_first_request(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        nats = NatsKnobs(servers=(rig.nats.url,))
        async with fleet(rig) as made, FrontendClient(MODEL, "f", nats=nats, interval_ms=200) as frontend:
            frontend.in_flight = 1
            await made.add("decode", "d1")
            await made.add("prefill", "p1")
            for worker in made.workers.values():
                worker.running = 0
                worker.may_leave.set()
            await until(lambda: made.observer.desired() == ONE_EACH)
            frontend.in_flight = 0
            await until(lambda: made.observer.desired() == NOBODY)
            assert set(made.observer.committed[-1].reasons) >= {"decode:idle", "prefill:idle"}
            for worker in made.workers.values():
                await worker.client.drained.wait()

            first.kill()
            del made.observer.statuses["a"]
            await until(lambda: made.observer.leader() is not None)
            assert made.observer.desired() == NOBODY
            frontend.queued = 1
            frontend.arrived(100)
            await frontend.report_now()
            await until(lambda: made.observer.desired() == ONE_EACH)
            assert set(made.observer.committed[-1].reasons) >= {"decode:first_worker", "prefill:first_worker"}

    with Rig(tmp_path) as rig:
        first = rig.agent(config(rig, "a", SLEEPY), "a")
        first.wait_ready()
        second = rig.agent(config(rig, "b", SLEEPY), "b")
        second.wait_ready()

        async def run() -> None:
            async with asyncio.timeout(SCENARIO_S):
                await scenario(rig)

        asyncio.run(run())
        assert second.stop() == 0
        assert_replays(rig, "a")
        assert_replays(rig, "b")
