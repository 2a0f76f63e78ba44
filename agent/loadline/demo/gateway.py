"""Frontend of the demo: replays a trace against the fleet, and accounts for its requests.

python -m loadline.demo.gateway --model llama --summary-file summary.json

It starts when every role has a ready worker, routes to the workers registered in etcd, reports its traffic, and ends
with the trace, or on SIGTERM or SIGINT. Requests of workers that died restart elsewhere; users see only a delay.
"""

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec

from loadline.adapters.etcd_store import EtcdStore
from loadline.adapters.logs import bounded, configure
from loadline.adapters.nats_bus import NatsBus
from loadline.client.frontend import FrontendClient
from loadline.client.handover.bus import HandoverBus
from loadline.client.handover.messages import ClaimReply, ClaimRequest
from loadline.client.resources import running, wait_at_most
from loadline.client.worker_registry import WorkerRegistry
from loadline.core.engines.profile import ObjectiveKnobs
from loadline.core.vocabulary.samples import WorkerRecord
from loadline.demo import defaults
from loadline.demo.account import DemoSummary, RequestAccount
from loadline.demo.clock import ReplayClock
from loadline.demo.dispatch import Dispatcher
from loadline.demo.protocol import (
    TICK_S,
    ResultBatch,
    SubmitBatch,
    handover_prefix,
    pack,
    result_subject,
    submit_subject,
    unpack,
)
from loadline.demo.setup import ROLES
from loadline.demo.trace import play
from loadline.errors import BusUnavailable, ConfigError, DataError
from loadline.servers import EtcdKnobs, NatsKnobs
from loadline.traces import Arrival, RateKnobs, read_trace

_log = bounded("demo_gateway")


class DemoGateway:
    """Replay of arrivals against the registered workers."""

    def __init__(
        self, options: argparse.Namespace, arrivals: Iterator[Arrival], bus: NatsBus, frontend: FrontendClient
    ) -> None:
        # The name is unique per process, so that results for an earlier process are not mistaken for ours.
        self.name = f"{options.name}-{time.time_ns() // 1_000_000:x}"
        self.registry = WorkerRegistry(options.namespace, options.model, self._update_workers)
        self._root: str = options.root
        self._arrivals = arrivals
        self._next = next(arrivals, None)
        self._numbers = 0
        self._bus = bus
        self._frontend = frontend
        self._clock = ReplayClock(options.speed)
        self._account = RequestAccount(ObjectiveKnobs(options.ttft_ms, options.itl_ms))
        self._dispatcher = Dispatcher(self.name, ROLES[options.mode], self._account)
        self._began_ms: float | None = None
        self._ticked_s = time.monotonic()

    @property
    def done(self) -> bool:
        """True once the trace is over and every request has ended."""
        return self._next is None and self._dispatcher.queued == 0 and self._dispatcher.in_flight == 0

    def on_results(self, _subject: str, payload: bytes) -> None:
        """Apply a message of a worker."""
        batch = unpack(ResultBatch, payload)
        if batch is None:
            _log.warning("result_refused", bytes=len(payload))
            return
        self._dispatcher.apply_results(batch, self._clock.now_ms())

    def claim(self, claim: ClaimRequest) -> ClaimReply:
        """Grant or refuse a worker's claim to a request."""
        return self._dispatcher.claim(claim)

    async def tick(self) -> None:
        """Generate due arrivals, route and send requests, and report traffic."""
        now_s, now_ms = time.monotonic(), self._clock.now_ms()
        elapsed_s, self._ticked_s = now_s - self._ticked_s, now_s
        if self._bus.connected:
            self._dispatcher.advance_time(elapsed_s, now_ms)
        if self._began_ms is None and self._dispatcher.complete:
            self._began_ms = now_ms
            _log.info("replay_begins", gateway=self.name)
        if self._began_ms is not None:
            self._arrive(self._began_ms, now_ms)
        self._dispatcher.assign()
        await self._send()
        self._report()

    def summary(self) -> DemoSummary:
        """Return the account so far."""
        began_ms = self._began_ms if self._began_ms is not None else self._clock.now_ms()
        return self._account.summary(
            in_flight=self._dispatcher.in_flight,
            queued=self._dispatcher.queued,
            virtual_s=(self._clock.now_ms() - began_ms) / 1_000,
            speed=self._clock.speed,
        )

    def _update_workers(self, records: Sequence[WorkerRecord]) -> None:
        self._dispatcher.update_workers(records, self._clock.now_ms())

    def _arrive(self, began_ms: float, now_ms: float) -> None:
        while self._next is not None and (at_ms := began_ms + self._next.arrival_s * 1_000) <= now_ms:
            self._numbers += 1
            self._dispatcher.arrive(self._numbers, self._next.isl_tokens, self._next.osl_tokens, at_ms)
            self._frontend.arrived(self._next.isl_tokens)
            self._next = next(self._arrivals, None)

    async def _send(self) -> None:
        for worker, submissions in self._dispatcher.outboxes():
            try:
                await self._bus.publish(submit_subject(self._root, worker), pack(SubmitBatch(self.name, submissions)))
            except BusUnavailable:
                return  # the submissions stay in the outbox
            self._dispatcher.confirm_sent(worker, len(submissions))

    def _report(self) -> None:
        for done in self._account.take_unreported():
            self._frontend.finished(
                done.osl_tokens, done.ttft_ms, done.itl_ms, ttft_met=done.ttft_met, itl_met=done.itl_met
            )
        self._frontend.queued = self._dispatcher.queued
        self._frontend.in_flight = self._dispatcher.in_flight


