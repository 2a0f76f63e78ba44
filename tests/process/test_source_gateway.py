"""The source of routers' traffic as a process, with real NATS and etcd, and routers that answer well and badly."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from loadline.core.vocabulary.samples import TrafficSample, WorkerRecord
from loadline.ports import Write
from loadline.wire.codec import encode
from tests.support.client_rig import Agent
from tests.support.sources import source_at
from tests.waiting import until

pytestmark = pytest.mark.process

REGISTERED, GONE = "http://10.0.0.7:8000", "http://10.0.0.99:8000"


class Routers:
    """A router whose pages a test changes, and three that are broken."""

    def __init__(self) -> None:
        self.requests = 0
        self.away = False
        self.served = 0
        self.url = ""

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        application = web.Application()
        application.router.add_get("/{kind}", self._page)
        async with TestServer(application) as server:
            self.url = str(server.make_url("")).rstrip("/")
            yield

    async def _page(self, request: web.Request) -> web.Response:
        kind = request.match_info["kind"]
        text = (
            f'vllm:num_incoming_requests_total{{model="meta/m"}} {self.requests}\n'
            f'vllm:num_decoding_requests{{server="{REGISTERED}"}} 3\n'
            f'vllm:num_decoding_requests{{server="{GONE}"}} 500\n'
        )
        if kind == "good":
            self.served += 1
            return web.Response(text=text, status=503 if self.away else 200)
        return web.Response(text={"half": text[:-4], "html": "<html></html>\n", "empty": ""}[kind])


def config(url: str) -> str:
    frontends = "".join(
        f'[[frontends]]\nname = "{kind}"\nrouter = "vllm-router"\nurls = ["{url}/{kind}"]\n'
        for kind in ("good", "half", "html", "empty")
    )
    return f'[models]\n"meta/m" = "m"\n{frontends}'


def samples(agent: Agent) -> list[TrafficSample]:
    assert {(report.model, report.frontend.split("-")[0]) for report in agent.traffic} <= {("m", "good")}
    return [report.sample for report in agent.traffic]


def test_traffic_of_a_router_is_reported_and_an_outage_is_silence(
    tmp_path: Path, nats_url: str, etcd_url: str, own_name: str
) -> None:
    async def scenario() -> None:
        routers = Routers()
        servers = (nats_url, etcd_url)
        async with (
            routers.serving(),
            source_at(tmp_path, servers, own_name, "gateway", config(routers.url)) as (agent, _process),
        ):
            record = WorkerRecord("m", "p", "w", "decode", 1, address=REGISTERED)
            await agent.store.commit([], [Write(agent.keys.worker("m", "p", "w"), encode(record))])
            await until(lambda: any(one.in_flight == 3 for one in samples(agent)), "requests at the registered worker")
            assert max(one.in_flight for one in samples(agent)) == 3, "those of a worker that has gone do not count"
            routers.requests += 70
            await until(lambda: sum(one.arrivals for one in samples(agent)) == 70, "arrivals")
            assert samples(agent)[-1].arrivals in {0, 70}
            routers.away = True
            served = routers.served
            await until(lambda: routers.served > served, "an answer without a page")
            agent.traffic.clear()
            routers.requests += 5
            served = routers.served
            await until(lambda: routers.served > served + 1, "more of them")
            assert samples(agent) == [], "silence is not zero"
            routers.away = False
            await until(lambda: sum(one.arrivals for one in samples(agent)) == 5, "what arrived meanwhile")
        log = (tmp_path / "gateway.log").read_text("utf-8")
        assert log.count('"upstream_lost"') == 4
        assert "Traceback" not in log

    asyncio.run(scenario())
