"""Time from a sample that takes a model across its threshold to the decision at a scaler.

1,000 workers of 250 models report at 1 Hz, all just below the threshold, with the default windows of 30 s; a frontend
of each model reports too. Then, model by model, one sample of one worker takes it across: of the planner ``threshold``,
whose window is then above its threshold, and of ``auto``, the default, when the KV caches in use need another worker.
Times are those of one process, which publishes
that sample and acts as the scaler. The baseline is the lower bound of that path: an echo over NATS and an etcd
transaction, one after each sample. Both begin when due, also while others are in flight, and commit to the same etcd,
which acknowledges a write once it is on the disk of TMPDIR: a stall of that disk delays both, and often decides their
99th percentile.

  python -m tools.bench.reaction [--quick]
"""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import nats

from loadline.adapters.etcd_store import EtcdStore
from loadline.client.scaler import ScalerClient
from loadline.config import EtcdKnobs, NatsKnobs
from loadline.ports import Compare, Write
from loadline.rig.rig import Rig
from tools.bench.harness import (
    BenchFleet,
    RawPublisher,
    agent,
    format_times,
    options,
    percentile,
    progress,
    result,
    rig,
    subscriber,
)

MODELS, WORKERS = 250, 1_000
STEADY_RATIOS = {"threshold": 0.8999, "auto": 0.825}
# For threshold a tenth of a cache: the mean of 4 workers over 31 samples rises by 0.0008. For auto all of it.
BLOCKS_MORE = {"threshold": 2_000, "auto": 3_400}
FIRST_S = 40.0  # the windows are full 30 s after the last worker was seen to be ready
PER_SECOND = 25
LATE_S = 30.0  # longest wait for the last decisions, on a busy machine


async def report_all(fleet: BenchFleet, wire: RawPublisher, seconds: float) -> None:
    """Report every worker and every frontend once a second."""
    began_s = time.monotonic()
    reported_s = 0
    for at_s, frames in fleet.report_bursts(seconds):
        if at_s >= reported_s:
            reported_s += 1
            wire.send(fleet.traffic_burst())
        await asyncio.sleep(max(0.0, began_s + at_s - time.monotonic()))
        wire.send(frames)