async def _run_until_signal(options: argparse.Namespace, arrivals: Iterator[Arrival]) -> DemoSummary:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return await run(options, arrivals, stop)


async def run(options: argparse.Namespace, arrivals: Iterator[Arrival], stop: asyncio.Event) -> DemoSummary:
    """Replay arrivals until all requests have ended, or until ``stop`` is set."""
    async with AsyncExitStack() as stack:
        bus = NatsBus(NatsKnobs(servers=tuple(options.nats.split(","))), name=f"loadline-demo-{options.name}")
        await bus.connect(lambda connected: _log.info("nats", connected=connected))
        stack.push_async_callback(bus.close)
        store = EtcdStore(EtcdKnobs(tuple(options.etcd.split(",")), options.etcd_user, options.etcd_password_file))
        stack.push_async_callback(store.close)
        frontend = await stack.enter_async_context(
            FrontendClient(options.model, options.name, bus=bus, root=options.root)
        )
        gateway = DemoGateway(options, arrivals, bus, frontend)
        await bus.subscribe(result_subject(options.root, gateway.name), gateway.on_results)
        await HandoverBus(bus, handover_prefix(options.root)).serve_frontend(gateway.name, gateway.claim)
        follow = gateway.registry.follow(store)
        following = await stack.enter_async_context(running(follow, "registry"))
        while not (gateway.done or following.done() or await wait_at_most(stop, TICK_S)):
            await gateway.tick()
        return gateway.summary()


def write_summary(path: Path, summary: DemoSummary) -> None:
    """Write the account as JSON, whole or not at all."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_bytes(msgspec.json.format(msgspec.json.encode(summary)) + b"\n")
    draft.replace(path)


def parse_options(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m loadline.demo.gateway", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--model", default=defaults.MODEL)
    add("--name", default="gateway")
    add("--mode", choices=tuple(ROLES), default="disaggregated")
    add("--nats", default="nats://127.0.0.1:4222", help="URLs of the servers, separated by commas")
    add("--etcd", default="http://127.0.0.1:2379", help="URLs of the members, separated by commas")
    add("--etcd-user", default="")
    add("--etcd-password-file", default="")
    add("--root", default="loadline", help="prefix of every NATS subject")
    add("--namespace", default="default", help="keys live under /loadline/<namespace>/")
    add("--trace", type=Path, default=defaults.TRACE, help="a trace in CSV or JSON Lines, plain or gzipped")
    add("--start-s", type=float, default=0.0, help="position in the trace to start from")
    add("--requests-max", type=int, default=0, help="end after this many requests; 0: with the trace")
    add("--repeat", action="store_true", help="repeat the trace")
    add("--load", type=int, default=defaults.LOAD, help="superposed copies of the trace")
    add("--seed", type=int, default=0, help="seed of the jitter between copies")
    add(
        "--trace-speed",
        type=int,
        default=1,
        help="how many times as fast the trace passes, with one of as many requests",
    )
    add("--speed", type=float, default=1.0, help="virtual seconds per real second, that of the workers")
    add("--ttft-ms", type=float, default=defaults.TTFT_MS, help="objective in virtual ms")
    add("--itl-ms", type=float, default=defaults.ITL_MS, help="objective in virtual ms")
    add("--summary-file", type=Path, help="file for the account at the end, as JSON")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Run the program; return its exit code."""
    options = parse_options(sys.argv[1:] if arguments is None else arguments)
    configure("auto", "info")
    try:
        trace = read_trace(options.trace, seed=options.seed, arrivals=RateKnobs(scale=options.load))
        arrivals = play(
            trace,
            start_s=options.start_s,
            speed=options.trace_speed,
            repeat=options.repeat,
            requests_max=options.requests_max,
        )
        summary = asyncio.run(_run_until_signal(options, arrivals))
    except (ConfigError, DataError) as error:
        _log.error("cannot_start", detail=str(error))
        return 1
    _log.info("ends", **msgspec.structs.asdict(summary))
    if options.summary_file is not None:
        write_summary(options.summary_file, summary)
    return 0


if __name__ == "__main__":
    sys.exit(main())
