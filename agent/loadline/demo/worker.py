"""Worker of the demo fleet: a real process with a real lease, and an engine in virtual time.

python -m loadline.demo.worker --model llama --pool decode --role decode --name decode-1

A drained worker exits with code 0. On SIGTERM it revokes its lease and exits at once, and its gateways restart its
requests elsewhere.
"""

import argparse
import asyncio
import signal
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

from loadline.adapters.logs import bounded, configure
from loadline.adapters.nats_bus import NatsBus
from loadline.client.handover.bus import HandoverBus
from loadline.client.handover.progress import SLOTS
from loadline.client.migratable_engine import MigrationOptions
from loadline.client.resources import wait_at_most
from loadline.client.worker import WorkerClient
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.demo import defaults
from loadline.demo.clock import ReplayClock
from loadline.demo.engine_host import EngineHost
from loadline.demo.migratable_engine import DemoMigratableEngine
from loadline.demo.protocol import TICK_S, handover_prefix, submit_subject
from loadline.errors import DataError, WorkerSuperseded
from loadline.servers import EtcdKnobs, NatsKnobs
from loadline.sim.engine import EngineKnobs, SimulatedEngine
from loadline.sim.profiles import MeasuredProfile
from loadline.sim.serving.transfer import TransferLink
from loadline.wire.messages import DrainCommand

_log = bounded("demo_worker")


async def run(options: argparse.Namespace) -> None:
    """Run until drained or stopped by a signal."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    knobs = EngineKnobs(
        options.role, options.kv_blocks, options.block_size, options.max_batch_requests, options.max_batched_tokens
    )
    record = WorkerRecord(
        model=options.model,
        pool=options.pool,
        worker=options.name,
        role=options.role,
        incarnation=time.time_ns() // 1_000_000,
        accelerator=options.accelerator,
        gpus=options.gpus,
        kv_blocks_total=knobs.kv_blocks_total,
        block_size_tokens=knobs.block_size_tokens,
        max_batch_requests=knobs.max_batch_requests,
        max_batched_tokens=knobs.max_batched_tokens,
    )
    engine = SimulatedEngine(knobs, MeasuredProfile(options.prefill_profile, options.decode_profile))
    bus = NatsBus(NatsKnobs(servers=tuple(options.nats.split(","))), name=f"loadline-demo-{record.worker}")
    clock = ReplayClock(options.speed)
    host = EngineHost(record, engine, clock, bus, options.root)
    link = TransferLink(options.link_gbytes_per_s, defaults.LINK_LATENCY_MS, options.kv_bytes_per_token)
    migration = MigrationOptions(
        DemoMigratableEngine(host, clock, link),
        HandoverBus(bus, handover_prefix(options.root)),
        slots_in=options.slots_in,
        slots_out=options.slots_out,
    )

    async def drain(_command: DrainCommand) -> None:
        await host.drain()
        while worker.expected_requests:
            await asyncio.sleep(TICK_S)
            await host.drain()

    async with AsyncExitStack() as stack:
        await bus.connect(lambda connected: _log.info("bus_connection", connected=connected))
        stack.push_async_callback(bus.close)
        await bus.subscribe(submit_subject(options.root, record.worker), host.receive)
        worker = await stack.enter_async_context(
            WorkerClient(
                record,
                bus=bus,
                etcd=EtcdKnobs(tuple(options.etcd.split(",")), options.etcd_user, options.etcd_password_file),
                root=options.root,
                namespace=options.namespace,
                sample=engine.load,
                on_drain=drain,
                report_interval_ms=options.report_interval_ms,
                lease_ttl_s=options.lease_ttl_s,
                migration=migration,
            )
        )
        await _serve(host, worker, stop, options.start_delay_s)
        await host.announce_exit()


async def _serve(host: EngineHost, worker: WorkerClient, stop: asyncio.Event, start_delay_s: float) -> None:
    """Tick until drained or stopped; become ready after the start-up delay, which stands for loading the model."""
    ready_s = time.monotonic() + start_delay_s
    announced = False
    while not (worker.drained.is_set() or await wait_at_most(stop, TICK_S)):
        if not announced and time.monotonic() >= ready_s:
            announced = True
            await worker.ready()
        await host.tick()
    _log.info("leaves", worker=worker.record.worker, drained=worker.drained.is_set(), held=len(host.engine.held))


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadline.demo.worker", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--model", required=True)
    add("--pool", required=True)
    add("--role", required=True, choices=("prefill", "decode", "aggregated"))
    add("--name", required=True, help="unique name of the worker")
    add("--nats", default="nats://127.0.0.1:4222", help="URLs of the servers, separated by commas")
    add("--etcd", default="http://127.0.0.1:2379", help="URLs of the members, separated by commas")
    add("--etcd-user", default="")
    add("--etcd-password-file", default="")
    add("--root", default="loadline", help="prefix of every NATS subject")
    add("--namespace", default="default", help="keys live under /loadline/<namespace>/")
    add("--speed", type=float, default=1.0, help="virtual seconds per real second")
    add("--start-delay-s", type=float, default=defaults.START_DELAY_S, help="real seconds from start to ready")
    add("--kv-blocks", type=int, default=defaults.KV_BLOCKS)
    add("--block-size", type=int, default=defaults.BLOCK_SIZE_TOKENS, help="tokens in a KV block")
    add("--max-batch-requests", type=int, default=defaults.MAX_BATCH_REQUESTS)
    add("--max-batched-tokens", type=int, default=defaults.MAX_BATCHED_TOKENS, help="prompt tokens in a prefill pass")
    add("--prefill-profile", type=Path, default=defaults.PREFILL_PROFILE)
    add("--decode-profile", type=Path, default=defaults.DECODE_PROFILE)
    add("--accelerator", default=defaults.ACCELERATOR)
    add("--gpus", type=int, default=defaults.GPUS_PER_WORKER)
    add("--report-interval-ms", type=int, default=defaults.REPORT_INTERVAL_MS)
    add("--lease-ttl-s", type=int, default=defaults.LEASE_TTL_S)
    add("--slots-in", type=int, default=SLOTS, help="requests taken over from other workers at a time")
    add("--slots-out", type=int, default=SLOTS, help="requests handed over at a time, unless it drains")
    add(
        "--link-gbytes-per-s",
        type=float,
        default=defaults.LINK_GBYTES_PER_S,
        help="bandwidth for KV cache to other workers",
    )
    add("--kv-bytes-per-token", type=int, default=defaults.KV_BYTES_PER_TOKEN)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the program; return its exit code."""
    options = _options(sys.argv[1:] if arguments is None else arguments)
    configure("auto", "info")
    try:
        asyncio.run(run(options))
    except DataError as error:
        _log.error("cannot_start", detail=str(error))
        return 1
    except WorkerSuperseded as error:
        _log.error("superseded", detail=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
