"""One worker of the demo fleet: a real process with a real lease, around an engine that lives in virtual time.

python -m loadline.demo.worker --model llama --pool decode --role decode --name decode-1

A drained worker leaves with exit code 0. SIGTERM: it gives up its lease and leaves at once, and its gateways start its
requests again elsewhere.
"""

import argparse
import asyncio
import heapq
import signal
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

from loadline.adapters.logs import bounded, configure
from loadline.adapters.nats_bus import NatsBus
from loadline.client.resources import wait_at_most
from loadline.client.worker import Worker
from loadline.config import EtcdKnobs, NatsKnobs
from loadline.core.observed import WorkerRecord
from loadline.demo import defaults
from loadline.demo.link import (
    DECODE_LAG_S,
    HEARTBEAT_S,
    ITEMS_MAX,
    LAG_S,
    TICK_S,
    ResultBatch,
    Submission,
    VirtualClock,
    pack,
    result_subject,
    submit_subject,
    unpack_submissions,
)
from loadline.errors import BusUnavailable, DataError
from loadline.sim.engine import Engine, EngineEvent, EngineKnobs
from loadline.sim.profiles import MeasuredProfile
from loadline.wire.messages import DrainCommand

_log = bounded("demo_worker")
# Work that a gateway sent before it saw the drain is still on its way for about a tick.
_QUIET_S = 0.3
_GATEWAYS_MAX = 16


class Station:
    """The engine, its inbox and its outboxes: takes submissions from gateways and sends back what became of them."""

    def __init__(self, record: WorkerRecord, engine: Engine, clock: VirtualClock, bus: NatsBus, root: str) -> None:
        self._record = record
        self.engine = engine
        self._clock = clock
        self._lag_s = DECODE_LAG_S if record.role == "decode" else LAG_S
        self._bus = bus
        self._root = root
        self._due: list[tuple[float, int, Submission]] = []  # what has not yet come, in virtual time
        self._count = 0
        self._owners: dict[str, str] = {}  # request -> gateway, until the gateway was told of its end
        self._outboxes: dict[str, list[EngineEvent]] = {}
        self._said_s = 0.0
        self._taken_s = 0.0
        self._emptied: asyncio.Event | None = None

    async def drain(self) -> None:
        """Wait until nothing is inside or under way, and everybody was told."""
        self._taken_s = time.monotonic()
        self._emptied = asyncio.Event()
        await self._emptied.wait()

    def take(self, _subject: str, payload: bytes) -> None:
        """A gateway sent work."""
        batch = unpack_submissions(payload)
        if batch is None or (batch.gateway not in self._outboxes and len(self._outboxes) >= _GATEWAYS_MAX):
            _log.warning("work_refused", bytes=len(payload))
            return
        self._taken_s = time.monotonic()
        self._outboxes.setdefault(batch.gateway, [])
        for submission in batch.submissions:
            name = submission.request.request_id
            if name not in self._owners and len(self._owners) < ITEMS_MAX:
                self._owners[name] = batch.gateway
                self._count += 1
                heapq.heappush(self._due, (submission.at_ms, self._count, submission))

    async def tick(self) -> None:
        """Let the engine run up to now, and tell the gateways."""
        now_ms = self._clock.now_ms(behind_s=self._lag_s)
        while self._due and self._due[0][0] <= now_ms:
            at_ms, _, submission = heapq.heappop(self._due)
            try:
                self.engine.submit(submission.request, at_ms)
            except ValueError as error:
                # Left to itself: the gateway misses it among what is held.
                del self._owners[submission.request.request_id]
                _log.warning("request_refused", error=str(error))
        for event in self.engine.advance(now_ms):
            self._outboxes[self._owners[event.request_id]].append(event)
        await self._tell()
        if self._emptied is not None and not self._owners and time.monotonic() - self._taken_s > _QUIET_S:
            self._emptied.set()

    async def say_leaving(self) -> None:
        """Tell all gateways that nothing more will come."""
        for gateway in self._outboxes:
            await self._send(gateway, leaving=True)

    async def _tell(self) -> None:
        beat = time.monotonic() - self._said_s >= HEARTBEAT_S
        if beat:
            self._said_s = time.monotonic()
        for gateway, events in self._outboxes.items():
            if events or beat:
                await self._send(gateway, beat=beat)

    async def _send(self, gateway: str, *, beat: bool = False, leaving: bool = False) -> None:
        events = self._outboxes[gateway][:ITEMS_MAX]
        ended = {event.request_id for event in events if self._is_end(event)}
        held = [name for name, owner in self._owners.items() if owner == gateway] if beat else None
        batch = ResultBatch(self._record.worker, self._record.incarnation, events, held, leaving)
        try:
            await self._bus.publish(result_subject(self._root, gateway), pack(batch))
        except BusUnavailable:
            return  # it stays in the outbox
        del self._outboxes[gateway][: len(events)]
        for name in ended:
            del self._owners[name]

    def _is_end(self, event: EngineEvent) -> bool:
        return event.kind in ("finished", "refused") or (event.kind == "first_token" and self._record.role == "prefill")


async def run(options: argparse.Namespace) -> None:
    """Live until drained or told to stop."""
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
    engine = Engine(knobs, MeasuredProfile(options.prefill_profile, options.decode_profile))
    bus = NatsBus(NatsKnobs(servers=(options.nats,)), name=f"loadline-demo-{record.worker}")
    station = Station(record, engine, VirtualClock(options.speed), bus, options.root)

    async def emptied(_command: DrainCommand) -> None:
        await station.drain()

    async with AsyncExitStack() as stack:
        await bus.connect(lambda connected: _log.info("nats", connected=connected))
        stack.push_async_callback(bus.close)
        await bus.subscribe(submit_subject(options.root, record.worker), station.take)
        worker = await stack.enter_async_context(
            Worker(
                record,
                bus=bus,
                etcd=EtcdKnobs(endpoints=(options.etcd,)),
                root=options.root,
                namespace=options.namespace,
                sample=engine.load,
                on_drain=emptied,
                report_interval_ms=options.report_interval_ms,
                lease_ttl_s=options.lease_ttl_s,
            )
        )
        await _serve(station, worker, stop, options.start_delay_s)
        await station.say_leaving()


async def _serve(station: Station, worker: Worker, stop: asyncio.Event, start_delay_s: float) -> None:
    """Tick until drained or stopped; the model is loaded, so to say, after the start-up delay."""
    ready_s = time.monotonic() + start_delay_s
    announced = False
    while not (worker.drained.is_set() or await wait_at_most(stop, TICK_S)):
        if not announced and time.monotonic() >= ready_s:
            announced = True
            await worker.ready()
        await station.tick()
    _log.info("leaves", worker=worker.record.worker, drained=worker.drained.is_set(), held=len(station.engine.held))


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m loadline.demo.worker", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--model", required=True)
    add("--pool", required=True)
    add("--role", required=True, choices=("prefill", "decode", "aggregated"))
    add("--name", required=True, help="name of the worker: unlike that of any other")
    add("--nats", default="nats://127.0.0.1:4222")
    add("--etcd", default="http://127.0.0.1:2379")
    add("--root", default="loadline", help="first tokens of every subject")
    add("--namespace", default="default", help="keys live under /loadline/<namespace>/")
    add("--speed", type=float, default=defaults.SPEED, help="virtual seconds in a real one")
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
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """The program; gives its exit code."""
    options = _options(sys.argv[1:] if arguments is None else arguments)
    configure("auto", "info")
    try:
        asyncio.run(run(options))
    except DataError as error:
        _log.error("cannot_start", error=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
