"""The source of Prometheus as a process, against a server with its API, and once against a real Prometheus."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from loadline.core.vocabulary.samples import TrafficSample, WorkerSample
from loadline.rig.server_processes import free_port
from tests.support.client_rig import Agent
from tests.support.programs import find_program
from tests.support.sources import source_at
from tests.waiting import until, until_async

pytestmark = pytest.mark.process
PROMETHEUS = find_program("prometheus")


class Engines:
    """Two engines: their metrics as pages, and in the API of a Prometheus that has read them."""

    def __init__(self) -> None:
        self.waiting = {"w": 4, "gone": 1}
        self.finished = 10
        self.started_s = 1_700_000_000.5
        self.status = 200
        self.asked = 0
        self.url = ""

    def lines(self, worker: str) -> dict[str, float]:
        return {
            "vllm:num_requests_waiting": self.waiting[worker],
            "vllm:num_requests_running": 2,
            "vllm:kv_cache_usage_perc": 0.5,
            "vllm:request_success_total": self.finished,
            "process_start_time_seconds": self.started_s,
        }

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        application = web.Application()
        application.router.add_get("/api/v1/query", self._query)
        application.router.add_get("/metrics/{worker}", self._page)
        async with TestServer(application) as server:
            self.url = str(server.make_url("")).rstrip("/")
            yield

    async def _page(self, request: web.Request) -> web.Response:
        lines = self.lines(request.match_info["worker"]).items()
        return web.Response(text="".join(f'{name}{{engine="0"}} {value}\n' for name, value in lines))

    async def _query(self, request: web.Request) -> web.Response:
        assert 'job="vllm"' in request.query["query"]
        self.asked += 1
        result: list[dict[str, Any]] = [
            {"metric": {"__name__": name, "pod": worker, "engine": "0"}, "values": [[time.time(), str(value)]]}
            for worker in self.waiting
            for name, value in self.lines(worker).items()
        ]
        whole = {"status": "success", "data": {"resultType": "matrix", "result": result}}
        return web.Response(body=msgspec.json.encode(whole), status=self.status)


@asynccontextmanager
async def running_prometheus(file: Path, port: int) -> AsyncIterator[None]:
    options = [f"--config.file={file}", f"--web.listen-address=127.0.0.1:{port}"]
    with (file.parent / "server.log").open("ab") as log:
        data = f"--storage.tsdb.path={file.parent / 'data'}"
        server = await asyncio.create_subprocess_exec(str(PROMETHEUS), *options, data, stderr=log)
    try:
        yield
    finally:
        server.kill()
        await server.wait()


def config(url: str) -> str:
    pool = '[[pools]]\nmodel = "m"\nname = "p"\nrole = "decode"\nengine = "vllm"\nselector = \'job="vllm"\'\n'
    return f'url = "{url}"\nlost_after_s = 2\nlease_ttl_s = 5\n{pool}traffic = true\n'


def newest(agent: Agent, worker: str) -> WorkerSample | None:
    samples = [sample for report in agent.loads if report.worker == worker for sample in report.samples]
    return samples[-1] if samples else None


def waiting(agent: Agent, worker: str) -> int | None:
    sample = newest(agent, worker)
    return None if sample is None else sample.waiting_requests


def traffic(agent: Agent) -> list[TrafficSample]:
    return [report.sample for report in agent.traffic if report.frontend == "w"]


def test_engines_behind_prometheus_are_registered_reported_and_removed(
    tmp_path: Path, nats_url: str, etcd_url: str, own_name: str
) -> None:
    async def scenario() -> None:
        engines = Engines()
        servers = (nats_url, etcd_url)
        async with (
            engines.serving(),
            source_at(tmp_path, servers, own_name, "prometheus", config(engines.url)) as (agent, _process),
        ):
            await until(lambda: waiting(agent, "w") == 4 and waiting(agent, "gone") == 1, "both engines")
            sample = newest(agent, "w")
            assert sample is not None
            assert (sample.running_requests, sample.kv_usage_ratio) == (2, 0.5)
            engines.finished += 30
            await until(lambda: sum(one.completed for one in traffic(agent)) == 30, "their traffic")
            engines.status = 503
            asked = engines.asked
            await until(lambda: engines.asked > asked, "an answer without data")
            agent.loads.clear()
            asked = engines.asked
            await until(lambda: engines.asked > asked, "another one")
            assert agent.loads == [], "silence is not zero"
            del engines.waiting["gone"]
            engines.status = 200
            await until(lambda: waiting(agent, "w") == 4, "reports again")

            async def removed() -> bool:
                return await agent.entry("gone") is None

            async def began(started_ms: int) -> bool:
                entry = await agent.entry("w")
                return entry is not None and msgspec.json.decode(entry.value)["incarnation"] == started_ms

            await until_async(removed, "an engine without values is removed")
            assert await began(1_700_000_000_500)
            engines.started_s += 3_600
            await until_async(lambda: began(1_700_003_600_500), "an engine that was restarted in its pod")
        log = (tmp_path / "prometheus.log").read_text("utf-8")
        assert log.count('"upstream_lost"') == 1
        assert "Traceback" not in log

    asyncio.run(scenario())


@pytest.mark.skipif(PROMETHEUS is None, reason="prometheus is not installed: apt-get install prometheus")
def test_a_real_prometheus_answers_as_expected(tmp_path: Path, nats_url: str, etcd_url: str, own_name: str) -> None:
    async def scenario() -> None:
        engines, port = Engines(), free_port()
        async with engines.serving():
            host = engines.url.removeprefix("http://")
            jobs = "".join(
                f"- job_name: {worker}\n  metrics_path: /metrics/{worker}\n  static_configs:\n"
                f'  - targets: ["{host}"]\n    labels: {{job: vllm, pod: {worker}}}\n'
                for worker in engines.waiting
            )
            file = tmp_path / "server.yml"
            file.write_text(f"global: {{scrape_interval: 200ms}}\nscrape_configs:\n{jobs}", "utf-8")
            async with (
                running_prometheus(file, port),
                source_at(
                    tmp_path, (nats_url, etcd_url), own_name, "prometheus", config(f"http://127.0.0.1:{port}")
                ) as (agent, _process),
            ):
                await until(lambda: waiting(agent, "w") == 4 and waiting(agent, "gone") == 1, "both engines")
                engines.finished += 30
                engines.waiting["w"] = 0
                await until(lambda: waiting(agent, "w") == 0, "a newer value")
                await until(lambda: sum(one.completed for one in traffic(agent)) == 30, "their traffic")

    asyncio.run(scenario())
