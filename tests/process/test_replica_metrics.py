"""Replica metrics of real agents during silence, a takeover and a restart."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

from loadline.adapters.nats_bus import NatsBus
from loadline.config import NatsKnobs
from loadline.core.vocabulary.samples import WorkerRecord, WorkerSample
from loadline.errors import BusUnavailable
from loadline.rig.rig import ChildAgent, Rig
from loadline.wire.codec import encode
from loadline.wire.messages import LoadReport
from loadline.wire.subjects import Subjects
from tests.waiting import SCENARIO_S, until

pytestmark = pytest.mark.process

MODEL = """
[[models]]
name = "{0}"
namespace = "team-a"
planner = "threshold"
[models.threshold]
metric_pulling_interval_ms = 50
adjustment_interval_ms = 500
[models.guardrails]
stabilisation_ms = 500
warm_up_ms = 500
[[models.pools]]
name = "decode"
role = "decode"
replicas_max = 5
"""
NAMES = ("loud", "mute")
REPORT_S = 0.1

Series = dict[tuple[str, str], float]


def start(rig: Rig, name: str) -> ChildAgent:
    leadership: dict[str, object] = {"lease_ttl_s": 3, "margin_ms": 1_000}
    models = "".join(MODEL.format(name) for name in NAMES)
    return rig.agent(rig.config(models, name, leadership=leadership, fleet={"stale_after_ms": 1_500}), name)


def scrape(agent: ChildAgent, label: str, *metrics: str) -> Series:
    """Return the values by metric and one of its labels."""
    families = text_string_to_metric_families(agent.get("/metrics")[1])
    samples = (sample for family in families for sample in family.samples if sample.name in metrics)
    return {(sample.name, sample.labels[label]): sample.value for sample in samples}


def desired(agent: ChildAgent) -> dict[str, float]:
    return {model: value for (_, model), value in scrape(agent, "model", "loadline_desired_replicas").items()}


async def wanted(agent: ChildAgent, model: str, count: int) -> None:
    await until(lambda: desired(agent).get(model) == count)


class Workers:
    """Overloaded workers, which report unless their model is in ``mute``."""

    def __init__(self, rig: Rig, bus: NatsBus) -> None:
        self._rig, self._bus = rig, bus
        self._workers: list[WorkerRecord] = []
        self.mute: set[str] = set()

    async def add(self, model: str, *names: str) -> None:
        records = [WorkerRecord(model, "decode", name, "decode", 1, "ready") for name in names]
        await self._rig.register(records)
        self._workers += records

    async def report(self) -> None:
        subjects, sequence = Subjects("loadline"), 0
        while True:
            sequence += 1
            for one in self._workers:
                if one.model not in self.mute:
                    sample = WorkerSample(sequence, 0, kv_usage_ratio=0.97, waiting_requests=0, running_requests=1)
                    frame = encode(LoadReport(one.model, one.pool, one.worker, 1, [sample]))
                    try:
                        await self._bus.publish(subjects.load(one.model, one.pool, one.worker), frame)
                    except BusUnavailable:
                        break
            await asyncio.sleep(REPORT_S)


@asynccontextmanager
async def overloaded(rig: Rig) -> AsyncIterator[Workers]:
    """Yield an agent with two overloaded workers of each model."""
    bus = NatsBus(NatsKnobs(servers=(rig.nats.url,)), name="workers")
    await bus.connect(lambda _connected: None)
    workers = Workers(rig, bus)
    reporting = asyncio.create_task(workers.report())
    try:
        async with asyncio.timeout(SCENARIO_S):
            for model in NAMES:
                await workers.add(model, f"{model}-0", f"{model}-1")
            yield workers
    finally:
        reporting.cancel()
        await asyncio.gather(reporting, return_exceptions=True)
        await bus.close()


def test_a_silent_model_keeps_its_count_and_others_scale_up(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOADLINE__HTTP__COMPATIBLE_METRICS", '["inferno", "wva"]')
    agent = start(rig, "a")

    async def scenario() -> None:
        async with overloaded(rig) as workers:
            await until(lambda: desired(agent) == {"loud": 3, "mute": 3})
            workers.mute.add("mute")
            conditions = {("loadline_model_condition", "MetricsStale"): 0.0}
            await until(lambda: conditions.items() <= scrape(agent, "reason", "loadline_model_condition").items())
            for n, count in ((2, 4), (3, 5)):
                await workers.add("loud", f"loud-{n}")
                await wanted(agent, "loud", count)
            assert desired(agent)["mute"] == 3

    asyncio.run(scenario())
    theirs = scrape(agent, "variant_name", "inferno_desired_replicas", "wva_current_replicas")
    assert theirs == {
        ("inferno_desired_replicas", "loud/decode"): 5,
        ("inferno_desired_replicas", "mute/decode"): 3,
        ("wva_current_replicas", "loud/decode"): 4,
        ("wva_current_replicas", "mute/decode"): 2,
    }


def test_no_exported_count_falls_during_a_takeover_and_a_restart(rig: Rig) -> None:
    first = start(rig, "a")
    first.wait_leading()
    second = start(rig, "b")
    seen: list[dict[str, float]] = []

    def exports_counts(agent: ChildAgent) -> bool:
        seen.append(desired(agent))
        return len(seen[-1]) == len(NAMES)

    async def scenario() -> None:
        async with overloaded(rig):
            await until(lambda: desired(first) == {"loud": 3, "mute": 3})
            assert desired(second) == {}, "a standby exports no count"
            first.kill()
            await until(lambda: exports_counts(second))
            second.kill()
            third = start(rig, "c")
            await until(lambda: exports_counts(third))

    asyncio.run(scenario())
    assert {} in seen, "there is no count while it is unknown"
    assert {value for one in seen for value in one.values()} == {3.0}
