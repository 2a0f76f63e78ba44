"""What clients hold while they run: a bus, perhaps a store, and background tasks. Each ends with its ``async with``."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager

from msgspec import Struct

from loadline.adapters.etcd_store import EtcdStore
from loadline.adapters.logs import bounded
from loadline.adapters.nats_bus import NatsBus
from loadline.config import EtcdKnobs, NatsKnobs
from loadline.errors import BusUnavailable
from loadline.ports import Bus, Store
from loadline.wire.codec import Rejected, decode_as, encode

_log = bounded("client")


@asynccontextmanager
async def bus_of(bus: Bus | None, knobs: NatsKnobs | None, name: str) -> AsyncIterator[Bus]:
    """The bus that was given, which its owner connects and closes; else one of our own."""
    if bus is not None:
        yield bus
        return
    own = NatsBus(knobs or NatsKnobs(), name=name)
    try:
        await own.connect(lambda connected: _log.info("bus_connection", client=name, connected=connected))
        yield own
    finally:
        await own.close()


@asynccontextmanager
async def store_of(store: Store | None, knobs: EtcdKnobs | None) -> AsyncIterator[Store]:
    """The store that was given, which its owner closes; else one of our own."""
    if store is not None:
        yield store
        return
    own = EtcdStore(knobs or EtcdKnobs())
    try:
        yield own
    finally:
        await own.close()


@asynccontextmanager
async def running(work: Coroutine[object, object, None], name: str) -> AsyncIterator[asyncio.Task[None]]:
    """Run ``work`` in the background; cancelled at the end. A crash is logged at once, and raised at the end."""
    task = asyncio.create_task(work, name=name)
    task.add_done_callback(_log_crash)
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait({task})
        if not task.cancelled():
            task.result()


def _log_crash(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("task_crashed", task=task.get_name(), exc_info=error)


async def publish_now(bus: Bus, subject: str, message: Struct) -> bool:
    """Publish now or not at all, for it would be stale later; says whether it was handed to the bus.

    What every reader would refuse is not sent, and logged with the name of its field.
    """
    try:
        payload = encode(message)
    except (TypeError, OverflowError) as error:  # a number of NumPy, or one beyond 64 bits
        _log.error("message_invalid", subject=subject, detail=str(error))
        return False
    refused = decode_as(type(message), payload, subject)
    if isinstance(refused, Rejected):
        _log.error("message_invalid", subject=subject, detail=refused.detail)
        return False
    try:
        await bus.publish(subject, payload)
    except BusUnavailable:
        return False
    return True


async def wait_at_most(event: asyncio.Event, timeout_s: float) -> bool:
    """Wait for an event, at most ``timeout_s``; says whether it came."""
    try:
        await asyncio.wait_for(event.wait(), timeout_s)
    except TimeoutError:
        return False
    return True
