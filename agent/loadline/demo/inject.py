"""Synthetic load events: shapes over time, and traces as a frontend would report them."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct

from loadline.client.frontend import FrontendClient
from loadline.client.resources import publish_now, store_of, wait_at_most
from loadline.client.worker import WorkerClient
from loadline.core.vocabulary.samples import TrafficSample, WorkerRecord, WorkerSample
from loadline.ports import Bus
from loadline.servers import EtcdKnobs
from loadline.traces import read_trace
from loadline.wire.keys import Keys
from loadline.wire.messages import DrainCommand, LoadReport, TrafficReport
from loadline.wire.subjects import Subjects

_SPIKE_SHARE: Final = 0.1
SHAPES: Final[dict[str, Callable[[float], float]]] = {
    "ramp": lambda periods: min(periods, 1.0),  # up within one period, then level
    "step": lambda periods: float(periods >= 1.0),  # low for one period, then high
    "sine": lambda periods: (1.0 - math.cos(2.0 * math.pi * periods)) / 2.0,  # up and down in every period
    "spike": lambda periods: float(periods % 1.0 < _SPIKE_SHARE),  # high for the first tenth of every period
}
"""Functions from periods since the start to 0 (low) .. 1 (high)."""

_NEVER_MS: Final = 3_600_000

SampleT = TypeVar("SampleT")
SampleAt = Callable[[float], SampleT]
"""Function from seconds since the start to the sample to publish."""

_Report = Callable[[SampleT], Awaitable[bool]]


class InjectionTarget(Struct, frozen=True):
    """Connections of an agent, and the roots of its subjects and keys."""

    bus: Bus
    etcd: EtcdKnobs = EtcdKnobs()
    root: str = "loadline"
    namespace: str = "default"


def shape_value(shape: str, t_s: float, period_s: float, low: float, high: float) -> float:
    """Return the value of a shape ``t_s`` after its start."""
    return low + (high - low) * SHAPES[shape](t_s / period_s)


def worker_sample(**values: Any) -> WorkerSample:
    """Build a sample of these fields, numbered by the clock, so that those of the next run are newer.

    Raises:
        msgspec.ValidationError: A value is out of its bounds.
    """
    now_ms = time.time_ns() // 1_000_000
    return msgspec.convert({"sequence": now_ms, "timestamp_ms": now_ms, **values}, WorkerSample)


def traffic_sample(**values: Any) -> TrafficSample:
    """Build a sample of these fields, numbered by the clock, of one second without arrivals unless they say otherwise.

    Raises:
        msgspec.ValidationError: A value is out of its bounds.
    """
    now_ms = time.time_ns() // 1_000_000
    return msgspec.convert({"sequence": now_ms, "interval_ms": 1_000, "arrivals": 0, **values}, TrafficSample)


async def inject_load(
    target: InjectionTarget,
    record: WorkerRecord,
    sample_at: SampleAt[WorkerSample],
    *,
    hz: float,
    seconds: float,
    register: bool,
    stop: asyncio.Event,
) -> str:
    """Publish samples of a worker until the time is over, it is drained, or ``stop`` is set; return a summary.

    Raises:
        StoreUnavailable: ``register`` is set and etcd does not answer.
    """
    async with _registered(target, record, stop) if register else _unregistered(target, record) as report:
        return await _repeat(report, sample_at, record.worker, hz=hz, seconds=seconds, stop=stop)


async def inject_traffic(
    target: InjectionTarget,
    names: tuple[str, str],
    incarnation: int,
    sample_at: SampleAt[TrafficSample],
    *,
    hz: float,
    seconds: float,
    stop: asyncio.Event,
) -> str:
    """Publish traffic samples of a model and frontend until the time is over or ``stop`` is set; return a summary."""
    subject = Subjects(target.root).traffic(*names)

    async def report(sample: TrafficSample) -> bool:
        return await publish_now(target.bus, subject, TrafficReport(*names, incarnation, sample))

    return await _repeat(report, sample_at, names[1], hz=hz, seconds=seconds, stop=stop)


async def _repeat(
    report: _Report[SampleT],
    sample_at: SampleAt[SampleT],
    name: str,
    *,
    hz: float,
    seconds: float,
    stop: asyncio.Event,
) -> str:
    sent, lost, t_s, began_s = 0, 0, 0.0, time.monotonic()
    while t_s <= seconds and not stop.is_set():
        published = await report(sample_at(t_s))
        sent, lost = sent + published, lost + (not published)
        t_s = (sent + lost) / hz
        if t_s <= seconds:
            await wait_at_most(stop, max(0.0, began_s + t_s - time.monotonic()))
    return f"{sent} samples of {name} sent, {lost} could not be sent"


async def inject_trace(
    target: InjectionTarget,
    model: str,
    frontend: str,
    file: Path,
    *,
    speed: float,
    interval_ms: int,
    stop: asyncio.Event,
) -> str:
    """Publish a trace as a frontend would report it. Requests finish on arrival, so that their OSL is known.

    Raises:
        DataError: The trace cannot be used.
    """
    arrivals, count, began_s = read_trace(file).arrivals, 0, time.monotonic()
    async with FrontendClient(model, frontend, root=target.root, interval_ms=interval_ms, bus=target.bus) as reports:
        for one in arrivals:
            if await wait_at_most(stop, max(0.0, began_s + one.arrival_s / speed - time.monotonic())):
                break
            reports.arrived(one.isl_tokens)
            reports.finished(one.osl_tokens, None, None)
            count += 1
        await reports.report_now()
    return f"{count} requests of {file} reported as {frontend}"


@asynccontextmanager
async def _unregistered(target: InjectionTarget, record: WorkerRecord) -> AsyncIterator[_Report[WorkerSample]]:
    """Yield a function that reports in the name of an existing worker; the agent accepts its own incarnation only."""
    subject = Subjects(target.root).load(record.model, record.pool, record.worker)

    async def report(sample: WorkerSample) -> bool:
        message = LoadReport(record.model, record.pool, record.worker, record.incarnation, [sample])
        return await publish_now(target.bus, subject, message)

    yield report


@asynccontextmanager
async def _registered(
    target: InjectionTarget, record: WorkerRecord, stop: asyncio.Event
) -> AsyncIterator[_Report[WorkerSample]]:
    """Yield a function that reports as a new worker under a lease; a drain ends it at once."""
    newest = [worker_sample()]

    async def drained(_command: DrainCommand) -> None:
        stop.set()

    async def report(sample: WorkerSample) -> bool:
        newest[0] = sample
        return await worker.report_now()

    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(store_of(None, target.etcd))
        await store.read(Keys(target.namespace).leaders)  # fails now if etcd is unreachable; a worker would wait for it
        worker = WorkerClient(
            record,
            store=store,
            root=target.root,
            namespace=target.namespace,
            sample=lambda: newest[0],
            on_drain=drained,
            report_interval_ms=_NEVER_MS,  # reports are sent explicitly
            bus=target.bus,
        )
        await stack.enter_async_context(worker)
        await worker.ready()
        yield report