async def cross_thresholds(fleet: BenchFleet, wire: RawPublisher, sent_s: dict[str, float]) -> None:
    """Send a sample that crosses the threshold for one model after the other; record when.

    Each is half a second away from the next regular report of its worker, which would replace it within one turn.
    """
    await asyncio.sleep(FIRST_S)
    began_s = time.monotonic()
    for number in range(MODELS):
        model = MODELS // PER_SECOND * ((number + PER_SECOND // 2) % PER_SECOND) + number // PER_SECOND
        await asyncio.sleep(max(0.0, began_s + number / PER_SECOND - time.monotonic()))
        frame = fleet.frame(model * (WORKERS // MODELS), blocks_more=BLOCKS_MORE[fleet.planner])
        sent_s[fleet.models[model]] = time.monotonic()
        wire.send(frame)


async def apply_decisions(
    scaler: ScalerClient, received_s: dict[str, list[float]], all_received: asyncio.Event
) -> None:
    """Record the times of decisions, and report them as applied."""
    async for order in scaler:
        received_s.setdefault(order.model, []).append(time.monotonic())
        if len(received_s) == MODELS:
            all_received.set()
        await scaler.complete(order, {pool: target.replicas for pool, target in order.targets.items()})


async def measure_baseline(bench_rig: Rig, baselines_ms: list[float]) -> None:
    """Measure an echo from another process and a transaction like a commit, half an interval after each crossing."""
    client = await nats.connect(bench_rig.nats.url)
    store = EtcdStore(EtcdKnobs(endpoints=(bench_rig.etcd.url,)))

    async def measure(key: str) -> None:
        began_s = time.monotonic()
        await client.request("echo", bytes(300))
        await store.commit([Compare(key, "mod", 0)], [Write(key, bytes(400))])
        baselines_ms.append((time.monotonic() - began_s) * 1e3)

    await asyncio.sleep(FIRST_S)
    began_s = time.monotonic()
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(MODELS):
                await asyncio.sleep(max(0.0, began_s + (number + 0.5) / PER_SECOND - time.monotonic()))
                group.create_task(measure(f"/floor/{number}"))
    finally:
        await client.close()
        await store.close()


async def react(bench_rig: Rig, fleet: BenchFleet, wire: RawPublisher) -> tuple[list[float], list[float]]:
    """Return all reactions and all baselines, in ms."""
    sent_s: dict[str, float] = {}
    received_s: dict[str, list[float]] = {}
    baselines_ms: list[float] = []
    all_received = asyncio.Event()
    async with ScalerClient("bench", fleet.models, nats=NatsKnobs(servers=(bench_rig.nats.url,))) as scaler:
        applying = asyncio.create_task(apply_decisions(scaler, received_s, all_received))
        await asyncio.gather(
            report_all(fleet, wire, FIRST_S + MODELS / PER_SECOND + 1.0),
            cross_thresholds(fleet, wire, sent_s),
            measure_baseline(bench_rig, baselines_ms),
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(LATE_S):
                await all_received.wait()
        applying.cancel()
        await asyncio.gather(applying, return_exceptions=True)
    return reactions_ms(sent_s, received_s), baselines_ms


def reactions_ms(sent_s: dict[str, float], received_s: dict[str, list[float]]) -> list[float]:
    """Return the times between sample and decision, in ms; each model must decide once, after its sample."""
    odd = {model: len(received_s.get(model, ())) for model in sent_s if len(received_s.get(model, ())) != 1}
    if odd:
        raise SystemExit(f"expected one decision per model, got: {odd}")
    early = [model for model, at_s in sent_s.items() if received_s[model][0] < at_s]
    if early:
        raise SystemExit(f"{len(early)} models decided before the sample that crosses, {early[0]} for one")
    return [(received_s[model][0] - at_s) * 1e3 for model, at_s in sent_s.items()]


@contextmanager
def reporting_fleet(
    *, in_memory: bool, planner: str = "threshold", members: int = 1
) -> Iterator[tuple[Rig, BenchFleet, RawPublisher]]:
    """Start servers, an agent and an echo; yield the servers, a registered fleet and a connection for its reports."""
    fleet = BenchFleet(MODELS, WORKERS, STEADY_RATIOS[planner], planner)
    servers_of = rig(in_memory=in_memory, fsync=not in_memory, members=members)
    with servers_of as servers, RawPublisher(servers.nats.port) as wire:
        asyncio.run(servers.register(fleet.records, "agent"))
        with agent(servers, fleet) as child, subscriber(servers) as echo:
            child.wait(lambda sample: sample.ready)
            echo.wait(lambda sample: sample.ready)
            yield servers, fleet, wire


def main() -> None:
    """Run the benchmark and print its results."""
    rounds = 1 if options(__doc__) else 3
    for planner in STEADY_RATIOS:
        measure(planner, rounds)


def measure(planner: str, rounds: int) -> None:
    """Measure the reactions of a planner, and print them."""
    measured: list[float] = []
    baseline: list[float] = []
    p50s: list[float] = []
    bare_p50s: list[float] = []
    for number in range(1, rounds + 1):
        with reporting_fleet(in_memory=False, planner=planner) as (servers, fleet, wire):
            reactions, baselines = asyncio.run(react(servers, fleet, wire))
        measured += reactions
        baseline += baselines
        p50s.append(percentile(reactions, 0.5))
        bare_p50s.append(percentile(baselines, 0.5))
        times = f"{format_times(reactions)}; lower bound {format_times(baselines)}"
        progress(f"{planner}, round {number}/{rounds}: {times}")
    p99, bare_p99 = (round(percentile(times, 0.99), 3) for times in (measured, baseline))
    result(f"reaction of {planner}", "ms", p50s, bare_p50s, p99=p99, baseline_p99=bare_p99, reactions=len(measured))


if __name__ == "__main__":
    main()
