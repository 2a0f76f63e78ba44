import asyncio

import aiohttp
from msgspec.structs import replace
from prometheus_client.parser import text_string_to_metric_families

from loadline.adapters.http import HttpServer
from loadline.adapters.metrics import Metrics
from loadline.core.vocabulary.status import (
    AgentStatus,
    DurationTotal,
    InFlightStatus,
    MigrationStatus,
    ModelStatus,
    PoolStatus,
    TrafficStatus,
    WorkerStatus,
)

MOVES = MigrationStatus(
    in_flight=2,
    in_flight_commands=(
        InFlightStatus("c", "secret-worker-name", "secret-worker-name", "decode_load", "copying", 5, 3, 1),
    ),
    commands={"decode_load:planned": 9, "decode_load:refused:no_slots": 2, "drain:done": 4},
    requests={"decode_load": 5, "drain": 40},
    tokens={"decode_load": 5_000, "drain": 40_000},
    phases={"copying": DurationTotal(6, 1_500)},
    silent=1,
    silent_workers=("secret-worker-name",),
)


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
        migrations=MOVES,
        emptied=DurationTotal(4, 12_000),
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
    metrics = Metrics(lambda: runtime, "1.2.3")
    for seconds in (0.0001, 0.003, 0.003, 7.0):
        metrics.observe_turn(seconds)
    text = b"".join(metrics.render(status_with(counters, {"unknown_pool": 2, "malformed": 1})))
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
        "loadline_alarms_total{kind=commit_refused}": 0,
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


def test_the_load_of_a_silent_pool_is_unknown() -> None:
    status = status_with({}, {})
    (model,) = status.models
    silent = replace(status, models=(replace(model, pools=tuple(replace(pool, fresh=0) for pool in model.pools)),))
    found = samples(b"".join(Metrics(dict, "1.2.3").render(silent)))
    assert not [name for name in found if name.startswith(("loadline_pool_kv_usage_ratio", "loadline_pool_requests"))]
    assert [name for name in found if name.startswith("loadline_pool_workers")]


def test_a_kv_usage_that_no_worker_reports_is_left_out() -> None:
    status = status_with({}, {})
    (model,) = status.models
    pools = tuple(replace(pool, kv_reporting=number) for number, pool in enumerate(model.pools))
    found = samples(b"".join(Metrics(dict, "1.2.3").render(replace(status, models=(replace(model, pools=pools),)))))
    assert len([name for name in found if name.startswith("loadline_pool_kv_usage_ratio")]) == len(pools) - 1
    assert len([name for name in found if name.startswith("loadline_pool_requests")]) == 2 * len(pools)


def test_each_metric_is_a_part_of_its_own() -> None:
    parts = list(Metrics(dict, "1.2.3").render(status_with({}, {})))
    assert len(parts) > 30
    assert {part.count(b"# HELP") for part in parts} == {1}


def test_migrations_are_rendered_by_policy_outcome_and_reason() -> None:
    found = samples(b"".join(Metrics(dict, "1.2.3").render(status_with({}, {}))))
    model = 'model=meta/llama "3"\n'
    expected = {
        f"loadline_migrations_total{{{model},outcome=planned,policy=decode_load,reason=}}": 9,
        f"loadline_migrations_total{{{model},outcome=refused,policy=decode_load,reason=no_slots}}": 2,
        f"loadline_migrations_total{{{model},outcome=done,policy=drain,reason=}}": 4,
        f"loadline_migrated_requests_total{{{model},policy=drain}}": 40,
        f"loadline_migrated_tokens_total{{{model},policy=decode_load}}": 5_000,
        f"loadline_migration_phase_seconds_count{{{model},phase=copying}}": 6,
        f"loadline_migration_phase_seconds_sum{{{model},phase=copying}}": 1.5,
        f"loadline_drain_seconds_count{{{model}}}": 4,
        f"loadline_drain_seconds_sum{{{model}}}": 12,
        f"loadline_migrations_in_flight{{{model}}}": 2,
        f"loadline_migration_workers_silent{{{model}}}": 1,
    }
    assert {name: found.get(name) for name in expected} == expected


def test_a_model_without_migration_has_drain_durations_and_no_migration_metrics() -> None:
    status = status_with({}, {})
    still = replace(status, models=tuple(replace(model, migrations=None) for model in status.models))
    found = samples(b"".join(Metrics(dict, "1.2.3").render(still)))
    assert [name for name in found if "_move" in name] == []
    assert found['loadline_drain_seconds_sum{model=meta/llama "3"\n}'] == 12


def test_http_answers_metrics_and_probes() -> None:
    async def scenario() -> None:
        problems: list[str] = []
        lacks = ["m: no frontend reports traffic"]

        async def metrics() -> bytes:
            return b"m 1\n"

        server = HttpServer(
            "127.0.0.1", 0, metrics=metrics, healthy=list, ready=lambda: problems, missing=lambda: lacks
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
