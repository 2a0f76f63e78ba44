"""Workers of a pool that Prometheus reads: the incarnations with which they are registered."""

import asyncio
from collections.abc import Mapping
from typing import cast

import msgspec

from loadline.adapters.http_reader import HttpReader
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.sources.prometheus import _PoolSource
from loadline.sources.prometheus_config import PrometheusKnobs, PrometheusPoolKnobs
from loadline.sources.workers import SourcedWorkers
from loadline.wire.keys import Keys
from tests.support.memory import MemoryBus, MemoryStore
from tests.support.virtual_time import run_virtual

KEYS = Keys("default")


class Prometheus:
    """The API of a server that has one pod with several containers, or, without a start, another pod only."""

    def __init__(self) -> None:
        self.at_s = 1_000.0
        self.started_s: list[float] = []

    async def get(self, _url: str, _parameters: Mapping[str, str]) -> bytes:
        self.at_s += 15.0
        of_engine: list[dict[str, str]] = [
            {"__name__": f"vllm:{name}", "instance": "10.0.0.1:8000"}
            for name in ("num_requests_running", "num_requests_waiting")
        ]
        starts = [
            {"__name__": "process_start_time_seconds", "instance": f"10.0.0.1:{8_000 + number}"}
            for number in range(len(self.started_s))
        ]
        values = [4.0, 0.0, *self.started_s]
        result: list[dict[str, object]] = [
            {"metric": {"pod": "w" if self.started_s else "other", **metric}, "values": [[self.at_s, str(value)]]}
            for metric, value in zip([*of_engine, *starts], values, strict=True)
        ]
        return msgspec.json.encode({"status": "success", "data": {"resultType": "matrix", "result": result}})


def incarnations(*pages: list[float]) -> list[int]:
    """Return the incarnation of a worker after each page of its pod, which has the starts of some processes."""
    pool = PrometheusPoolKnobs(model="m", name="p", role="decode", engine="vllm")
    knobs, prometheus, found = PrometheusKnobs(pools=(pool,)), Prometheus(), list[int]()

    async def scenario() -> None:
        bus, store = MemoryBus(), MemoryStore()
        async with SourcedWorkers(knobs, "source", bus=bus, store=store) as workers:
            source = _PoolSource(pool, knobs, cast("HttpReader", prometheus), workers, bus, with_series=set())
            for started_s in pages:
                prometheus.started_s = started_s
                await source.poll()
                await asyncio.sleep(5)
                entry = store.server.keys[KEYS.worker("m", "p", "w")]
                found.append(msgspec.json.decode(entry.value, type=WorkerRecord).incarnation)

    run_virtual(scenario())
    return found


def test_another_number_of_processes_in_a_pod_is_no_restart() -> None:
    """A sidecar that was not scraped: the worker left, and was registered again."""
    assert incarnations([400.0, 500.0], [400.0], [400.0, 500.0]) == [1, 1, 1]
    assert incarnations([400.0], [400.0, 500.0], [400.0]) == [400_000] * 3


def test_an_outage_is_no_restart() -> None:
    """The first page after it may have one of a pod's two servers: the worker was registered again."""
    assert incarnations([400.0, 500.0], [], [400.0], [400.0, 500.0]) == [1] * 4
    assert incarnations([400.0], [], [900.0]) == [400_000, 400_000, 900_000]


def test_a_start_after_the_known_one_is_a_restart() -> None:
    assert incarnations([400.0], [900.0]) == [400_000, 900_000]
    assert incarnations([400.0, 500.0], [400.0], [900.0]) == [1, 1, 900_000]
