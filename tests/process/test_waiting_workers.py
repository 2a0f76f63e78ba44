"""Local scaler whose workers wait for a GPU: what it logs."""

import asyncio

import pytest
import structlog

from loadline.client.scaler import ScalerClient
from loadline.core.vocabulary.decisions import PoolTarget
from loadline.scalers.local.config import LocalKnobs, LocalModelKnobs, LocalPoolKnobs
from loadline.scalers.local.launcher import ChildLauncher
from loadline.scalers.local.scaler import LocalScaler
from loadline.wire.codec import encode
from loadline.wire.subjects import Subjects
from tests.support.decisions import decision
from tests.support.memory import MemoryBus
from tests.waiting import SCENARIO_S

pytestmark = pytest.mark.process


def test_a_worker_that_waits_is_logged_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = LocalPoolKnobs("p", "decode", ("sleep", "600"))
    knobs = LocalKnobs((LocalModelKnobs("m", (pool,)),), gpus=("0",), avoid_used_gpus=False)

    async def scenario() -> None:
        bus, stop, turns = MemoryBus(), asyncio.Event(), 0
        async with asyncio.timeout(SCENARIO_S), ScalerClient("s", ["m"], bus=bus) as scaler:
            local = LocalScaler(knobs, scaler, ChildLauncher(outlive=False), None)

            async def report() -> None:
                nonlocal turns
                turns += bool(local._pools["m", "p"].waits)
                if turns > 4:
                    stop.set()

            monkeypatch.setattr(local, "_report", report)
            await bus.publish(
                Subjects(knobs.root).decision("m"), encode(decision(1, 1, PoolTarget("p", "decode", 3, 0)))
            )
            await local.run(stop)

    with structlog.testing.capture_logs() as lines:
        asyncio.run(scenario())
    assert [one["reason"] for one in lines if one["event"] == "worker_waits"] == ["needs 1 GPU, 0 of 1 are free"]
