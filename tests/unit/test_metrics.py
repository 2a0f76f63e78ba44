import asyncio

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from loadline.adapters.http import HttpServer
from loadline.adapters.metrics import Metrics
from loadline.core.status import AgentStatus, ModelStatus, PoolStatus, TrafficStatus, WorkerStatus


def status_with(counters: dict[str, int], rejected: dict[str, int]) -> AgentStatus:
    worker = WorkerStatus("secret-worker-name", "ready", 10, 0.5, 1, 2)
    pool = PoolStatus("p0", "decode", 4, 3, 1, 0, 0, 2, 0.25, 7, 9, (worker,))
    traffic = TrafficStatus(None, None, None, None, None, 0)
    model = ModelStatus(
        model='meta/llama "3"\n',
        planner="threshold",
        paused=True,
        no_operation=False,
        pools=(pool,),
        traffic=traffic,
        decision=None,
        hold=(),
    )
    return AgentStatus(
        agent="a",
        version="1.2.3",
        at_ms=0,
        uptime_ms=2_500,
        leading=True,
        epoch=17,
        leader="a",
        bus_connected=True,
        store_connected=False,
        models=(model,),
        rejected=rejected,
        counters=counters,
    )


def samples(text: bytes) -> dict[str, float]:
    found = {}
    for family in text_string_to_metric_families(text.decode()):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}"] = sample.value
    return found


def test_the_status_is_rendered() -> None:
    counters = {"decisions_committed": 5, "commits_refused": 1, "alarm_decision_expired": 2, "workers_drained": 3}
    runtime = {"frames": 100.0, "frames_dropped": 4.0, "journal_lost": 6.0, "refused_malformed": 8.0}
    metrics = Metrics(lambda: status_with(counters, {"unknown_pool": 2, "malformed": 1}), lambda: runtime, "1.2.3")
    for seconds in (0.0001, 0.003, 0.003, 7.0):
        metrics.observe_turn(seconds)
    text = metrics.render()
    found = samples(text)
    pool = 'model=meta/llama "3"\n,pool=p0,role=decode'
    expected = {
        "loadline_build_info{version=1.2.3}": 1,
        "loadline_leading{}": 1,
        "loadline_epoch{}": 17,
        "loadline_bus_connected{}": 1,
        "loadline_store_connected{}": 0,
        "loadline_uptime_seconds{}": 2.5,
        f"loadline_pool_workers{{{pool},state=desired}}": 4,
        f"loadline_pool_workers{{{pool},state=fresh}}": 2,
        f"loadline_pool_kv_usage_ratio{{{pool}}}": 0.25,
        f"loadline_pool_requests{{{pool},state=waiting}}": 7,
        "loadline_decisions_total{outcome=committed}": 5,
        "loadline_decisions_total{outcome=refused}": 1,
        "loadline_decisions_total{outcome=unknown}": 0,
        "loadline_rejected_total{reason=malformed}": 9,
        "loadline_rejected_total{reason=unknown_pool}": 2,
        "loadline_alarms_total{kind=decision_expired}": 2,
        "loadline_workers_drained_total{}": 3,
        "loadline_frames_dropped_total{}": 4,
        "loadline_journal_lost_total{}": 6,
        "loadline_turn_duration_seconds_bucket{le=0.0005}": 1,
        "loadline_turn_duration_seconds_bucket{le=0.005}": 3,
        "loadline_turn_duration_seconds_bucket{le=1.0}": 3,
        "loadline_turn_duration_seconds_bucket{le=+Inf}": 4,
        "loadline_turn_duration_seconds_count{}": 4,
    }
    assert {name: found.get(name) for name in expected} == expected
    assert b"secret-worker-name" not in text


def test_http_answers_metrics_and_probes() -> None:
    async def scenario() -> None:
        problems: list[str] = []
        lacks = ["m: no frontend reports traffic"]
        server = HttpServer(
            "127.0.0.1", 0, metrics=lambda: b"m 1\n", healthy=list, ready=lambda: problems, missing=lambda: lacks
        )
        assert server.port == 0
        await server.start()
        try:
            async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:

                async def get(path: str) -> tuple[int, str, str]:
                    async with session.get(path) as response:
                        return response.status, response.headers["content-type"], await response.text()

                code, kind, text = await get("/metrics")
                assert (code, text) == (200, "m 1\n")
                assert kind.startswith("text/plain; version=")
                assert (await get("/healthz"))[::2] == (200, "ok\n")
                assert (await get("/readyz"))[::2] == (200, "ok\nm: no frontend reports traffic\n")
                lacks.clear()
                problems += ["NATS is away.", "etcd has not been read."]
                assert (await get("/readyz"))[::2] == (503, "NATS is away.\netcd has not been read.\n")
                assert (await get("/healthz"))[0] == 200
                assert (await get("/"))[0] == 404
                async with session.post("/metrics", data=b"x") as response:
                    assert response.status == 405
        finally:
            await server.close()

    asyncio.run(scenario())
