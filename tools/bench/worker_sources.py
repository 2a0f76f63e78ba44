"""CPU that the sources of Dynamo, Llumnix and Prometheus take for a thousand workers, each reported once a second.

Each source reads a thousand engines, registers them in etcd, and reports their load. The value is its processor time,
user and system, in percent of a core. The baseline is that of the same source with a hundred engines, times ten: it
shows what grows faster than the fleet. `workers` is the number of workers that were reported. Llumnix needs
`redis-server` (Debian: `apt-get install redis-server`).

  python -m tools.bench.worker_sources [--quick]
"""

import asyncio
import shutil
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from importlib import import_module
from typing import Any, Final

import msgspec
from aiohttp import web

from loadline.adapters.nats_bus import NatsBus
from loadline.rig.rig import Rig
from loadline.rig.server_processes import free_port
from loadline.servers import NatsKnobs
from loadline.wire.subjects import Subjects
from tools.bench.harness import options, progress, result, rig
from tools.bench.sources import child, cpu_s, wait_for

WORKERS: Final = 1_000
FEW: Final = 100
SETTLE_S: Final = 12.0
POOL: Final = '[[pools]]\nmodel = "m"\nname = "p"\nrole = "decode"\n'

Upstream = Callable[[Rig, int], AbstractAsyncContextManager[str]]


async def every_second(act: Callable[[], Any]) -> None:
    """Await the result of a call once a second."""
    while True:
        due_s = time.monotonic() + 1.0
        await act()
        await asyncio.sleep(max(due_s - time.monotonic(), 0.0))


@asynccontextmanager
async def repeated(act: Callable[[], Any]) -> AsyncIterator[None]:
    """Await the result of a call once a second during the body."""
    task = asyncio.create_task(every_second(act))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait({task})


def forward_pass(worker: int) -> bytes:
    """Return a record of one of Dynamo's engines, in the envelope of its event plane."""
    record = {
        "version": 1,
        "worker_id": str(worker),
        "dp_rank": 0,
        "counter_id": 0,
        "wall_time": 0.02,
        "scheduled_requests": {"num_prefill_requests": 1, "sum_prefill_tokens": 512, "num_decode_requests": 4},
        "queued_requests": {"num_prefill_requests": 3, "sum_prefill_tokens": 900, "num_decode_requests": 1},
    }
    payload = msgspec.msgpack.encode(record)
    topic = "forward-pass-metrics"
    return msgspec.msgpack.encode(
        {"publisher_id": 1, "sequence": 2, "published_at": 3, "topic": topic, "payload": payload}
    )


@asynccontextmanager
async def dynamo(servers: Rig, workers: int) -> AsyncIterator[str]:
    """Publish records on NATS; yield the configuration of the source."""
    bus = NatsBus(NatsKnobs(servers=(servers.nats.url,)), name="dynamo")
    await bus.connect(lambda _connected: None)
    subject = "namespace.dynamo.component.backend.endpoint.generate.forward-pass-metrics"
    records = [forward_pass(worker) for worker in range(workers)]

    async def publish() -> None:
        for record in records:
            await bus.publish(subject, record)

    async with repeated(publish):
        yield f'plane = "nats"\n{POOL}component = "backend"\n[dynamo_nats]\nservers = ["{servers.nats.url}"]\n'
    await bus.close()


@asynccontextmanager
async def prometheus(_servers: Rig, workers: int) -> AsyncIterator[str]:
    """Answer queries as Prometheus does; yield the configuration of the source."""
    names = ("waiting", "running")

    async def answer(_request: web.Request) -> web.Response:
        now_s = time.time()
        result: list[Any] = []
        for worker in range(workers):
            labels = {"pod": f"w{worker}", "engine": "0", "model_name": "m"}
            figures = {f"vllm:num_requests_{name}": now_s % 7 for name in names}
            figures |= {"vllm:kv_cache_usage_perc": now_s % 1, "process_start_time_seconds": 1_700_000_000.5}
            figures |= {"vllm:request_success_total": now_s, "vllm:prompt_tokens_total": 100 * now_s}
            result += [
                {"metric": {"__name__": name, **labels}, "values": [[now_s, str(value)]]}
                for name, value in figures.items()
            ]
        whole = {"status": "success", "data": {"resultType": "matrix", "result": result}}
        return web.Response(body=msgspec.json.encode(whole))

    application = web.Application()
    application.router.add_get("/api/v1/query", answer)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    yield f'url = "http://127.0.0.1:{port}"\nreport_interval_ms = 1000\n{POOL}engine = "vllm"\n'
    await runner.cleanup()


