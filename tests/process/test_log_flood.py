"""Repeated rejections of worker records do not flood the log with alarms."""

import asyncio
from pathlib import Path

import pytest

from loadline.adapters.etcd_store import EtcdStore
from loadline.config import EtcdKnobs
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.ports import Write
from loadline.rig.rig import Rig
from loadline.wire.codec import encode
from loadline.wire.keys import Keys
from tests.support.agents import MODEL, config
from tests.waiting import until

pytestmark = pytest.mark.process

WRITES = 20
PER_WRITE = 100
LINES_MAX = 30


def test_alarms_of_a_wrong_role_are_bounded(tmp_path: Path) -> None:
    async def flood(rig: Rig) -> None:
        store, keys = EtcdStore(EtcdKnobs(endpoints=(rig.etcd.url,))), Keys("default")
        try:
            for number in range(WRITES):
                records = [WorkerRecord(MODEL, "decode", f"w{i}", "prefill", number + 1) for i in range(PER_WRITE)]
                await store.commit([], [Write(keys.worker(r.model, r.pool, r.worker), encode(r)) for r in records])
        finally:
            await store.close()

    with Rig(tmp_path) as rig:
        agent = rig.agent(config(rig, "a"), "a")
        agent.wait_ready()
        asyncio.run(flood(rig))

        def counted() -> bool:
            text = f'loadline_alarms_total{{kind="worker_refused"}} {WRITES * PER_WRITE:.1f}'
            return text in agent.get("/metrics")[1]

        asyncio.run(until(counted))
        assert agent.stop() == 0
        lines = [line for line in agent.log.read_text("utf-8").splitlines() if "worker_refused" in line]
        assert 0 < len(lines) <= LINES_MAX
