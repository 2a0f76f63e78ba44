"""Log of the oddities of pages."""

import asyncio
import json
from collections.abc import Callable, Coroutine
from typing import Any

from structlog.testing import capture_logs

from loadline.engine_metrics.router_reader import RouterReader
from loadline.engine_metrics.router_tables import ROUTERS
from loadline.sources import gateway, prometheus
from loadline.sources.oddities import OddityLog
from loadline.sources.prometheus_config import PrometheusFrontendKnobs, PrometheusKnobs, PrometheusPoolKnobs
from loadline.sources.traffic import RegisteredAddresses, TrafficReporter
from loadline.sources.workers import SourcedWorkers
from tests.support.memory import MemoryBus, MemoryStore

PAGE = 'llm_d_epp_request_total{{model_name="{model}",target_model_name="{model}"}} {count}\n'


def test_a_model_that_is_not_configured_is_named_once() -> None:
    reader = RouterReader(ROUTERS["llm-d"], {"Qwen/Qwen3-8B": "qwen"}, "", lambda _: None)
    oddities = OddityLog("http://epp:9090/metrics")
    with capture_logs() as lines:
        for count in range(1, 4):
            reader.read(PAGE.format(model="qwen/qwen3-8b", count=count).encode(), 1_000 * count)
            oddities.update(reader.warnings, reader.unknown_model)
    [line] = lines
    assert (line["event"], line["kind"], line["model"]) == ("metrics_odd", "model_ignored", "qwen/qwen3-8b")
    assert line["page"] == "http://epp:9090/metrics"


def test_other_kinds_have_their_count() -> None:
    oddities = OddityLog("p")
    with capture_logs() as lines:
        oddities.update({"counter_fell": 1})
        oddities.update({"counter_fell": 2, "above_capacity": 3})
    assert [(line["kind"], line["count"]) for line in lines] == [("counter_fell", 1), ("above_capacity", 3)]


class Pages:
    """Pages of every address."""

    def __init__(self, body: bytes) -> None:
        self.body = body

    async def get(self, _url: str, _query: dict[str, str] | None = None) -> bytes:
        return self.body


def answer_of(metric: str, at_s: float, **labels: str) -> bytes:
    """Return an answer of Prometheus with one series, whose value is 2."""
    found = {"metric": {"__name__": metric, "pod": "w"} | labels, "values": [[at_s, "2"]]}
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": [found]}}).encode()


def oddities_of(polls: Callable[[MemoryBus], Coroutine[Any, Any, None]]) -> list[tuple[str, str]]:
    """Return page and kind of the lines that a source logs."""
    with capture_logs() as lines:
        asyncio.run(polls(MemoryBus()))
    return [(line["page"], line["kind"]) for line in lines if line["event"] == "metrics_odd"]


def test_the_source_of_gateways_logs_them() -> None:
    async def polls(bus: MemoryBus) -> None:
        reader = RouterReader(ROUTERS["llm-d"], {}, "", lambda _: None)
        pages: Any = Pages(PAGE.format(model="x", count=1).encode())
        replica = gateway._Replica("http://epp/metrics", pages, reader, TrafficReporter(bus, "loadline", "f"))
        for _ in range(3):
            await replica.poll()

    assert oddities_of(polls) == [("http://epp/metrics", "model_ignored")]


def test_the_source_of_prometheus_logs_those_of_routers() -> None:
    async def polls(bus: MemoryBus) -> None:
        frontend = PrometheusFrontendKnobs(name="f", router="llm-d")
        pages: Any = Pages(b"")
        source = prometheus._FrontendSource(frontend, PrometheusKnobs(), pages, RegisteredAddresses(), bus)
        for at_s in (1_000.0, 1_015.0, 1_030.0):
            pages.body = answer_of("llm_d_epp_request_total", at_s, model_name="x")
            await source.poll()

    assert oddities_of(polls) == [("http://127.0.0.1:9090 {}", "model_ignored")]


def test_the_source_of_prometheus_logs_those_of_engines() -> None:
    async def polls(bus: MemoryBus) -> None:
        pool = PrometheusPoolKnobs(model="m", name="p", role="aggregated", engine="vllm")
        knobs = PrometheusKnobs(pools=(pool,))
        pages: Any = Pages(answer_of("vllm:kv_cache_usage_perc", 1_000.0, engine="0"))
        async with SourcedWorkers(knobs, "source", bus=bus, store=MemoryStore()) as workers:
            await prometheus._PoolSource(pool, knobs, pages, workers, bus, with_series=set()).poll()

    assert oddities_of(polls) == [("http://127.0.0.1:9090 {}", "above_capacity")]