@asynccontextmanager
async def llumnix(_servers: Rig, workers: int) -> AsyncIterator[str]:
    """Keep the status of engines in a Redis; yield the configuration of the source."""
    redis_asyncio = import_module("redis.asyncio")  # optional packages of this source
    messages = import_module("loadline.sources.llumnix_messages")
    port = free_port()
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
    with child(*command):
        wait_for(port)
        client = redis_asyncio.Redis(port=port)
        for worker in range(workers):
            described = messages.InstanceMetadata(
                instance_id=f"w{worker}", instance_type="decode", ip="127.0.0.1", llumlet_port=1, utc_create=1.7e9
            )
            await client.set(f"llumnix:instance_metadata:w{worker}", described.SerializeToString())

        async def store() -> None:
            pipe, now_ms = client.pipeline(transaction=False), int(time.time() * 1_000)
            for worker in range(workers):
                status = messages.InstanceStatus(
                    instance_id=f"w{worker}",
                    schedulable=True,
                    timestamp_ms=now_ms,
                    num_waiting_requests=now_ms % 7,
                    num_running_requests=4,
                    num_total_gpu_tokens=160_000,
                )
                pipe.set(f"llumnix:instance_status:w{worker}", status.SerializeToString())
            await pipe.execute()

        async with repeated(store):
            yield f'{POOL}instance_type = "decode"\n[redis]\nurl = "redis://127.0.0.1:{port}"\n'
        await client.aclose()


UPSTREAMS: Final[dict[str, Upstream]] = {"dynamo": dynamo, "prometheus": prometheus, "llumnix": llumnix}


async def measure(servers: Rig, kind: str, workers: int, seconds: float) -> tuple[float, int]:
    """Return the processor time of a source in percent of a core, and the number of workers that it reported."""
    reported: set[str] = set()
    everyone = asyncio.Event()

    def on_report(subject: str, _data: bytes) -> None:
        reported.add(subject)
        if len(reported) == workers:
            everyone.set()

    bus = NatsBus(NatsKnobs(servers=(servers.nats.url,)), name="bench")
    await bus.connect(lambda _connected: None)
    await bus.subscribe(Subjects("loadline").all_of("load"), on_report)
    async with UPSTREAMS[kind](servers, workers) as text:
        config = servers.directory / f"{kind}-{workers}.toml"
        where = f'[nats]\nservers = ["{servers.nats.url}"]\n[etcd]\nendpoints = ["{servers.etcd.url}"]\n'
        config.write_text(f'namespace = "{kind}-{workers}"\n{text}{where}', encoding="utf-8")
        with child(sys.executable, "-m", "loadline", "source", kind, "--config", str(config)) as pid:
            await everyone.wait()
            await asyncio.sleep(SETTLE_S)  # registration costs more than renewal
            reported.clear()
            before_s, began_s = cpu_s(pid), time.monotonic()
            await asyncio.sleep(seconds)
            percent = 100 * (cpu_s(pid) - before_s) / (time.monotonic() - began_s)
    await bus.close()
    return percent, len(reported)


def main() -> None:
    """Run the benchmark and print its results."""
    seconds, rounds = (8.0, 1) if options(__doc__) else (20.0, 3)
    kinds = [kind for kind in UPSTREAMS if kind != "llumnix" or shutil.which("redis-server")]
    for kind in kinds:
        values, baselines, reported = [], [], 0
        for number in range(rounds):
            with rig() as servers:
                few, _ = asyncio.run(measure(servers, kind, FEW, seconds))
                percent, reported = asyncio.run(measure(servers, kind, WORKERS, seconds))
            values.append(percent)
            baselines.append(few * WORKERS / FEW)
            progress(f"{kind}, round {number + 1}/{rounds}: {percent:.1f} %, ten times a tenth {baselines[-1]:.1f} %")
        result(f"source_{kind}", "percent", values, baselines, workers=reported)


if __name__ == "__main__":
    main()
